"""A generated function on a GPU that is recorded as a CUDA graph in its second call, and replayed from then on.

A graph reads and writes the same memory each time:

- Inputs that stay where they are (parameters, buffers, what the graph changes) are read where they are; a call with others
  does not fit, and after two of these the graph is recorded anew. Arguments are copied in.
- Results are given out as tensors on the graph's own memory. Where one is still alive when that memory is to be written
  again, the tensor moves to other memory first, with all its views: whoever holds a result never sees it change. Results
  that somebody keeps again and again are given out as copies.
- Graphs of a stream share what memory is not a result. A graph may therefore write to results of graphs that were recorded
  after it: these move, too, if they are alive. Results of graphs before it were in use when it was recorded.

What cannot be recorded runs as it would without graphs, with one logged reason.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import config, logs
from ..ir.random_state import move_to, offset_of
from ..ir.values import TensorMeta
from ..signals import let_through
from .memory import maker
from .versions import change_notes

#: So many recordings of one function are kept, for inputs at different addresses.
MOST_RECORDINGS = 8
#: Results that were moved so often are given out as copies.
MOST_MOVES = 2
#: Inputs of more bytes in all are not copied for the sake of a graph.
MOST_COPIED = 64 << 20

_use_count = torch._C._storage_Use_Count

#: The recordings of each stream, in the order in which they were made.
_in_order: dict[Hashable, list[weakref.ref[Recorded]]] = {}

#: One call at a time prepares and starts a graph: they share memory.
_lock = threading.RLock()


class GraphMemory:
    """What the graphs of the process hold, in bytes, and how many there are."""

    held = 0
    recordings = 0

    @classmethod
    def add(cls, recordings: int, size: int) -> None:
        cls.recordings += recordings
        cls.held += size


class Given(NamedTuple):
    """A result that is an input, or one that lies in an input's memory: then it is `like` this tensor, which lies as far
    from the beginning of the input in the recording as the result from that of the call's, in bytes."""

    position: int
    like: torch.Tensor | None = None
    distance: int = 0

    def result(self, tensor: torch.Tensor, detach: bool) -> torch.Tensor:
        """The result where the input is `tensor`."""
        like = self.like
        if like is None:
            return tensor.detach() if detach else tensor
        base = tensor.detach()
        if base.dtype == like.dtype:
            offset = base.storage_offset() + self.distance // like.itemsize
        else:  # a view in another type, which counts its offset in other units
            offset = (base.storage_offset() * base.itemsize + self.distance) // like.itemsize
            unit = max(base.itemsize, like.itemsize)
            whole = base.untyped_storage().nbytes() // unit * unit
            base = base.as_strided((whole // base.itemsize,), (1,), 0).view(like.dtype)
        return _flagged(base.as_strided(like.shape, like.stride(), offset), like)


def _flagged(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that is conjugated or negated when it is read, where another one is."""
    if like.is_conj():
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if like.is_neg() else tensor


class Plain(NamedTuple):
    """A result that is no tensor, the same in each call."""

    value: Any


class Slot:
    """Memory of a recording that results lie in, and these results as tensors that nobody else has."""

    __slots__ = ("alone", "handle", "kept", "storage", "templates")

    def __init__(self, templates: list[torch.Tensor], kept: int) -> None:
        """`kept` is how often the results were still alive in earlier recordings."""
        self.kept = kept
        self.templates = templates
        self.storage = templates[0].untyped_storage()
        self.note_alone()

    def note_alone(self) -> None:
        """Nobody else has tensors in this memory now: later, more users than `alone` mean that somebody has."""
        self.handle = self.storage._cdata
        self.alone = _use_count(self.handle)

    def results(self) -> list[torch.Tensor]:
        """New tensors on this memory, or on a copy of it if they are to be kept."""
        if self.kept < MOST_MOVES:
            return [template.data for template in self.templates]
        return self._templates_in(self.storage.clone())

    def _templates_in(self, storage: Any) -> list[torch.Tensor]:
        return [
            _flagged(made.set_(storage, t.storage_offset(), t.shape, t.stride()), t)
            for t in self.templates
            for made in [torch.empty(0, dtype=t.dtype, device=t.device)]
        ]

    def move_others(self, allocate_again: Callable[[int, int], torch.Tensor | None]) -> bool:
        """Give the tensors that others have new memory with the same contents. Returns whether the old memory is still
        to be had."""
        size, address = self.storage.nbytes(), self.storage.data_ptr()
        self.storage.resize_(size)  # which moves the contents
        if self.storage.data_ptr() == address:
            return False
        memory = allocate_again(address, size)
        if memory is None:
            return False
        self.storage = memory.untyped_storage()
        self.templates = self._templates_in(self.storage)
        del memory
        self.note_alone()
        return True


class Recorded:
    """A recording with what it was made for: `fixed` are the positions of inputs whose addresses it contains."""

    def __init__(self, recording: Any, fixed: Any, addresses: Any, copies: list[tuple[int, torch.Tensor]]) -> None:
        self.recording = recording
        self.fixed = fixed
        self.addresses = addresses[fixed]
        self.copied = [k for k, _ in copies]
        self.copies = [tensor for _, tensor in copies]
        self.slots: list[Slot] = []
        #: For each result: `Plain`, `Given`, or (slot, number).
        self.results: list[Any] = []
        #: Counts the changes of inputs that operators make: those of kernels are counted elsewhere.
        self.note_changes: Callable[[list[Any]], bool] | None = None
        #: Whether it has the memory of its results still.
        self.valid = True
        GraphMemory.add(1, recording.bytes)
        weakref.finalize(self, GraphMemory.add, -1, -recording.bytes)

    def fits(self, addresses: Any) -> bool:
        return self.valid and bool((addresses[self.fixed] == self.addresses).all())

    def needs_no_tensors(self) -> bool:
        """Whether a replay reads and changes tensors where they are, and returns none."""
        return self.note_changes is None and not self.copied and all(type(result) is Plain for result in self.results)

    def free_results(self) -> None:
        """Let results that are still in use move away."""
        alive = [slot for slot in self.slots if _use_count(slot.handle) > slot.alone]
        for slot in alive:
            slot.kept += 1
            if not slot.move_others(self.recording.allocate_again):
                self.valid = False
        if not self.valid:  # so that the next recording lasts
            for slot in alive:
                slot.kept = MOST_MOVES

    def note_results(self, made: list[Any], given: Sequence[torch.Tensor], kept: Sequence[int]) -> None:
        """Find out in whose memory each result lies. `made` is used up. `kept` are the slots' numbers in an earlier one."""
        places = {t.untyped_storage().data_ptr(): k for k, t in reversed([*enumerate(given)]) if t.numel()}
        objects = {id(t): k for k, t in enumerate(given)}
        slots: dict[int, list[torch.Tensor]] = {}
        for result in made:
            if not isinstance(result, torch.Tensor):
                self.results.append(Plain(result))
            elif id(result) in objects:
                self.results.append(Given(objects[id(result)]))
            elif result.numel() and (at := result.untyped_storage().data_ptr()) in places:
                position = places[at]
                like = torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device="meta")
                distance = result.data_ptr() - given[position].data_ptr()
                self.results.append(Given(position, _flagged(like, result), distance))
            else:
                key = result.untyped_storage()._cdata
                slots.setdefault(key, []).append(result)
                self.results.append((key, len(slots[key]) - 1))
        numbers = {key: number for number, key in enumerate(slots)}
        self.results = [(numbers[r[0]], r[1]) if type(r) is tuple else r for r in self.results]
        result = None
        made.clear()  # the slots are to be the only ones who have these tensors
        self.slots = [Slot(templates, k) for templates, k in zip(slots.values(), [*kept, *[0] * len(slots)], strict=False)]

    def results_for(self, tensors: Sequence[torch.Tensor], detach: bool) -> list[Any]:
        """New tensors on the memory of the results."""
        found: list[Any] = []
        made = [slot.results() for slot in self.slots]
        for result in self.results:
            if type(result) is tuple:
                found.append(made[result[0]][result[1]])
            elif type(result) is Plain:
                found.append(result.value)
            else:
                found.append(result.result(tensors[result.position], detach))
        return found


class Parts(NamedTuple):
    """A function in the forms that recording needs, all of (tensors, *numbers): `whole` does everything; `host` what runs on
    the CPU, and returns the scalar arguments of the kernels on the GPU; `device` the rest. Random numbers are drawn on the
    GPUs `drawing`."""

    whole: Callable[..., Any]
    host: Callable[..., tuple[Any, ...]]
    device: Callable[..., list[Any]]
    drawing: Sequence[int] = ()


class Recorder(NamedTuple):
    """How graphs are made on a device. `begin()` is a new recording for the current stream, with the methods of
    `CudaRecording`; `stream()` identifies that stream. `busy()`: the program itself is recording."""

    begin: Callable[[], Any]
    stream: Callable[[], Hashable]
    busy: Callable[[], bool]


class Replayed:
    """A function of (tensors, *numbers) that returns a list, replayed as a graph."""

    def __init__(
        self, name: str, parts: Parts, recorder: Recorder, place: Callable[[Any], None], picks: Sequence[int], checked: int,
        copied: Sequence[bool], changed: Sequence[bool], *, detach: bool, consumes: bool, regrades: bool = False,
    ) -> None:  # fmt: skip
        """`place(addresses)` writes the addresses of the `checked` tensors into the kernels' tables; `picks` are the
        positions of the function's tensors among these. `copied` says which tensors are copied in, and `changed` which the
        graph changes. `detach`: results that are inputs are new objects. `consumes`: the list of tensors is to be emptied.
        `regrades`: the caller lets go of gradients, which are results of the last call and would have to move otherwise.
        """
        self.name = name
        self.parts = parts
        self.recorder = recorder
        self.place = place
        self.picks = np.array(picks, dtype=np.int64)
        self.checked = checked
        self.copied = [copy and not change for copy, change in zip(copied, changed, strict=True)]
        self.changed = changed
        self.detach = detach
        self.consumes = consumes
        self.regrades = regrades
        #: What has the checked tensors' addresses after each check, if anything does (see `launch.tensor_check`).
        self.check: Any = None
        self.recordings: dict[Hashable, list[Recorded]] = {}
        self.reason = ""
        self._warm = False
        self._displaced = False
        self._missed: Any = None
        self._misses = 0
        self._kept: list[int] = []
        #: Whether what runs on the CPU needs the tensors themselves, and not only what was written into tables.
        self.host_needs_tensors = True
        self._last: Recorded | None = None
        self._last_stream: Hashable = None

    def ready(self) -> bool:
        """Whether a call may do without its tensors, given None, if they are those of the last call that was given them."""
        last = self._last
        return last is not None and last.valid and self._last_stream == self.recorder.stream() and not self.recorder.busy()

    def __call__(self, tensors: list[Any] | None, *numbers: Any) -> list[Any]:
        if tensors is None:
            return self._again(numbers)
        self._last = None
        if self.reason or self.recorder.busy():
            return self._as_it_is(tensors, numbers)
        if not self._warm:  # PyTorch's operators and libraries prepare themselves in their first call
            self._warm = True
            return self._as_it_is(tensors, numbers)
        with _lock, torch.no_grad():
            return self._replayed(tensors, numbers)

    def _as_it_is(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        if self._displaced:
            self.place(self._addresses(tensors))
        result: list[Any] = self.parts.whole(tensors, *numbers)
        return result

    def _addresses(self, tensors: Sequence[torch.Tensor]) -> Any:
        if self.check is not None:
            return self.check.addresses
        found = np.zeros(max(self.checked, 1), dtype=np.int64)
        found[self.picks] = [t.data_ptr() for t in tensors]
        return found

    def _replayed(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        addresses = self._addresses(tensors)
        stream = self.recorder.stream()
        known = self.recordings.setdefault(stream, [])
        recorded = next((r for r in known if r.fits(addresses)), None)
        if recorded is None and not self._worth_recording(known, addresses, tensors):
            return self._as_it_is(tensors, numbers)
        self._missed = None
        if recorded is not None:
            _free_results_since(recorded, _in_order[stream])
            if not recorded.valid:
                known.remove(recorded)
                self._kept = [slot.kept for slot in recorded.slots]
                recorded = None
        began = [(gpu, offset_of(gpu)) for gpu in self.parts.drawing] if recorded is None else []
        scalars = self.parts.host(tensors, *numbers)
        if recorded is None:
            try:
                recorded = self._record(tensors, numbers, np.array(addresses))
            except Exception as error:  # of any kind: CUDA's refusals come as errors of operators
                let_through(error)
                return self._without(error, tensors, numbers, began)
            _in_order.setdefault(stream, []).append(weakref.ref(recorded))
            known.insert(0, recorded)
            if len(known) > MOST_RECORDINGS:
                known.pop()
        else:
            self._copy_in(recorded, tensors)
            if recorded.note_changes is not None:
                recorded.note_changes(tensors)
        recorded.recording.replay(scalars)
        if not self.host_needs_tensors and not self.regrades and recorded.needs_no_tensors():
            self._last, self._last_stream = recorded, stream
        results = recorded.results_for(tensors, self.detach)
        if self.consumes:
            tensors.clear()
        return results

    def _again(self, numbers: tuple[Any, ...]) -> list[Any]:
        """Replay what was replayed last: it reads and writes the same tensors."""
        with _lock:
            last = self._last
            assert last is not None
            _free_results_since(last, _in_order[self._last_stream])
            last.recording.replay(self.parts.host(None, *numbers))
            return [result.value for result in last.results]

    def _without(
        self, error: Exception, tensors: list[Any], numbers: tuple[Any, ...], began: list[tuple[int, int | None]]
    ) -> list[Any]:
        """Go on without graphs after a recording failed. What runs on the CPU has run; random numbers were drawn from where
        generators `began`."""
        cause = error.__cause__ or error  # an operator that raises asks for the program to run natively
        self._give_up(f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}")
        self.place(self._addresses(tensors))
        try:
            return self.parts.device(tensors, *numbers)
        except BaseException:
            for gpu, offset in began:
                move_to(gpu, offset)
            raise

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.recordings.clear()
        logs.log.warning("no CUDA graph for %s: %s", self.name, reason)

    # recording ----------------------------------------------------------------------------------------------------

    def _worth_recording(self, known: list[Recorded], addresses: Any, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether to record for inputs at these addresses, for which there is no recording. Inputs that are somewhere else
        each time are copied from then on."""
        bound = config.cuda_graph_bytes
        if bound and GraphMemory.held >= bound:
            self._give_up(f"graphs hold {GraphMemory.held >> 20} MB, and config.cuda_graph_bytes allows {bound >> 20} MB")
            return False
        if not known:
            return True
        before, self._missed = self._missed, np.array(addresses)
        if before is None:
            return False
        moved = [k for k, at in enumerate(self.picks) if before[at] != addresses[at] and not self.copied[k]]
        if not moved:
            return True
        self._misses += 1
        if any(self.changed[k] for k in moved):
            if self._misses > 2 * MOST_RECORDINGS:
                self._give_up("a tensor that it changes is another one in each call")
            return False
        if sum(tensors[k].nbytes for k in moved) > MOST_COPIED:
            if self._misses > 2 * MOST_RECORDINGS:
                self._give_up("large inputs are other ones in each call")
            return False
        for k in moved:
            self.copied[k] = True
        return True

    def _record(self, tensors: Sequence[torch.Tensor], numbers: tuple[Any, ...], addresses: Any) -> Recorded:
        given = list(tensors)
        copies = []
        for k, tensor in enumerate(tensors):
            meta = TensorMeta(tensor.dtype, tensor.shape, tensor.stride(), tensor.device)
            if self.copied[k] and not on_cpu(tensor) and not meta.is_expanded:
                given[k] = maker(meta)()
                given[k].copy_(tensor)
                copies.append((k, given[k]))
                addresses[self.picks[k]] = given[k].data_ptr()
        self._displaced = True
        self.place(addresses)
        before = [_version(t) for t in given]
        recording = self.recorder.begin()
        made = recording.capture(lambda: self.parts.device(list(given), *numbers))
        copied = {k for k, _ in copies}
        fixed = self.picks[[k for k in range(len(given)) if k not in copied and not on_cpu(given[k])]]
        recorded = Recorded(recording, fixed, addresses, copies)
        times = [_version(tensor) - count for tensor, count in zip(given, before, strict=True)]
        if any(times):
            recorded.note_changes = change_notes({k: more for k, more in enumerate(times) if more})
        recorded.note_results(made, given, self._kept)
        logs.count("cuda graphs")
        return recorded

    # replaying ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _copy_in(recorded: Recorded, tensors: Sequence[torch.Tensor]) -> None:
        if len(recorded.copied) == 1:
            recorded.copies[0].copy_(tensors[recorded.copied[0]])
        elif recorded.copied:
            torch._foreach_copy_(recorded.copies, [tensors[k] for k in recorded.copied])


def _free_results_since(recorded: Recorded, in_order: list[weakref.ref[Recorded]]) -> None:
    """Free the results of a recording, and of those made after it on the same stream."""
    if in_order[-1]() is recorded and not recorded.slots:
        return
    for k in range(len(in_order) - 1, -1, -1):
        other = in_order[k]()
        if other is None:
            del in_order[k]
            continue
        other.free_results()
        if other is recorded:
            return


def on_cpu(tensor: torch.Tensor) -> bool:
    """Whether kernels of the graph do not read it."""
    return tensor.device.type == "cpu"


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
