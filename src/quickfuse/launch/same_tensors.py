"""Whether many tensors are the same, at the same addresses, with the same properties, as when they were last checked.

A check of a tensor calls a handful of PyTorch's functions; for the 4,000 tensors of an optimizer that takes longer than the
kernels that follow. After a check found everything in order, this module writes down the words of which it depends (see
`tensor_layout.py`): as long as they are the same, so is its outcome. A native loop compares them, a few nanoseconds a tensor,
without making a list of the tensors, and counts their changes for autograd.

Nothing that may have been freed is followed, and nothing is kept alive. A tensor object is looked at once it is known that what
holds it is as it was: the caller's list, or a container that `unchanged.py` watches. The object holds its C++ part, that
its storage, its version and what autograd knows of it, and that its gradient, which comes after all tensors that
are held otherwise. Of each, the pointers are compared before they are followed.

While the words are compared, no other thread runs Python; and none of PyTorch's threads may change tensors that are used here.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from operator import call
from typing import Any

import numpy as np
import torch

from ..ir.walk import Holder
from . import builtin, cpu, unchanged
from .bulk_reads import TENSOR_TYPES
from .tensor_check import TRACING_KEYS, UNCHANGED, NativeTensorCheck, key_included_function
from .tensor_layout import MOST_DIMENSIONS, OBJECT_MASK, TensorLayout, tensor_layout

_TYPE = 8
_TYPE_VERSION = 384
_LIST_SIZE, _LIST_ITEMS = 16, 24

#: Words of the block that the native function reads.
_BLOCK_WORDS = 14
_HITS = 13
#: Words of a tensor's record, and of a template before its masks and values.
_RECORD_WORDS = 10
_GRAD = 7
_TEMPLATE_HEADER = 4
#: Words of a tensor that are collected besides those of its C++ object.
_COLLECTED = 10
#: How many records ahead memory is asked for.
_AHEAD = 8

#: After how many calls words are written down again that were hardly of use, at most.
_LONGEST_WAIT = 4096

_NAME = "quickfuse_same_tensors"


class SameTensors:
    """What is known about the tensors of one check.

    `holds(held)` gives a number if nothing has changed, and counts the changes of autograd's versions then; 0 otherwise.
    `held` begins with the roots of the walk, then come the tensors that the caller holds. The number is `block[0]` as long as it
    is worth something.
    """

    def __init__(
        self, check: NativeTensorCheck, walk: unchanged.Unchanged | None, roots: int, holders: Sequence[Holder],
        changes: Mapping[int, int],
    ) -> None:  # fmt: skip
        """`holders` tell of each tensor of the check what holds it. `changes`: how often the program changes some, by their
        positions; kernels do that without telling autograd."""
        self._check = check
        self._walk = walk
        self._roots = roots
        self._holders = list(holders)
        self._changed = np.array([k for k, times in changes.items() if times], dtype=np.int64)
        self._times = np.array([times for times in changes.values() if times], dtype=np.int64)
        self._walked = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "walk"]
        self._held = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "caller"]
        self._grads = [(k, h.number) for k, h in enumerate(self._holders) if h.kind == "grad"]
        self._parents = {parent for _, parent in self._grads}
        self.block = (ctypes.c_int64 * _BLOCK_WORDS)()
        self._kept: list[Any] = []  # the memory that the block refers to
        self.holds = builtin.one_argument(_NAME, _native()[0], ctypes.addressof(self.block))
        self._number = 0
        self._wait = 1
        self._skip = 2  # the walk is written down first

    def note(self, held: list[Any], tensors: list[Any]) -> None:
        """Write the words down as they are now: the check has found everything in order. Not each time, if it was of little use."""
        if self._number and self.block[0] == 0:
            self._wait = min(2 * self._wait, _LONGEST_WAIT) if self.block[_HITS] <= 2 else 1
            self._skip = self._wait
            self._number = 0
        if self._skip > 0:
            self._skip -= 1
            return
        self._wait = self._skip = min(2 * self._wait, _LONGEST_WAIT)
        self._write_down(held, tensors)

    def _write_down(self, held: list[Any], tensors: list[Any]) -> None:
        layout = tensor_layout()
        assert layout is not None
        count = len(tensors)
        width = layout.last + 1 - layout.first
        found = np.zeros((count, _COLLECTED + width), dtype=np.int64)
        roots = held[: self._roots]
        note = self._walk.note_of(roots) if self._walk is not None else None
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
        words = found[:, _COLLECTED:]
        column = {name: words[:, getattr(layout, name) - layout.first] for name in ("storage", "autograd", "version", "object")}
        kinds, impl, data, owner, flags0, flags1, grad, function, needs = (found[:, k] for k in range(1, _COLLECTED))
        if any(type(t) not in TENSOR_TYPES or t.ndim > MOST_DIMENSIONS for t in tensors) or function.any():
            return
        objects = found[:, 0]
        if ((column["object"] & OBJECT_MASK) != objects).any():
            return
        if any(grad[parent] != impl[k] or not column["autograd"][parent] for k, parent in self._grads):
            return
        masks, values = self._templates(layout, tensors, words)
        rows = np.concatenate([np.stack([kinds, flags0, flags1, kinds * 0], axis=1), masks, values], axis=1)
        numbers: dict[bytes, int] = {}
        which = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], dtype=np.int64)
        templates = np.frombuffer(b"".join(numbers), dtype=np.int64).copy()
        at = templates.ctypes.data + 8 * rows.shape[1] * which
        records = np.ascontiguousarray(
            np.stack([objects, impl, at, column["storage"], data, owner, column["autograd"], grad, needs, column["version"]], axis=1)
        )
        grads = {k for k, _ in self._grads}
        records[[k not in self._parents for k in range(count)], _GRAD] = 0
        first = np.ascontiguousarray(records[[k for k in range(count) if k not in grads]])
        second = np.ascontiguousarray(records[sorted(grads)])
        versions = column["version"][self._changed]
        if (versions == 0).any():
            return
        counts = np.stack([versions + layout.counter, self._times], axis=1)
        kinds_used = sorted({type(t) for t in tensors}, key=id)
        heads = np.array([(id(kind) + _TYPE_VERSION, _type_version(kind)) for kind in kinds_used], dtype=np.int64)
        ids = np.array([id(t) for t in held[self._roots :]], dtype=np.int64)
        self._kept = [note, templates, first, second, counts, heads, ids]
        walk_block = self._walk.block_address if self._walk is not None else 0
        self._number = next(_numbers)
        self.block[:] = [
            0, walk_block, note.results.ctypes.data if note is not None else 0, self._roots, len(ids), ids.ctypes.data, len(heads), heads.ctypes.data,
            len(first), first.ctypes.data, len(second), second.ctypes.data, _address_of_pair(self._kept, counts), 0,
        ]  # fmt: skip
        self.block[0] = self._number

    def _are_held(self, held: list[Any], tensors: list[Any], known: list[Any] | None) -> bool:
        """Whether each tensor is what its holder has."""
        if known is None:
            return False
        by_walk = all(tensors[k] is known[number] for k, number in self._walked)
        return by_walk and all(tensors[k] is held[self._roots + number] for k, number in self._held)

    def _templates(self, layout: TensorLayout, tensors: list[Any], words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which bits of the words are the same in all tensors of a kind, and what they are."""
        masks = np.full_like(words, -1)
        for place in (layout.storage, layout.autograd, layout.version, layout.object):
            masks[:, place - layout.first] = 0
        ndims = np.array([t.ndim for t in tensors])
        for ndim in range(MOST_DIMENSIONS):
            for place in layout.unused(ndim):
                masks[ndims == ndim, place - layout.first] = 0
        return masks, words & masks


def _address_of_pair(kept: list[Any], counts: np.ndarray) -> int:
    """The address of two words: how many changes there are to count, and where they stand."""
    pair = np.array([len(counts), counts.ctypes.data], dtype=np.int64)
    kept.append(pair)
    return int(pair.ctypes.data)


def _type_version(kind: type) -> int:
    getattr(kind, "__init__", None)
    return ctypes.c_int64.from_address(id(kind) + _TYPE_VERSION).value


def _count_from_one() -> Any:
    number = 0
    while True:
        number = number % (1 << 40) + 1
        yield number


_numbers = _count_from_one()


def available() -> bool:
    """Whether objects and tensors are laid out here as this module needs it."""
    return bool(unchanged.helpers()) and tensor_layout() is not None and key_included_function() is not None


def helpers() -> dict[str, Callable[..., Any]]:
    """What generated code needs of this module."""
    return {"same_tensors": SameTensors} if available() else {}


@functools.cache
def _native() -> tuple[int, Any]:
    """The address of the scan, and the function that collects words."""
    layout = tensor_layout()
    assert layout is not None
    inner, collect = f"{_NAME}_block", f"{_NAME}_collect"
    ir = [_scan_ir(inner, layout), builtin.of_one_argument(_NAME, inner, "number"), _collect_ir(collect, layout)]
    addresses = cpu.load("\n".join(ir), [_NAME, collect])
    collecting = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.py_object, ctypes.c_int64)
    return addresses[_NAME], collecting(addresses[collect])


def _load(name: str, base: str, offset: int) -> str:
    """IR that sets %name to the word at a byte offset from %base."""
    return f"  %{name}.p = getelementptr i8, ptr %{base}, i64 {offset}\n  %{name} = load i64, ptr %{name}.p"


def _collect_ir(name: str, layout: TensorLayout) -> str:
    """LLVM IR that writes down the words of all tensors of a list."""
    width = layout.last + 1 - layout.first
    stores = []
    for k, (value, base, offset) in enumerate((
        ("kind", "object", _TYPE), ("impl.i", "object", layout.handle), ("data", "storage", 8 * layout.data),
        ("owner", "storage", 8 * layout.owner), ("flag0", "storage", 8 * layout.storage_flags[0]),
        ("flag1", "storage", 8 * layout.storage_flags[1]),
    )):  # fmt: skip
        stores += [_load(value, base, offset), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 1}",
                   f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    autograd = []
    for k, (value, word) in enumerate((("grad", layout.grad), ("function", layout.function), ("needs", layout.flags))):
        autograd += [_load(value, "autograd", 8 * word), f"  %{value}.out = getelementptr i64, ptr %out, i64 {k + 7}",
                     f"  store i64 %{value}, ptr %{value}.out"]  # fmt: skip
    lines = "\n".join(stores)
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define i64 @{name}(ptr %list, i64 %out.i) {{
entry:
  %out.first = inttoptr i64 %out.i to ptr
{_load("size", "list", _LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {_LIST_ITEMS}
  %items = load ptr, ptr %items.p
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %size
  br i1 %done, label %exit, label %body
body:
  %at = mul i64 %k, {_COLLECTED + width}
  %out = getelementptr i64, ptr %out.first, i64 %at
  %object.p = getelementptr ptr, ptr %items, i64 %k
  %object = load ptr, ptr %object.p
  %object.i = ptrtoint ptr %object to i64
  store i64 %object.i, ptr %out
  %impl.p0 = getelementptr i8, ptr %object, i64 {layout.handle}
  %impl = load ptr, ptr %impl.p0
  %storage.p = getelementptr i64, ptr %impl, i64 {layout.storage}
  %storage = load ptr, ptr %storage.p
{lines}
  %words.out = getelementptr i64, ptr %out, i64 {_COLLECTED}
  %words.in = getelementptr i64, ptr %impl, i64 {layout.first}
  call void @llvm.memcpy.p0.p0.i64(ptr %words.out, ptr %words.in, i64 {8 * width}, i1 false)
  %autograd.p = getelementptr i64, ptr %impl, i64 {layout.autograd}
  %autograd = load ptr, ptr %autograd.p
  %none = icmp eq ptr %autograd, null
  br i1 %none, label %next, label %known
known:
{chr(10).join(autograd)}
  br label %next
next:
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 %size
}}
"""


def _scan_ir(name: str, layout: TensorLayout) -> str:
    """LLVM IR of the scan: the walk's words, what the caller holds, the classes, the tensors; then changes are counted."""
    fields = "\n".join(_load(f"f{k}", "block", 8 * k) for k in range(_BLOCK_WORDS))
    find = unchanged.find_address()
    included = key_included_function()
    keys = [int(torch._C._dispatch_key_parse(key)) for key in TRACING_KEYS]
    recorded = "\n".join(
        f"  %included.{k} = call i8 inttoptr (i64 {included} to ptr)(i16 {key})\n"
        f"  %recorded.{k} = trunc i8 %included.{k} to i1\n"
        f"  br i1 %recorded.{k}, label %changed, label %unrecorded.{k}\n"
        f"unrecorded.{k}:"
        for k, key in enumerate(keys)
    )
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.or.v4i64(<4 x i64>)
define i64 @{name}(ptr %list, i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
{fields}
  %known = icmp ne i64 %f0, 0
  br i1 %known, label %start, label %changed
start:
{_load("size", "list", _LIST_SIZE)}
  %items.p = getelementptr i8, ptr %list, i64 {_LIST_ITEMS}
  %items = load ptr, ptr %items.p
  %held.size = add i64 %f3, %f4
  %as.many = icmp eq i64 %size, %held.size
  br i1 %as.many, label %alone, label %changed
alone:
{recorded}
  %walked = icmp ne i64 %f1, 0
  br i1 %walked, label %walk, label %held
walk:
  %found = call ptr inttoptr (i64 {find} to ptr)(ptr %items, i64 %f3, i64 %f1)
  %any = icmp ne ptr %found, null
  br i1 %any, label %walk.found, label %changed
walk.found:
{_load("results", "found", 8 * unchanged.RESULTS_WORD)}
  %same.note = icmp eq i64 %results, %f2
  br i1 %same.note, label %held, label %changed
held:
  %ids = inttoptr i64 %f5 to ptr
  br label %held.head
held.head:
  %h = phi i64 [ 0, %held ], [ %h.next, %held.next ]
  %held.done = icmp sge i64 %h, %f4
  br i1 %held.done, label %heads, label %held.body
held.body:
  %h.at = add i64 %h, %f3
  %now.p = getelementptr i64, ptr %items, i64 %h.at
  %now = load i64, ptr %now.p
  %then.p = getelementptr i64, ptr %ids, i64 %h
  %then = load i64, ptr %then.p
  %same.held = icmp eq i64 %now, %then
  br i1 %same.held, label %held.next, label %changed
held.next:
  %h.next = add i64 %h, 1
  br label %held.head
heads:
  %pairs = inttoptr i64 %f7 to ptr
  br label %pair.head
pair.head:
  %p = phi i64 [ 0, %heads ], [ %p.next, %pair.next ]
  %pairs.done = icmp sge i64 %p, %f6
  br i1 %pairs.done, label %first, label %pair.body
pair.body:
  %pair = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %p
  %address = load ptr, ptr %pair
  %want.p = getelementptr i64, ptr %pair, i64 1
  %want = load i64, ptr %want.p
  %word = load i64, ptr %address
  %same.word = icmp eq i64 %word, %want
  br i1 %same.word, label %pair.next, label %changed
pair.next:
  %p.next = add i64 %p, 1
  br label %pair.head
first:
{_records_ir("a", "first", "%f8", "%f9", "second", layout, object_first=True)}
second:
{_records_ir("b", "second", "%f10", "%f11", "count", layout, object_first=False)}
count:
  %counts = inttoptr i64 %f12 to ptr
{_load("count.size", "counts", 0)}
  %count.places.p = getelementptr i64, ptr %counts, i64 1
  %count.places = load ptr, ptr %count.places.p
  br label %count.head
count.head:
  %c = phi i64 [ 0, %count ], [ %c.next, %count.body ]
  %count.done = icmp sge i64 %c, %count.size
  br i1 %count.done, label %exit, label %count.body
count.body:
  %count.pair = getelementptr {{ i64, i64 }}, ptr %count.places, i64 %c
  %version.p = load ptr, ptr %count.pair
  %times.p = getelementptr i64, ptr %count.pair, i64 1
  %times.wide = load i64, ptr %times.p
  %times = trunc i64 %times.wide to i32
  %version = load atomic i32, ptr %version.p monotonic, align 4
  %version.next = add i32 %version, %times
  store atomic i32 %version.next, ptr %version.p monotonic, align 4
  %c.next = add i64 %c, 1
  br label %count.head
exit:
  %hits = add i64 %f{_HITS}, 1
  store i64 %hits, ptr %f{_HITS}.p
  ret i64 %f0
changed:
  store i64 0, ptr %block
  ret i64 0
}}
"""


def _records_ir(
    x: str, before: str, count: str, records: str, after: str, layout: TensorLayout, *, object_first: bool
) -> str:
    """IR that compares the words of some tensors. All its names begin with `x`; it comes from block `before` and goes to
    `after`. `object_first`: the Python object is known to be alive, and otherwise the C++ object."""
    names = ("object", "impl", "template", "storage", "data", "owner", "autograd", "grad", "needs", "version")
    record = []
    for k, name in enumerate(names):
        record += [f"  %{x}.{name}.p = getelementptr i64, ptr %{x}.record, i64 {k}",
                   f"  %{x}.{name} = load i64, ptr %{x}.{name}.p"]  # fmt: skip
    pointers = "\n".join(
        f"  %{x}.{name}.q = inttoptr i64 %{x}.{name} to ptr" for name in ("object", "impl", "template", "storage", "autograd")
    )
    header = []
    for k, name in enumerate(("kind", "flag0", "flag1")):
        header += [f"  %{x}.want.{name}.p = getelementptr i64, ptr %{x}.template.q, i64 {k}",
                   f"  %{x}.want.{name} = load i64, ptr %{x}.want.{name}.p"]  # fmt: skip
    object_test = _equal(x, "object", [
        ("object", _TYPE, f"%{x}.want.kind", -1), ("object", layout.handle, f"%{x}.impl", -1),
    ])  # fmt: skip
    impl_test = "\n".join([_words_ir(x, layout), _equal(x, "impl", [
        ("impl", 8 * layout.storage, f"%{x}.storage", -1), ("impl", 8 * layout.autograd, f"%{x}.autograd", -1),
        ("impl", 8 * layout.version, f"%{x}.version", -1), ("impl", 8 * layout.object, f"%{x}.object", OBJECT_MASK),
    ], f"%{x}.words")])  # fmt: skip
    storage_test = _equal(x, "storage", [
        ("storage", 8 * layout.data, f"%{x}.data", -1), ("storage", 8 * layout.owner, f"%{x}.owner", -1),
        ("storage", 8 * layout.storage_flags[0], f"%{x}.want.flag0", -1),
        ("storage", 8 * layout.storage_flags[1], f"%{x}.want.flag1", -1),
    ])  # fmt: skip
    tests = [object_test, impl_test] if object_first else [impl_test, object_test]
    return f"""
  %{x}.records = inttoptr i64 {records} to ptr
  %{x}.final = sub i64 {count}, 1
  br label %{x}.head
{x}.head:
  %{x}.k = phi i64 [ 0, %{before} ], [ %{x}.k.next, %{x}.next ]
  %{x}.done = icmp sge i64 %{x}.k, {count}
  br i1 %{x}.done, label %{after}, label %{x}.body
{x}.body:
  %{x}.at = mul i64 %{x}.k, {_RECORD_WORDS}
  %{x}.record = getelementptr i64, ptr %{x}.records, i64 %{x}.at
{_ahead_ir(x, layout)}
{chr(10).join(record)}
{pointers}
{chr(10).join(header)}
{tests[0]}
{tests[1]}
{storage_test}
  %{x}.no.autograd = icmp eq i64 %{x}.autograd, 0
  br i1 %{x}.no.autograd, label %{x}.next, label %{x}.autograd.known
{x}.autograd.known:
{_load(f"{x}.grad.now", f"{x}.autograd.q", 8 * layout.grad)}
  %{x}.grad.same = icmp eq i64 %{x}.grad.now, %{x}.grad
  %{x}.grad.any = icmp eq i64 %{x}.grad, 0
  %{x}.grad.good = or i1 %{x}.grad.same, %{x}.grad.any
  br i1 %{x}.grad.good, label %{x}.grad.known, label %changed
{x}.grad.known:
{_equal(x, "autograd", [("autograd", 8 * layout.function, "0", -1), ("autograd", 8 * layout.flags, f"%{x}.needs", -1)])}
  br label %{x}.next
{x}.next:
  %{x}.k.next = add i64 %{x}.k, 1
  br label %{x}.head
"""


def _equal(x: str, label: str, words: list[tuple[str, int, str, int]], start: str = "0") -> str:
    """IR that goes on where words, (base, byte offset, what is wanted, mask), are as wanted; `start`: bits that are to be 0."""
    lines = []
    total = start
    for k, (base, offset, wanted, mask) in enumerate(words):
        name = f"{x}.{label}.{k}"
        lines += [_load(f"{name}.now", f"{x}.{base}.q", offset), f"  %{name}.kept = and i64 %{name}.now, {mask}",
                  f"  %{name}.xor = xor i64 %{name}.kept, {wanted}", f"  %{name}.all = or i64 {total}, %{name}.xor"]  # fmt: skip
        total = f"%{name}.all"
    return "\n".join([*lines, f"  %{x}.{label}.good = icmp eq i64 {total}, 0",
                      f"  br i1 %{x}.{label}.good, label %{x}.{label}.same, label %changed", f"{x}.{label}.same:"])  # fmt: skip


def _words_ir(x: str, layout: TensorLayout) -> str:
    """IR that sets %x.words to the bits in which the C++ object differs from its template."""
    width = layout.last + 1 - layout.first
    starts = sorted({*range(0, width - 3, 4), width - 4})
    lines = []
    total = "zeroinitializer"
    for k, start in enumerate(starts):
        places = (("now", "impl", layout.first + start), ("mask", "template", _TEMPLATE_HEADER + start),
                  ("want", "template", _TEMPLATE_HEADER + width + start))  # fmt: skip
        for name, base, word in places:
            lines += [f"  %{x}.{name}{k}.p = getelementptr i64, ptr %{x}.{base}.q, i64 {word}",
                      f"  %{x}.{name}{k} = load <4 x i64>, ptr %{x}.{name}{k}.p, align 8"]  # fmt: skip
        lines += [
            f"  %{x}.kept{k} = and <4 x i64> %{x}.now{k}, %{x}.mask{k}",
            f"  %{x}.xor{k} = xor <4 x i64> %{x}.kept{k}, %{x}.want{k}",
            f"  %{x}.all{k} = or <4 x i64> {total}, %{x}.xor{k}",
        ]
        total = f"%{x}.all{k}"
    return "\n".join([*lines, f"  %{x}.words = call i64 @llvm.vector.reduce.or.v4i64(<4 x i64> {total})"])


def _ahead_ir(x: str, layout: TensorLayout) -> str:
    """IR that asks for the memory of a tensor to come. Asking never faults, whatever the address."""
    lines = [
        f"  %{x}.ahead = add i64 %{x}.k, {_AHEAD}",
        f"  %{x}.inside = icmp slt i64 %{x}.ahead, %{x}.final",
        f"  %{x}.then = select i1 %{x}.inside, i64 %{x}.ahead, i64 %{x}.final",
        f"  %{x}.then.at = mul i64 %{x}.then, {_RECORD_WORDS}",
        f"  %{x}.then.record = getelementptr i64, ptr %{x}.records, i64 %{x}.then.at",
    ]
    lines_of = {0: (0,), 1: (8 * layout.first, 8 * layout.first + 64, 8 * layout.last), 3: (8 * layout.data,),
                6: (8 * layout.grad, 8 * layout.flags)}  # fmt: skip
    for word, offsets in lines_of.items():
        lines += [f"  %{x}.then{word}.p = getelementptr i64, ptr %{x}.then.record, i64 {word}",
                  f"  %{x}.then{word} = load ptr, ptr %{x}.then{word}.p"]  # fmt: skip
        for offset in offsets:
            lines += [f"  %{x}.then{word}.{offset} = getelementptr i8, ptr %{x}.then{word}, i64 {offset}",
                      f"  call void @llvm.prefetch.p0(ptr %{x}.then{word}.{offset}, i32 0, i32 3, i32 1)"]  # fmt: skip
    return "\n".join(lines)
