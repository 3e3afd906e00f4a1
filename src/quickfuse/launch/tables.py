"""Tables that kernels read: one row a member, with sizes, addresses and strides; written when an address changes."""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch

from ..ir.kernel import KernelCall, Schedule, row_template
from ..ir.loop import Buffer, Extern, buffers_in
from ..ir.products import storing_form
from ..ir.target import CPU
from ..ir.values import TensorMeta
from . import cpu, memory
from .arena import Arena
from .versions import change_notes, take_back


class Placer:
    """Knows where each buffer of a schedule lives, and keeps the kernels' tables up to date.

    `position` gives, for each input buffer, its index among the checked tensors. Small temporaries live in one array of
    64-bit cells for the life of the specialisation: to allocate one takes as long as many a kernel.
    """

    #: What makes tensors for the other temporaries and outputs.
    maker = staticmethod(memory.maker)

    def __init__(self, schedule: Schedule, position: dict[Buffer, int], checked: list[TensorMeta]) -> None:
        self.tables: list[Any] = []
        self.arena = Arena(schedule)
        #: Where the tensors that each call makes lay in the last one, by their numbers.
        self.made_at: list[int] = []
        self._numbers: dict[Buffer, int] = {}
        self.overlapping = False
        self.position = position
        self._cells: dict[Buffer, int] = {}
        for buffer in _by_value_order(schedule):
            self._cells.setdefault(buffer, len(self._cells))
        if (flag := schedule.program.flag) is not None:
            self._cells[flag] = len(self._cells)
        count = self._add_small_temporaries(schedule)
        self.cells = np.zeros(max(count, 1), dtype=np.int64)
        self._span_list = [m.span_bytes for m in checked]
        self._spans = np.array(self._span_list or [0], dtype=np.int64)
        #: Where the kernels' tables have few addresses of inputs, all of these: the memory, and as in `MemberTable`.
        self._few: list[tuple[memoryview, int, int, int]] | None = None
        self._others: list[Any] = []
        self.written = {position[b] for b in _written_inputs(schedule)}
        self.changes = dict.fromkeys(sorted(self.written), 1)
        self.note_changes = change_notes(self.changes)
        self._mutated = np.zeros(len(checked) or 1, dtype=bool)
        self._mutated[[*self.written]] = True

    @property
    def is_needed(self) -> bool:
        """Whether addresses of inputs are asked for: for the tables of kernels, or to see which memory overlaps."""
        return bool(self.written or (self.tables and self.position))

    def count_changes(self, counts: dict[int, int]) -> None:
        """Let `note_changes` know how often the program changes the inputs, by their positions: other than once. No kernel
        writes to an input that holds in the end what it held before, but another one in its memory was changed between."""
        self.changes = {**dict.fromkeys(sorted(self.written), 0), **counts}
        self.note_changes = change_notes(self.changes)
        self.written |= {k for k, count in counts.items() if count}
        self._mutated[[*self.written]] = True

    def take_back_changes(self, tensors: list[Any]) -> None:
        """Undo `note_changes`: the kernels have not changed anything."""
        take_back(self.changes, tensors)

    def _add_small_temporaries(self, schedule: Schedule) -> int:
        """Give them cells, if possible those of others that are not needed any more. Returns how many cells there are."""
        products = {step for step in schedule.steps if isinstance(step, Extern) and storing_form(step) is not None}
        made = {b for step in products for b in step.outputs if b.kind == "temp"}
        passed = _passed_to_pytorch(schedule, products)  # these are tensors, made in each call
        small = {
            b for b in (*schedule.temps, *made) if b.meta.device.type == "cpu" and b.meta.span_bytes <= _SMALL
        } - passed
        last: dict[Buffer, int] = {}
        first: dict[Buffer, int] = {}
        for number, step in enumerate(schedule.steps):
            for buffer in step.buffers:
                if buffer in small and buffer not in self._cells:
                    first.setdefault(buffer, number)
                    last[buffer] = number
        count = -(-len(self._cells) // _LINE) * _LINE
        free: dict[int, list[tuple[int, int]]] = {}  # size -> (last use, cell), in order of last use
        for buffer in first:
            size = max(-(-buffer.meta.span_bytes // (8 * _LINE)), 1) * _LINE
            waiting = free.setdefault(size, [])
            if waiting and waiting[0][0] < first[buffer]:
                _, cell = heapq.heappop(waiting)
            else:
                cell, count = count, count + size
            self._cells[buffer] = cell
            heapq.heappush(waiting, (last[buffer], cell))
        return count

    def is_resident(self, buffer: Buffer) -> bool:
        """Whether a temporary has its memory already."""
        return buffer in self._cells or buffer in self.arena.offsets

    def made_number(self, buffer: Buffer) -> int:
        """The index in `made_at` of a tensor that is made in each call."""
        if buffer not in self._numbers:
            self._numbers[buffer] = len(self.made_at)
            self.made_at.append(0)
        return self._numbers[buffer]

    def move_arena(self, base: int) -> None:
        """Write the addresses of what lies in the arena into all tables."""
        self.arena.base = base
        for table in self.tables:
            table.move_arena(base)

    @property
    def resident(self) -> dict[Buffer, int]:
        """The buffers that have their memory already, and at which byte of the cells."""
        return {buffer: 8 * cell for buffer, cell in self._cells.items()}

    def resident_tensor(self, buffer: Buffer) -> torch.Tensor:
        """A tensor in the memory of such a buffer."""
        meta = buffer.meta
        start = 8 * self._cells[buffer]
        with torch.inference_mode(False):  # a tensor for calls in any mode
            memory = torch.from_numpy(self.cells).view(torch.uint8)[start : start + meta.span_bytes]
            return memory.view(meta.dtype).as_strided(meta.shape, meta.stride)

    def cell_address(self, buffer: Buffer) -> int:
        return int(self.cells.ctypes.data) + 8 * self._cells[buffer]

    def cell_index(self, buffer: Buffer) -> int:
        return self._cells[buffer]

    def place(self, check: Any) -> None:
        """Write the inputs' addresses that a check found into all tables, and see whether inputs overlap."""
        if self._few is None:
            few = {t: [(t.memory, *where) for where in t.few] for t in self.tables if isinstance(t, AddressTable) and t.few}
            self._others = [table for table in self.tables if table.has_inputs and table not in few]
            self._few = [where for places in few.values() for where in places]
        addresses = check.addresses
        known = addresses.data
        for words, word, source, offset in self._few:
            words[word] = known[source] + offset
        for table in self._others:
            table.place(addresses)
        if self.written:
            self.overlapping = self._may_overlap(known) and self._overlap(addresses)
        check.unplaced[0] = 0

    def _may_overlap(self, addresses: memoryview) -> bool:
        """Whether any inputs overlap, where they are few."""
        if len(addresses) > _FEW_WORDS:
            return True
        end = -1
        for start, span in sorted(zip(addresses, self._span_list, strict=True)):
            if start < end:
                return True
            end = start + span
        return False

    def _overlap(self, addresses: np.ndarray) -> bool:
        """Whether memory that a kernel writes belongs to two inputs."""
        order = np.argsort(addresses)
        starts = addresses[order]
        ends = np.maximum.accumulate(starts + self._spans[order])
        clashes = np.flatnonzero(starts[1:] < ends[:-1])
        if not len(clashes):
            return False
        spans, mutated = self._spans[order], self._mutated[order]
        for later in (clashes + 1).tolist():
            start, end = starts[later], starts[later] + spans[later]
            hit = (starts < end) & (starts + spans > start) & (spans > 0)
            hit[later] = False
            if spans[later] and hit.any() and (mutated[later] or mutated[hit].any()):
                return True
        return False


class AddressTable:
    """Which of a kernel's words hold which buffers' addresses. `places` has their numbers, the buffers, and what is to be
    added to the addresses, in bytes."""

    def __init__(self, words: np.ndarray, places: Iterable[tuple[int, Buffer, int]], placer: Placer) -> None:
        self._flat = words
        self._dynamic: dict[Buffer, list[tuple[int, int]]] = {}
        numbers: list[int] = []
        sources: list[int] = []
        offsets: list[int] = []
        in_arena: list[tuple[int, int]] = []
        for at, buffer, extra in places:
            if buffer in placer.position:
                numbers.append(at)
                sources.append(placer.position[buffer])
                offsets.append(extra)
            elif buffer in placer.arena.offsets:
                in_arena.append((at, placer.arena.offsets[buffer] + extra))
            elif placer.is_resident(buffer):
                self._flat[at] = placer.cell_address(buffer) + extra
            else:
                self._dynamic.setdefault(buffer, []).append((at, extra))
        self._words = np.array(numbers, dtype=np.int64)
        self._sources = np.array(sources, dtype=np.int64)
        self._offsets = np.array(offsets, dtype=np.int64)
        self.has_inputs = bool(numbers)
        #: Where they are few, for the placer to write: numpy takes more than a microsecond to begin with.
        self.few = [*zip(numbers, sources, offsets, strict=True)] if len(numbers) <= _FEW_WORDS else []
        self.memory = self._flat.data
        self._in_arena = np.array(in_arena, dtype=np.int64).reshape(-1, 2)

    def place(self, addresses: np.ndarray) -> None:
        if not self.few:
            self._flat[self._words] = addresses[self._sources] + self._offsets
            return
        known = addresses.data
        for word, source, offset in self.few:
            self.memory[word] = known[source] + offset

    def move_arena(self, base: int) -> None:
        """Write the addresses of what lies in the arena, which begins at `base` now."""
        self._flat[self._in_arena[:, 0]] = base + self._in_arena[:, 1]

    def words_of(self, buffer: Buffer) -> list[tuple[int, int]]:
        """(word, byte offset) pairs where a buffer that is made in each call has to be put."""
        return self._dynamic.get(buffer, [])


class MemberTable(AddressTable):
    """That of a kernel whose rows are those of its members."""

    def __init__(self, call: KernelCall, rows: np.ndarray, placer: Placer) -> None:
        self.rows = rows
        super().__init__(rows.reshape(-1), _places(call), placer)


def _places(call: KernelCall) -> Iterator[tuple[int, Buffer, int]]:
    """Where the addresses of operands are in the rows of a call."""
    width = call.body.row_words
    slot_words = [call.body.slot_word(k) for k in range(len(call.body.slots))]
    for index, member in enumerate(call.members):
        for slot, word, buffer, offset in zip(call.body.slots, slot_words, member.buffers, member.offsets, strict=True):
            if not slot.by_value:
                yield index * width + word, buffer, offset * slot.dtype.itemsize


class CpuCall:
    """A kernel call on the CPU, ready to run: `launch()`."""

    device_type: Literal["cpu"] = "cpu"

    def __init__(self, call: KernelCall, kernel: cpu.LoadedKernel, placer: Placer) -> None:
        count = len(call.members)
        rows = np.array([row_template(call.body, m) for m in call.members], dtype=np.int64).reshape(count, -1)
        self.table = MemberTable(call, rows, placer)
        placer.tables.append(self.table)
        units = np.array([CPU.units(call.body, m.sizes) for m in call.members], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(units)]).astype(np.int64)
        self._rows = rows
        scalars = (ctypes.c_int64 * max(len(call.scalars), 1))()
        self.integers = scalars
        self.floats = (ctypes.c_double * len(scalars)).from_buffer(scalars)
        self.arguments = (ctypes.c_int64 * 5)(
            rows.ctypes.data, self._starts.ctypes.data, count, ctypes.addressof(scalars), 1
        )
        self.words = (ctypes.c_int64 * max(rows.size, 1)).from_address(rows.ctypes.data)
        elements = sum(m.numel for m in call.members)
        self.parallel = cpu.worth_threads(elements, 1)
        block = ctypes.addressof(self.arguments)
        self.launch = kernel.bound(block, releases_gil=elements > CPU.long_running, kept=self.arguments)
        self.words_of = self.table.words_of


#: So many addresses are written one by one.
_FEW_WORDS = 12

#: Temporaries of as many bytes are kept.
_SMALL = 1 << 14
#: Cells in a cache line.
_LINE = 8


def _by_value_order(schedule: Schedule) -> Iterator[Buffer]:
    """Host numbers in the order in which GPU kernels take them, so that the cells are the kernels' value tables."""
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            slots = [k for k, slot in enumerate(step.body.slots) if slot.by_value]
            for member in step.members:
                yield from (member.buffers[k] for k in slots)


def _passed_to_pytorch(schedule: Schedule, products: set[Extern]) -> set[Buffer]:
    """Buffers that calls of PyTorch operators get, other than these products."""
    calls = [step for step in schedule.steps if isinstance(step, Extern) and step not in products]
    return {buffer for step in calls for buffer in buffers_in((step.args, step.kwargs))}


def _written_inputs(schedule: Schedule) -> set[Buffer]:
    return {b for step in schedule.steps if isinstance(step, KernelCall) for b in step.changed_inputs}
