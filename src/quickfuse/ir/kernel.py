"""Fused and grouped loops: the input of the code generators and the launchers.

A `KernelBody` is code without sizes: it is hashable, and is what kernels are compiled and cached by. A `KernelCall` runs
one body on any number of members (say, one for each parameter of a model), in one launch. Each member is a row of 64-bit
words in a table that the kernel reads:

    sizes[0] .. sizes[ndim-1] | for each slot: its address, then its dynamic strides in axis order

Slots `by_value` have no words in the row: their values stand in a second table, one row a member and one word a slot,
which is uploaded for every launch. Strides are in elements. A slot's stride class for an axis is 0 or 1, where that is
known when the kernel is compiled, or `None` for a stride that is read from the row.

Axes that are parallel come first and count *rows*. A row is gone through along the other axes, in passes, each of which may
use what earlier ones have reduced. Softmax has three passes:

    r0 maximum= s0
    r1 sum= f64(exp(sub(s0, r0)))
    s1 = div(exp(sub(s0, r0)), f32(r1))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

import torch

from .expr import Const, Expr, Index, Op, rewritten, short, statements, walk
from .loop import Buffer, Extern, HostScalar, Program, Stored, StoreKind
from .products import SmallProduct
from .slots import ArgScalar, Reduced, RowLength, Slot, SlotLoad, SlotPlace, SlotPrevious


class Axis(Enum):
    """What the iterations of an axis have to do with each other."""

    PARALLEL = "parallel"  # nothing: threads share them
    REDUCE = "reduce"  # they are combined, in any order
    SCAN = "scan"  # one comes after the other: scans and scatters; and what operands lie along, for vectors across it


class Form(Enum):
    """How a program on a GPU goes through its rows."""

    WHOLE = "whole"  # a tile has whole rows: each element is loaded once, whatever the number of passes
    LOOPED = "looped"  # each pass is a loop over tiles, with an accumulator for each element of a tile
    SPREAD = "spread"  # one tile: for what is stored in any order, scatters and transposes


class Access(IntEnum):
    """Which accesses the code of a kernel on a GPU has, beside narrow ones for operands that allow no others."""

    NARROW = 0  # no others
    SHIFTED = 1  # of 128 bits a thread, from the first address in each row that is a multiple of it
    WIDE = 2  # of 128 bits a thread, where all addresses and strides are multiples of that
    FULL = 3  # the same, where tiles have no columns beyond the end of a row: nothing is masked


@dataclass(frozen=True, slots=True, eq=False)
class KernelStore(Stored):
    """What is done with one value, as `Store` says it of a program's loops.

    `slot` is the operand that it goes to, for all but reductions and scans; `combine` says how these combine values, as in
    `Store.combine`. `offset` (int64) and `inside` (bool) are given for scatters.
    """

    kind: StoreKind
    value: Expr
    slot: int = -1
    combine: str = ""
    offset: Expr | None = None
    inside: Expr | None = None

    @property
    def operation(self) -> str:
        """What combines two values: an operation of `SCALAR_OPS`."""
        return "add" if self.combine == "sum" else self.combine

    @property
    def target(self) -> str:
        """What stands left of the value in a printed body; `{}` is the number of the store."""
        if self.slot < 0:
            return f"r{{}} {self.combine}="
        where = "" if self.offset is None else f"[{self.offset} if {self.inside}]"
        return f"s{self.slot}{where} {'or' if self.kind is StoreKind.FLAG else ''}="


@dataclass(frozen=True, eq=False)
class KernelBody:
    """What is computed for one index of one member. Two equal bodies share compiled code.

    `axes`: what each loop axis is, parallel ones first, the last one innermost; none for one evaluation a member.
    `vector`: the axis along which vectors lie, or -1 for one element at a time. On a GPU it is the last one, or where
    nothing is reduced another one along which operands lie in memory, too: tiles of both are handled then.
    `scalars`: types (float64, int64 or bool) of the scalar arguments.
    `stores`: what is computed; reductions and scans come first, and use only earlier ones. Leaves of values are `SlotLoad`,
    `SlotPlace`, `SlotPrevious`, `ArgScalar`, `Const`, `Index`, `Reduced` and `RowLength`. All loads of an index happen
    before its stores. Distinct slots of a member do not overlap in memory.
    """

    device_type: str
    axes: tuple[Axis, ...]
    vector: int
    slots: tuple[Slot, ...]
    scalars: tuple[torch.dtype, ...]
    stores: tuple[KernelStore, ...]

    @property
    def ndim(self) -> int:
        return len(self.axes)

    @cached_property
    def parallel(self) -> range:
        """The axes that count rows."""
        return range(self.axes.count(Axis.PARALLEL))

    @property
    def inner(self) -> range:
        """The axes that a row is gone through along."""
        return range(len(self.parallel), self.ndim)

    @property
    def tiled(self) -> bool:
        """Whether a program on a GPU handles a tile of rows and columns."""
        return bool(self.inner) or -1 < self.vector < self.ndim - 1

    @property
    def row_axes(self) -> tuple[int, ...]:
        """The axes that count the rows of tiles, the innermost last."""
        if self.inner:
            return tuple(self.parallel)
        last = self.ndim - 1
        return (*(k for k in range(last) if k != self.vector), *([self.vector] if self.vector < last else []))

    @property
    def column_axes(self) -> tuple[int, ...]:
        """The axes that count the columns of tiles, the innermost last."""
        return tuple(self.inner) or (self.ndim - 1,)

    @property
    def across(self) -> bool:
        """Whether the elements of a vector belong to different rows, which have several elements."""
        return bool(self.inner) and self.vector in self.parallel

    @property
    def ordered(self) -> bool:
        """Whether rows are gone through in order."""
        return Axis.SCAN in self.axes

    @cached_property
    def roots(self) -> list[Expr]:
        """All values that are computed, in the order of the stores."""
        return [root for store in self.stores for root in store.roots]

    @cached_property
    def moving(self) -> list[Slot]:
        """The operands with an element for each column of a tile, and where nothing is reduced for each row, too."""

        def moves(slot: Slot, axes: Sequence[int]) -> bool:
            return any(slot.strides[axis] != 0 for axis in axes)

        slots = [slot for slot in self.slots if not slot.by_value and moves(slot, self.column_axes)]
        return slots if self.inner or not self.row_axes else [slot for slot in slots if moves(slot, self.row_axes)]

    @property
    def is_narrow(self) -> bool:
        """Whether all operands that move have at most 16 bits."""
        return all(slot.dtype.itemsize <= 2 for slot in self.moving)

    def once_a_row(self, slot: int) -> bool:
        """Whether a slot does not move within a row."""
        return bool(self.inner) and not any(self.slots[slot].strides[axis] != 0 for axis in self.inner)

    @cached_property
    def passes(self) -> list[list[int]]:
        """The stores (by number) of each way through a row, as few as there can be. What is assigned once a row comes after
        the last of them, and is not in it."""
        if self.ordered or not self.inner:
            return [[*range(len(self.stores))]]
        pass_of = _PassOrder(self).of_store
        count = 1 + max(pass_of.values(), default=-1)
        return [[k for k, number in pass_of.items() if number == one] for one in range(count)]

    @cached_property
    def last(self) -> list[int]:
        """The stores (by number) that happen once a row, after all passes."""
        reduces = self.inner and not self.ordered
        return [k for k, s in enumerate(self.stores) if reduces and s.kind is StoreKind.ASSIGN and self.once_a_row(s.slot)]

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A flat tuple that equal bodies share."""
        return self.key_with(lambda constant: (repr(constant.value), constant.dtype))  # 0.0 equals -0.0, and NaN nothing

    def key_with(self, constant: Callable[[Const], Any]) -> tuple[Any, ...]:
        """A flat tuple that bodies share which are equal but for constants, with what is given in place of these.

        Values are graphs with shared nodes: comparing or hashing them as trees would take exponential time.
        """
        numbers: dict[Any, int] = {}
        number_of: dict[int, int] = {}
        for node in walk(*self.roots):
            entry: Any = node
            if isinstance(node, Op):
                entry = (node.name, node.dtype, *(number_of[id(arg)] for arg in node.args))
            elif isinstance(node, Const):
                entry = constant(node)
            number_of[id(node)] = numbers.setdefault(entry, len(numbers))
        stores = tuple([(s.kind, s.slot, s.combine, *(number_of[id(root)] for root in s.roots)) for s in self.stores])
        return (self.device_type, self.axes, self.vector, self.slots, self.scalars, tuple(numbers), stores)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelBody) and self.key == other.key

    def with_leaves(self, leaf: Callable[[Expr], Expr], **changed: Any) -> KernelBody:
        """The body with `leaf(node)` in place of each leaf of its values, and with other fields."""
        made = rewritten(self.roots, leaf)
        return replace(self, stores=tuple([s.rewritten(lambda root: made[id(root)]) for s in self.stores]), **changed)

    @property
    def row_words(self) -> int:
        return self.ndim + sum(slot.words for slot in self.slots)

    @cached_property
    def _slot_words(self) -> list[int]:
        return list(itertools.accumulate([slot.words for slot in self.slots], initial=self.ndim))

    def slot_word(self, slot: int) -> int:
        """The row index of a slot's address; its dynamic strides follow."""
        return self._slot_words[slot]

    def stride_word(self, slot: int, axis: int) -> int:
        """The row index of a dynamic stride."""
        return self._slot_words[slot] + 1 + sum(s is None for s in self.slots[slot].strides[:axis])

    @cached_property
    def lies_across(self) -> bool:
        """Whether neighbours in memory belong to different rows, for what changes along both."""
        if not self.parallel or not self.inner:
            return False
        row, column = self.parallel[-1], self.inner[-1]
        rows = [slot.strides for slot in self.slots if not slot.by_value and slot.strides[row] != 0]
        moving = [strides for strides in rows if any(strides[axis] != 0 for axis in self.inner)]
        along, across = (sum(strides[axis] == 1 for strides in moving) for axis in (column, row))
        return across > along

    def outer_axes(self, form: Form) -> tuple[int, ...]:
        """The parallel axes along which a tile on a GPU does not extend. Its rows are neighbours in memory then, and what
        does not change from one to the next is computed once for all of them."""
        return tuple(self.parallel)[:-1] if self.lies_across and form is not Form.SPREAD else ()

    def aligned_words(self, form: Form) -> list[int]:
        """The words of a row that must be multiples for accesses of 128 bits in tiles: of slots that are contiguous along
        one of the two innermost axes (of the rows, and within a row) the address and the other strides, and the size of an
        axis where tiles go beyond its end."""
        words: set[int] = set()
        row, column = self.row_axes[-1:], self.column_axes[-1]
        continued = [*row] if len(self.row_axes) - len(self.outer_axes(form)) > 1 else []
        if form is Form.WHOLE or len(self.column_axes) > 1:
            continued.append(column)
        for k, slot in enumerate(self.slots):
            along = [axis for axis in (*row, column) if not slot.by_value and slot.strides[axis] == 1]
            if along:
                others = [axis for axis, stride in enumerate(slot.strides) if stride is None]
                words.update([self.slot_word(k), *(self.stride_word(k, axis) for axis in others)])
                words.update(axis for axis in along if axis in continued)
        return sorted(words)

    @cached_property
    def shifted_slots(self) -> list[int]:
        """The slots whose rows may begin at any address and are contiguous, the one with the narrowest type first: rows are
        gone through by what is a multiple of 128 bits away from any address that is. None where the order of elements
        counts, rows have several axes, or neighbours in memory belong to different rows."""
        column = self.column_axes[-1]
        moving = [(k, slot) for k, slot in enumerate(self.slots) if not slot.by_value and slot.strides[column] != 0]
        across = any(slot.strides[axis] == 1 for _, slot in moving for axis in self.row_axes)
        if len(self.column_axes) != 1 or self.ordered or across:
            return []
        slots = [
            k for k, slot in moving
            if slot.strides[column] == 1 and all(slot.strides[axis] is None for axis in self.row_axes)
        ]  # fmt: skip
        return sorted(slots, key=lambda k: self.slots[k].dtype.itemsize)

    @cached_property
    def elements_of_128_bits(self) -> int:
        """How many elements of the narrowest type among what is contiguous a thread may access at a time."""
        vectors = (slot.dtype.itemsize for slot in self.slots if not slot.by_value and 1 in slot.strides)
        return 16 // min(vectors, default=1)

    def multiple_of(self, word: int) -> int:
        """What a word of a row must be divisible by for accesses of 128 bits: addresses count bytes, the others elements."""
        return 16 if word in self._slot_words else self.elements_of_128_bits

    @property
    def value_words(self) -> int:
        return sum(slot.by_value for slot in self.slots)

    def value_word(self, slot: int) -> int:
        """The index of a `by_value` slot in its member's row of the value table."""
        return sum(s.by_value for s in self.slots[:slot])

    def __str__(self) -> str:
        lines = [
            f"# s{k}: {short(s.dtype)} {s.access} strides {s.strides}{' by value' if s.by_value else ''}"
            for k, s in enumerate(self.slots)
        ]
        lines += ["# in order:"] if self.ordered else []
        for numbers in [*self.passes, self.last]:
            lines += statements((self.stores[k].target.format(k), self.stores[k].value) for k in numbers)
        return "\n".join(lines)


class _PassOrder:
    """The pass of each reduction and store: the first in which all is known that it uses."""

    def __init__(self, body: KernelBody) -> None:
        self.of_store: dict[int, int] = {}
        self._loads: dict[int, list[int]] = {}  # store -> the slots that its value loads
        self._last_load: dict[int, int] = {}  # slot -> the last pass that loads it
        for k, store in enumerate(body.stores):
            if k not in body.last:
                self._add(k, store)
        self._delay(body.stores)

    def _add(self, k: int, store: KernelStore) -> None:
        nodes = walk(*store.roots)
        number = max([self.of_store[n.reduction] + 1 for n in nodes if isinstance(n, Reduced)], default=0)
        self.of_store[k], self._loads[k] = number, [n.slot for n in nodes if isinstance(n, (SlotLoad, SlotPlace))]
        self._note_loads(k)

    def _note_loads(self, k: int) -> None:
        for slot in self._loads[k]:
            self._last_load[slot] = max(self._last_load.get(slot, 0), self.of_store[k])

    def _delay(self, stores: tuple[KernelStore, ...]) -> None:
        """What is updated in place is stored when it is not read any more, which may be a pass later."""
        moved = True
        while moved:
            moved = False
            for k, number in self.of_store.items():
                last = self._last_load.get(stores[k].slot, 0)
                if last > number:
                    self.of_store[k], moved = last, True
                    self._note_loads(k)


@dataclass(eq=False, slots=True)
class Member:
    """One row of a kernel call: the buffers behind the slots, each with an offset in elements and all its strides."""

    sizes: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)


@dataclass(eq=False, slots=True)
class KernelCall:
    """One launch: a body over its members. `scalars[k]` is the host scalar passed as argument k."""

    body: KernelBody
    members: list[Member]
    scalars: list[HostScalar]
    device: torch.device
    name: str = "kernel"

    @property
    def buffers(self) -> dict[Buffer, None]:
        """The buffers that it reads or writes, in order."""
        return dict.fromkeys([buffer for member in self.members for buffer in member.buffers])

    @property
    def changed_inputs(self) -> dict[Buffer, None]:
        """The program's inputs that it writes, in order."""
        slots = [k for k, slot in enumerate(self.body.slots) if "w" in slot.access]
        stored = [member.buffers[k] for member in self.members for k in slots]
        return dict.fromkeys([buffer for buffer in stored if buffer.kind == "input"])

    def __str__(self) -> str:
        sizes = sorted({m.sizes for m in self.members})
        shown = ", ".join(map(str, sizes[:4])) + (", ..." if len(sizes) > 4 else "")
        args = ", ".join(f"a{k}={s.name}" for k, s in enumerate(self.scalars))
        return f"{self.name}: {len(self.members)} members of sizes {shown} on {self.device} ({args})\n{self.body}"


@dataclass(eq=False, slots=True)
class Schedule:
    """What runs, in order, for a lowered program. `temps` are allocated once (0-dim host numbers) or for each call,
    but for those that a call of PyTorch makes and a kernel then changes.
    `recorded`: what runs on a GPU is replayed as a CUDA graph."""

    program: Program
    steps: list[KernelCall | Extern] = field(default_factory=list)
    temps: list[Buffer] = field(default_factory=list)
    recorded: bool = False

    @property
    def launched(self) -> list[KernelCall | Extern]:
        """The steps that are kernels, in order: those of loops, and small products."""
        return [step for step in self.steps if is_launched(step)]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


def is_launched(step: KernelCall | Extern) -> bool:
    """Whether a step is a kernel, not a call of PyTorch."""
    return isinstance(step, KernelCall) or type(step.target) is SmallProduct


def row_template(body: KernelBody, member: Member) -> list[Any]:
    """A member's row with 0 in place of addresses."""
    row: list[Any] = list(member.sizes)
    for slot, strides in zip(body.slots, member.strides, strict=True):
        if slot.by_value:
            continue
        row.append(0)
        row.extend(s for s, known in zip(strides, slot.strides, strict=True) if known is None)
    return row


__all__ = [
    "ArgScalar", "Axis", "Const", "Form", "Index", "KernelBody", "KernelCall", "KernelStore", "Member", "Op", "Reduced",
    "RowLength",
    "Schedule", "Slot", "SlotLoad", "SlotPlace", "SlotPrevious", "StoreKind", "is_launched", "row_template", "walk",
]  # fmt: skip
