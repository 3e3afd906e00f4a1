"""Whether many tensors are the same, at the same addresses, with the same properties, as when they were last checked.

A check of a tensor calls a handful of PyTorch's functions; for the 4,000 tensors of an optimizer that takes longer than the
kernels that follow. After a check found everything in order, this module writes down the words of which it depends (see
`tensor_layout.py`): as long as they are the same, so is its outcome. A native loop compares them, a few nanoseconds a
tensor, and holds the tensors, so that they live until their kernels have run.

Nothing that may have been freed is followed, and nothing is kept alive. A tensor object is looked at once it is known that
what holds it is as it was: the caller's list, or a container that `unchanged.py` watches. The object holds its C++ part,
that its storage, its version and what autograd knows of it, and that its gradient, which comes after all tensors that are
held otherwise. Of each, the pointers are compared before they are followed.

While the words are compared, no other thread runs Python; and PyTorch's threads may not change tensors that are used here.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import call
from typing import Any

import numpy as np
import torch

from .. import config
from ..errors import InternalError
from ..ir.walk import MOVED, Holder
from ..logs import log
from ..signals import let_through
from . import builtin, cpu, unchanged
from .bulk_reads import TENSOR_TYPES
from .object_layout import TYPE_VERSION, references_are_counted, version_of_type
from .same_tensors_ir import (
    BLOCK_WORDS,
    COLLECTED,
    COUNTING_THREADS,
    HELD_WORDS,
    HITS,
    THREADS,
    collect_ir,
    count_ir,
    scan_ir,
)
from .same_words_ir import (
    COUNT,
    GRADIENT_WORDS,
    GRADIENTS,
    IMPL,
    MOVES,
    NEEDS,
    OWN_WORDS,
    PAIRED,
    RECORD_WORDS,
    RECORDS,
    SHARE_WORDS,
    STORAGE,
    STORAGE_WORDS,
    STRICT,
    TEMPLATE,
    TEMPLATE_HEADER,
)
from .tensor_check import UNCHANGED, NativeTensorCheck, key_included_function
from .tensor_layout import FIRST_WORDS, MOST_DIMENSIONS, OBJECT_MASK, TensorLayout, tensor_layout
from .thread_choice import ThreadChoice

#: After how many calls words are written down again that were hardly of use, at most.
_LONGEST_WAIT = 4096

#: From so many tensors on, several threads may be faster.
_WORTH_THREADS = 512

_NAME = "quickfuse_same_tensors"


class SameTensors:
    """What is known about the tensors of one check.

    `holds(held)` gives an object that holds the tensors if nothing has changed, or else None. `held` begins with the roots
    of the walk, then come the tensors that the caller holds. After that, `count()` counts the changes of kernels for
    autograd. What is known has a number, `block[0]`, which is 0 where nothing is.

    Gradients may be other tensors than before, of the same kind: then their addresses are written to those of the check, and
    `block[MOVED]` is 1 until the caller has made use of them.
    """

    def __init__(
        self, check: NativeTensorCheck, walk: unchanged.Unchanged | None, roots: int, holders: Sequence[Holder],
        changes: Mapping[int, int], strict: bool = False,
    ) -> None:  # fmt: skip
        """`holders` tell of each tensor of the check what holds it. `changes`: how often the program changes some, by their
        positions; kernels do that without telling autograd. `strict`: no gradient may be at another address."""
        self._strict = strict
        self._check = check
        self._walk = walk
        self._roots = roots
        self._holders = list(holders)
        self._changed = np.array([k for k, times in changes.items() if times], dtype=np.int64)
        self._times = np.array([times for times in changes.values() if times], dtype=np.int64)
        self._walked = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "walk"]
        self._held = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "caller"]
        self._grads = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "grad"]
        self.block = (ctypes.c_int64 * BLOCK_WORDS)()
        self._kept: list[Any] = []  # the memory that the block refers to
        self._order: list[int] = []  # in which tensors are compared
        self.holds: Callable[[Any], Any] = builtin.one_argument(_NAME, _native()[0], ctypes.addressof(self.block))
        if len(self._holders) >= _WORTH_THREADS:
            self.holds = ThreadChoice(self.holds, self.block, (THREADS, COUNTING_THREADS))
        self.count = builtin.no_argument(f"{_NAME}_count", _native()[2], np.frombuffer(self.block, dtype=np.int64))
        self._number = 0
        self._wait = 1
        self._skip = 2  # the walk is written down first

    def listed(self, tensors: Any) -> list[Any]:
        """The list of tensors, from that or from what holds those which are the same."""
        if isinstance(tensors, list):
            return tensors
        prototype = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.c_void_p)
        get = prototype(("PyCapsule_GetPointer", ctypes.pythonapi))
        objects = (ctypes.py_object * len(self._order)).from_address(get(tensors, None) + 8 * HELD_WORDS)
        return [tensor for _, tensor in sorted(zip(self._order, objects, strict=True), key=lambda pair: pair[0])]

    def note(self, held: list[Any], tensors: list[Any]) -> None:
        """Write the words down as they are now, when the check has found everything in order. Seldom, if it was no use."""
        if self._number and self.block[0] == 0:
            self._wait = min(2 * self._wait, _LONGEST_WAIT) if self.block[HITS] <= 2 else 1
            self._skip = self._wait
            self._number = 0
        if self._skip > 0:
            self._skip -= 1
            return
        self._wait = self._skip = min(2 * self._wait, _LONGEST_WAIT)
        try:
            self._write_down(held, tensors)
        except Exception as error:  # the kernels have run: the call must not begin again
            let_through(error)
            if config.raise_internal_errors:
                raise InternalError(f"{type(error).__name__}: {error}") from error
            log.warning("internal error while noting tensors (%s: %s); each call checks them", type(error).__name__, error)
            self._skip = sys.maxsize

    def _write_down(self, held: list[Any], tensors: list[Any]) -> None:
        layout = tensor_layout()
        assert layout is not None
        roots = held[: self._roots]
        note = self._walk.note_of(roots) if self._walk is not None else None
        found = np.zeros((len(tensors), COLLECTED + layout.last + 1 - layout.first), dtype=np.int64)
        collect = functools.partial(_native()[1], tensors, found.ctypes.data)
        steps: list[Callable[[], Any]] = [collect, functools.partial(self._check.scan, tensors)]
        if self._walk is not None:
            steps.append(functools.partial(self._walk.scan, roots))
        # In one call, so that no other thread runs in between.
        _, state, *known = map(call, steps)
        if state != UNCHANGED or not self._are_held(held, tensors, known[0] if known else []):
            return
        if self._walk is not None and (note is None or self._walk.note_of(roots) is not note):
            return
        if any(type(t) not in TENSOR_TYPES or t.ndim > MOST_DIMENSIONS for t in tensors):
            return
        words = found[:, COLLECTED:]
        words[:, layout.object - layout.first] &= OBJECT_MASK
        versions = words[self._changed, layout.version - layout.first]
        if not self._stand_alone(found, words, layout) or (versions == 0).any():
            return
        places, numbers = np.unique(versions + layout.counter, return_inverse=True)  # views share theirs with what they view
        times = np.bincount(numbers, self._times, len(places)).astype(np.int64)
        counts = np.stack([places, times], axis=1)
        self.block[0] = 0  # first: what it refers to is let go, and an exception may come before there is anything new
        self._kept = [note]
        self._use(note, held, tensors, self._share(found, words, self._masks(layout, tensors)), counts)

    def _stand_alone(self, found: np.ndarray, words: np.ndarray, layout: TensorLayout) -> bool:
        """Whether each is another leaf whose C++ object belongs to the Python object, and gradients are those of their
        tensors."""
        impl, grad, function = found[:, 2], found[:, 8], found[:, 9]
        if len(np.unique(found[:, 0])) < len(found):  # threads count references to each
            return False
        if function.any() or (words[:, layout.object - layout.first] != found[:, 0]).any():
            return False
        autograd = words[:, layout.autograd - layout.first]
        return all(grad[parent] == impl[k] and autograd[parent] for k, parent in self._grads)

    def _share(self, found: np.ndarray, words: np.ndarray, masks: np.ndarray) -> np.ndarray:
        """All tensors, those with gradients and these first."""
        rows = np.concatenate([found[:, [7, 1]], masks[:, FIRST_WORDS:], (words & masks)[:, FIRST_WORDS:]], axis=1)
        assert rows.shape[1] == TEMPLATE_HEADER + 2 * (masks.shape[1] - FIRST_WORDS)
        numbers: dict[bytes, int] = {}
        which = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
        templates = np.frombuffer(b"".join(numbers), dtype=np.int64).copy()
        records = np.empty((len(found), RECORD_WORDS), dtype=np.int64)
        records[:, TEMPLATE] = templates.ctypes.data + 8 * rows.shape[1] * which
        records[:, IMPL] = found[:, 2]
        records[:, OWN_WORDS : OWN_WORDS + FIRST_WORDS] = words[:, :FIRST_WORDS]
        records[:, STORAGE : STORAGE + STORAGE_WORDS] = found[:, 3:7]
        records[:, NEEDS] = found[:, 10]
        pairs = [number for k, parent in self._grads for number in (parent, k)]
        self._order = [*pairs, *np.setdiff1d(np.arange(len(found)), pairs).tolist()]
        records = in_cache_lines(records[self._order])
        gradients = self._gradient_rows(found, words)
        share = np.zeros(SHARE_WORDS, dtype=np.int64)
        share[RECORDS], share[COUNT] = records.ctypes.data, len(records)
        share[PAIRED], share[GRADIENTS] = len(pairs), gradients.ctypes.data
        share[MOVES], share[STRICT] = ctypes.addressof(self.block) + 8 * MOVED, self._strict
        self._kept += [templates, records, gradients, share]
        return share

    def _gradient_rows(self, found: np.ndarray, words: np.ndarray) -> np.ndarray:
        """A row of each gradient. One that is changed, or takes part in autograd, has to be the tensor that it was."""
        layout = tensor_layout()
        assert layout is not None
        grads, parents = np.array(self._grads, dtype=np.int64).reshape(-1, 2).T
        addresses = self._check.addresses
        rows = np.empty((len(self._grads), GRADIENT_WORDS), dtype=np.int64)
        autograd = words[:, layout.autograd - layout.first]
        rows[:, 0] = autograd[parents] + 8 * layout.grad
        rows[:, 1] = addresses.ctypes.data + 8 * grads
        rows[:, 2] = addresses[grads] - found[grads, 3]
        rows[:, 3] = (autograd[grads] == 0) & (found[grads, 1] == id(torch.Tensor)) & ~np.isin(grads, self._changed)
        return rows

    def _use(self, note: Any, held: list[Any], tensors: list[Any], share: np.ndarray, counts: np.ndarray) -> None:
        """Let the scan compare these tensors from now on. `counts`: where versions are, and how often they change."""
        heads = np.array(
            [(id(kind) + TYPE_VERSION, version_of_type(kind)) for kind in {*map(type, tensors)}], dtype=np.int64
        )
        ids = np.array([id(t) for t in held[self._roots :]], dtype=np.int64)
        pair = np.array([counts.ctypes.data, 0, len(counts)], dtype=np.int64)
        self._kept += [heads, ids, counts, pair]
        walk_block = self._walk.block_address if self._walk is not None else 0
        results = note.results.ctypes.data if note is not None else 0
        self._number = next(_numbers)
        self.block[1:] = [
            walk_block, results, self._roots, len(ids), ids.ctypes.data, len(heads), heads.ctypes.data, share.ctypes.data,
            pair.ctypes.data, 0, 1, 1, 0,
        ]  # fmt: skip
        self.block[0] = self._number

    def _are_held(self, held: list[Any], tensors: list[Any], known: list[Any] | None) -> bool:
        """Whether each tensor is what its holder has."""
        if known is None:
            return False
        by_walk = all(tensors[k] is known[number] for k, number in self._walked)
        return by_walk and all(tensors[k] is held[self._roots + number] for k, number in self._held)

    def _masks(self, layout: TensorLayout, tensors: list[Any]) -> np.ndarray:
        """Which bits of the words of the C++ object tell something, for each tensor."""
        masks = np.full((len(tensors), layout.last + 1 - layout.first), -1, dtype=np.int64)
        ndims = np.array([t.ndim for t in tensors])
        for ndim in range(MOST_DIMENSIONS):
            for place in layout.unused(ndim):
                masks[ndims == ndim, place - layout.first] = 0
        masks[[k for k, _ in self._grads], layout.types - layout.first] = (1 << 56) - 1  # they may be other tensors
        return masks


def in_cache_lines(rows: np.ndarray) -> np.ndarray:
    """A copy of int64 rows that begins where a cache line of 64 bytes does."""
    memory = np.empty(rows.size + 8, dtype=np.int64)
    first = -memory.ctypes.data % 64 // 8
    aligned = memory[first : first + rows.size].reshape(rows.shape)
    aligned[:] = rows
    return aligned


#: Numbers of what is known, from 1 on.
_numbers = itertools.count(1)


def available() -> bool:
    """Whether objects and tensors are laid out here as this module needs it."""
    layouts_hold = bool(unchanged.helpers()) and references_are_counted() and tensor_layout() is not None
    return layouts_hold and key_included_function() is not None


def helpers() -> dict[str, Callable[..., Any]]:
    """What generated code needs of this module."""
    return {"same_tensors": SameTensors} if available() else {}


@functools.cache
def _native() -> tuple[int, Any, int]:
    """The address of the scan, the function that collects words, and the address of what counts changes."""
    layout = tensor_layout()
    assert layout is not None
    inner, collect, count = f"{_NAME}_block", f"{_NAME}_collect", f"{_NAME}_count"
    ir = [scan_ir(inner, layout), builtin.of_one_argument(_NAME, inner, "object"), collect_ir(collect, layout)]
    ir += [count_ir(f"{count}_block"), builtin.of_one_argument(count, f"{count}_block", "number")]
    addresses = cpu.load("\n".join(ir), [_NAME, collect, count])
    collecting = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.c_int64)
    return addresses[_NAME], collecting(addresses[collect]), addresses[count]
