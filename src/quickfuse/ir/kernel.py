"""Fused and grouped loops: the input of the code generators and the launchers.

A `KernelBody` is code without sizes: it is hashable, and is what kernels are compiled and cached by. A `KernelCall` runs
one body on any number of members (say, one for each parameter of a model), in one launch. Each member is a row of 64-bit
words in a table that the kernel reads:

    sizes[0] .. sizes[ndim-1] | for each slot: its address, then its dynamic strides in axis order

Slots `by_value` have no words in the row: their values stand in a second table, one row a member and one word a slot,
which is uploaded for every launch. Strides are in elements. A slot's stride class for an axis is 0 or 1, where that is
known when the kernel is compiled, or `None` for a stride that is read from the row.

A slot whose access is "flag" is a bool that stores set where their value holds, and leave as it is elsewhere.

The last `reduced` axes of a body may be reduced: then the axes before them count *rows*, which run in parallel, and a row
is gone through in passes, each of which may use what earlier ones have reduced. Softmax has three passes:

    r0 maximum= s0
    r1 sum= f64(exp(sub(s0, r0)))
    s1 = div(exp(sub(s0, r0)), f32(r1))
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from .expr import Const, Expr, Index, Op, short, statements, walk
from .loop import Buffer, Extern, HostScalar, Program


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of a body.

    `strides`: the stride class for each axis (0, 1 or None; -1 on the last one, which vectors lie along).
    `access`: "r", "w", "rw" or "flag". `by_value`: the operand is a number of the host (float64 or int64) that differs
    between the members of a GPU kernel, passed in the value table.
    """

    dtype: torch.dtype
    strides: tuple[int | None, ...]
    access: str
    by_value: bool = False

    @property
    def words(self) -> int:
        return 0 if self.by_value else 1 + sum(s is None for s in self.strides)


@dataclass(frozen=True, slots=True)
class SlotLoad(Expr):
    """The element of a slot at the current index (the leaf that stands for `Load` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"s{self.slot}"


@dataclass(frozen=True, slots=True)
class SlotPlace(Expr):
    """Where a slot is at the current index (the leaf that stands for `Place` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"&s{self.slot}"


@dataclass(frozen=True, slots=True)
class SlotPrevious(Expr):
    """What the element of a slot held that a scatter stores to (the leaf that stands for `Previous` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"previous(s{self.slot})"


@dataclass(frozen=True, slots=True)
class ArgScalar(Expr):
    """A scalar argument shared by all members (the leaf that stands for `Scalar` within a body)."""

    arg: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"a{self.arg}"


@dataclass(frozen=True, slots=True)
class Reduced(Expr):
    """What a reduction of an earlier pass gave for this row."""

    reduction: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"r{self.reduction}"


@dataclass(frozen=True, slots=True)
class RowLength(Expr):
    """How many elements a row has: the product of the sizes of the reduced axes, an int64."""

    dtype: torch.dtype = torch.int64

    def __str__(self) -> str:
        return "n"


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """All values of a row combined into one: see `Store.combine`. `value` uses reductions before this one only."""

    combine: str
    value: Expr

    @property
    def operation(self) -> str:
        """What combines two values: an operation of `SCALAR_OPS`."""
        return "add" if self.combine == "sum" else self.combine


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """A store to the element that is `offset` behind a slot's, where `inside` holds: see `Store.along`."""

    slot: int
    offset: Expr
    inside: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Pass:
    """One way through a row: the reductions (by number) and stores (by position among the body's) that happen in it."""

    reductions: tuple[int, ...]
    stores: tuple[int, ...]


#: How many elements of the last unreduced axis are one unit of work of a body with `columns`; and of one that only
#: scatters, for which longer runs of memory are all that counts.
COLUMN_BLOCK, SCATTER_BLOCK = 64, 128


@dataclass(frozen=True, slots=True, eq=False)
class KernelBody:
    """What is computed for one index of one member. Two equal bodies share compiled code.

    `ndim`: number of loop axes, the last one innermost; 0 for one evaluation a member.
    `scalars`: types (float64, int64 or bool) of the scalar arguments.
    `stores`: (slot, value) pairs. Leaves of values are `SlotLoad`, `SlotPlace`, `ArgScalar`, `Const`, `Index`, `Reduced` and
    `RowLength`. All loads of an index happen before its stores. Distinct slots of a member do not overlap in memory.
    `reduced`: how many of the last axes are reduced. A store whose slot moves along none of them happens once a row.
    `columns`: vectors lie along the last unreduced axis, not along the last reduced one.
    `serial`: nothing is reduced, but the last axis, which alone counts as reduced, is gone through in order. `Reduced` is
    what a reduction has got up to the current element, and there may be scatters.
    """

    device_type: str
    ndim: int
    slots: tuple[Slot, ...]
    scalars: tuple[torch.dtype, ...]
    stores: tuple[tuple[int, Expr], ...]
    reduced: int = 0
    columns: bool = False
    reductions: tuple[Reduction, ...] = ()
    serial: bool = False
    scatters: tuple[Scatter, ...] = ()
    _key: list[tuple[Any, ...]] = field(default_factory=list, init=False, repr=False)
    _words: list[int] = field(default_factory=list, init=False, repr=False)

    @property
    def rows_ndim(self) -> int:
        """The number of axes that are not reduced."""
        return self.ndim - self.reduced

    @property
    def roots(self) -> list[Expr]:
        """All values that are computed: of reductions, then of stores, then of scatters."""
        scattered = [root for s in self.scatters for root in (s.offset, s.inside, s.value)]
        return [*(reduction.value for reduction in self.reductions), *(value for _, value in self.stores), *scattered]

    def units(self, sizes: tuple[int, ...]) -> int:
        """Units of work of a member, which threads share: elements (one axis), iterations of all axes but the last
        (more axes), or members (no axes); with reductions rows, or blocks of columns."""
        if not self.reduced:
            return sizes[0] if len(sizes) == 1 else math.prod(sizes[:-1])
        outer = sizes[: self.rows_ndim]
        if not self.columns:
            return math.prod(outer)
        return math.prod(outer[:-1]) * -(-outer[-1] // self.column_block)

    @property
    def column_block(self) -> int:
        """How many columns are a unit of work."""
        return SCATTER_BLOCK if self.serial and not self.reductions else COLUMN_BLOCK

    def once_a_row(self, slot: int) -> bool:
        """Whether a slot does not move within a row."""
        return self.reduced > 0 and not any(s != 0 for s in self.slots[slot].strides[self.rows_ndim :])

    def passes(self) -> list[Pass]:
        """The ways through a row, as few as there can be. Stores that happen once a row come after the last."""
        order = _PassOrder()
        for reduction in self.reductions:
            order.add_reduction(reduction.value)
        for k, (slot, value) in enumerate(self.stores):
            if not self.once_a_row(slot):
                order.add_store(k, slot, value)
        order.delay_stores()
        count = 1 + max([*order.of_reduction, *order.of_store.values()], default=-1)
        return [
            Pass(
                tuple([k for k, number in enumerate(order.of_reduction) if number == one]),
                tuple([k for k, number in order.of_store.items() if number == one]),
            )
            for one in range(count)
        ]

    def key(self) -> tuple[Any, ...]:
        """A flat tuple that equal bodies share.

        Values are graphs with shared nodes: comparing or hashing them as trees would take exponential time.
        """
        if not self._key:
            numbers: dict[Any, int] = {}
            number_of: dict[int, int] = {}
            for node in walk(*self.roots):
                entry: Any = node
                if isinstance(node, Op):
                    entry = (node.name, node.dtype, *(number_of[id(arg)] for arg in node.args))
                elif isinstance(node, Const):
                    entry = (repr(node.value), node.dtype)  # 0.0 equals -0.0, and NaN nothing
                number_of[id(node)] = numbers.setdefault(entry, len(numbers))
            stores = tuple((slot, number_of[id(value)]) for slot, value in self.stores)
            reductions = tuple((r.combine, number_of[id(r.value)]) for r in self.reductions)
            scatters = tuple([(s.slot, *(number_of[id(v)] for v in (s.offset, s.inside, s.value))) for s in self.scatters])
            rows = (self.reduced, self.columns, reductions, self.serial, scatters)
            self._key.append((self.device_type, self.ndim, self.slots, self.scalars, tuple(numbers), stores, rows))
        return self._key[0]

    def __hash__(self) -> int:
        return hash(self.key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KernelBody) and self.key() == other.key()

    @property
    def row_words(self) -> int:
        return self.ndim + sum(slot.words for slot in self.slots)

    def slot_word(self, slot: int) -> int:
        """The row index of a slot's address; its dynamic strides follow."""
        if not self._words:
            self._words.extend(itertools.accumulate([s.words for s in self.slots], initial=self.ndim))
        return self._words[slot]

    @property
    def value_words(self) -> int:
        return sum(slot.by_value for slot in self.slots)

    def value_word(self, slot: int) -> int:
        """The index of a `by_value` slot in its member's row of the value table."""
        return sum(s.by_value for s in self.slots[:slot])

    def __str__(self) -> str:
        head = [
            f"# s{k}: {short(s.dtype)} {s.access} strides {s.strides}{' by value' if s.by_value else ''}"
            for k, s in enumerate(self.slots)
        ]
        return "\n".join([*head, *self._statements()])

    def _statements(self) -> list[str]:
        if self.serial:
            running = [(f"r{k} {r.combine}=", r.value) for k, r in enumerate(self.reductions)]
            scattered = [(f"s{s.slot}[{s.offset} if {s.inside}] =", s.value) for s in self.scatters]
            return ["# in order:", *statements([*running, *map(self._assignment, range(len(self.stores))), *scattered])]
        lines = []
        for one_pass in self.passes() if self.reduced else []:
            reduced = [(f"r{k} {self.reductions[k].combine}=", self.reductions[k].value) for k in one_pass.reductions]
            lines += statements([*reduced, *(self._assignment(k) for k in one_pass.stores)])
        last = [k for k, (slot, _) in enumerate(self.stores) if not self.reduced or self.once_a_row(slot)]
        return [*lines, *statements(self._assignment(k) for k in last)]

    def _assignment(self, store: int) -> tuple[str, Expr]:
        slot, value = self.stores[store]
        return f"s{slot} =", value


class _PassOrder:
    """The pass of each reduction and store: the first in which all is known that it uses."""

    def __init__(self) -> None:
        self.of_reduction: list[int] = []
        self.of_store: dict[int, int] = {}
        self._stored: dict[int, tuple[int, list[int]]] = {}  # store -> its slot, and the slots that its value loads
        self._last_load: dict[int, int] = {}  # slot -> the last pass that loads it

    def add_reduction(self, value: Expr) -> None:
        self.of_reduction.append(self._add(value)[0])

    def add_store(self, store: int, slot: int, value: Expr) -> None:
        self.of_store[store], loads = self._add(value)
        self._stored[store] = (slot, loads)

    def _add(self, value: Expr) -> tuple[int, list[int]]:
        nodes = walk(value)
        number = max([self.of_reduction[n.reduction] + 1 for n in nodes if isinstance(n, Reduced)], default=0)
        loads = [node.slot for node in nodes if isinstance(node, (SlotLoad, SlotPlace))]
        self._note_loads(loads, number)
        return number, loads

    def _note_loads(self, slots: list[int], number: int) -> None:
        for slot in slots:
            self._last_load[slot] = max(self._last_load.get(slot, 0), number)

    def delay_stores(self) -> None:
        """What is updated in place is stored when it is not read any more, which may be a pass later."""
        moved = True
        while moved:
            moved = False
            for store, (slot, loads) in self._stored.items():
                last = self._last_load.get(slot, 0)
                if last > self.of_store[store]:
                    self.of_store[store], moved = last, True
                    self._note_loads(loads, last)


@dataclass(eq=False, slots=True)
class Member:
    """One row of a kernel call: the buffers behind the slots, each with an offset in elements and all its strides."""

    sizes: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def numel(self) -> int:
        n = 1
        for size in self.sizes:
            n *= size
        return n


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

    def __str__(self) -> str:
        sizes = sorted({m.sizes for m in self.members})
        shown = ", ".join(map(str, sizes[:4])) + (", ..." if len(sizes) > 4 else "")
        args = ", ".join(f"a{k}={s.name}" for k, s in enumerate(self.scalars))
        return f"{self.name}: {len(self.members)} members of sizes {shown} on {self.device} ({args})\n{self.body}"


@dataclass(eq=False, slots=True)
class Schedule:
    """What runs, in order, for a lowered program. `temps` are allocated once (0-dim host numbers) or for each call."""

    program: Program
    steps: list[KernelCall | Extern] = field(default_factory=list)
    temps: list[Buffer] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


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
    "COLUMN_BLOCK", "ArgScalar", "Const", "Index", "KernelBody", "KernelCall", "Member", "Op", "Pass", "Reduced",
    "Reduction", "RowLength", "Schedule", "Slot", "SlotLoad", "SlotPlace", "row_template", "walk",
]  # fmt: skip
