"""From loops to kernel bodies: code without sizes and buffers, so that equal code is found by one comparison.

Loops with the same signature have the same body, which is built only for the first of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Const, Count, Expr, Index, Load, Op, Place, Previous, Scalar
from quickfuse.ir.kernel import (
    ArgScalar,
    Axis,
    KernelBody,
    KernelStore,
    Member,
    Reduced,
    RowLength,
    Slot,
    SlotLoad,
    SlotPlace,
    SlotPrevious,
)  # fmt: skip
from quickfuse.ir.loop import Access, Buffer, Store, StoreKind
from quickfuse.ir.overlaps import disjoint

from .collapse import Collapsed, collapse, collapse_rows, with_tiles
from .fused_loops import FusedLoop
from .index_space import same_elements

#: The types of the host's numbers that kernels on other devices get by value.
_HOST_NUMBERS = (torch.float64, torch.int64)

_OperandKey = tuple[Buffer, int, tuple[int, ...]]


@dataclass(eq=False, slots=True)
class Candidate:
    """A loop with its body, its operands, and the names of its host scalars."""

    loop: FusedLoop
    body: KernelBody
    member: Member
    scalars: tuple[str, ...]
    collapsed: Collapsed


@dataclass(eq=False, slots=True)
class _Operands:
    """The operands of a loop over `shape` by first use, those that are stored last, and its host scalars.

    values: buffers whose contents are computed in the loop, with the nodes that do, and what they store.
    stored: the operand of each store that is done. loaded: how many operands are loaded.
    links: where each node's loads and scalars come from.
    loose: the buffers that are loaded from at computed offsets.
    """

    shape: tuple[int, ...]
    numbers: dict[_OperandKey, int] = field(default_factory=dict)
    accesses: list[Access] = field(default_factory=list)
    scalars: dict[str, torch.dtype] = field(default_factory=dict)
    axes: set[int] = field(default_factory=set)
    values: dict[Buffer, list[tuple[int, Access]]] = field(default_factory=dict)
    links: list[Any] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    loose: set[Buffer] = field(default_factory=set)
    loaded: int = 0

    def source(self, access: Access) -> int | None:
        """The node of the loop that computes what a load finds, if one does."""
        nodes = self.values.get(access.buffer)
        if nodes is None:
            return None
        return next((k for k, stored in nodes if same_elements(self.shape, access, stored)), None)

    def strides(self) -> tuple[tuple[int, ...], ...]:
        """Each operand's strides. What is stored moves, even where there is but one element."""
        found = [access.strides for access in self.accesses]
        if all(size == 1 for size in self.shape):
            for k in self.stored:
                if self.accesses[k].buffer.kind != "flag":
                    found[k] = (1,) * len(self.shape)
        return tuple(found)

    def number(self, access: Access) -> int:
        strides = access.strides
        if 1 in self.shape:  # a stride along an axis of size one means nothing
            strides = tuple([0 if n == 1 else s for n, s in zip(self.shape, strides, strict=True)])
        key = (access.buffer, access.offset, strides)
        known = self.numbers.get(key)
        if known is None:
            known = self.numbers[key] = len(self.accesses)
            self.accesses.append(access)
        return known


class Canonicalizer:
    """Makes bodies, one for each signature."""

    def __init__(self) -> None:
        self._bodies: dict[Any, KernelBody] = {}
        #: Bodies with reductions may be equal although loops have other signatures, as these contain the rows' lengths.
        self._equal: dict[KernelBody, KernelBody] = {}
        self._codes: dict[tuple[Any, ...], int] = {}
        self._slots: dict[Any, Slot] = {}

    def candidate(self, loop: FusedLoop) -> Candidate:
        """The body and member of a loop.

        Raises:
            Unsupported: where a buffer is stored to and loaded from at another element.
        """
        operands = _collect(loop)
        strides = operands.strides()
        indexed = tuple(sorted(operands.axes))
        if loop.reduced:
            kind = Axis.SCAN if loop.ordered else Axis.REDUCE
            tiles = loop.device.type == "cuda"
            collapsed = collapse_rows(loop.shape, strides, indexed, loop.reduced, kind, tiles)
        else:
            vectors = loop.device.type == "cpu"
            collapsed = collapse(loop.shape, strides, _first_stored(loop, operands), indexed, vectors)
            collapsed = collapsed if vectors else with_tiles(collapsed)
        slots = self._make_slots(loop, operands, collapsed)
        key = (_row_length(loop), self._signature(loop, operands, collapsed, slots))
        body = self._bodies.get(key)
        if body is None:
            body = _Builder(loop, operands, collapsed).body(slots)
            body = self._bodies[key] = self._equal.setdefault(body, body) if loop.reduced else body
        buffers, offsets = zip(*[(access.buffer, access.offset) for access in operands.accesses], strict=True)
        member = Member(collapsed.sizes, buffers, offsets, collapsed.strides)
        return Candidate(loop, body, member, tuple(operands.scalars), collapsed)

    def _signature(self, loop: FusedLoop, operands: _Operands, collapsed: Collapsed, slots: tuple[Slot, ...]) -> Any:
        """What loops with equal bodies have in common.

        Each node's own code, and how its loads and scalars are numbered in the loop, say what is computed.
        """
        codes = self._codes
        numbers = tuple([
            (codes.setdefault(u.reading.code, len(codes)), u.store.kind, u.store.combine)
            for u in loop.nodes if u.reading and u.store
        ])  # fmt: skip
        return (
            loop.device.type, collapsed.axes, collapsed.vector, slots, numbers, tuple(loop.kept), tuple(operands.links),
            tuple(operands.stored), tuple(operands.scalars.values()),
            tuple([collapsed.axis(axis) for axis in sorted(operands.axes)]),
        )  # fmt: skip

    def _make_slots(self, loop: FusedLoop, operands: _Operands, collapsed: Collapsed) -> tuple[Slot, ...]:
        stored = set(operands.stored)
        backwards = not loop.reduced and loop.device.type == "cpu"  # the one place where code for it is written
        slots = []
        for k, (access, strides) in enumerate(zip(operands.accesses, collapsed.strides, strict=True)):
            mode = "r" if k not in stored else "rw" if k < operands.loaded else "w"
            mode = "flag" if access.buffer.kind == "flag" else mode
            meta = access.buffer.meta
            turned = backwards and strides[-1:] == (-1,) and mode == "r" and access.buffer not in operands.loose
            key = (meta.dtype, strides, mode, meta.device != loop.device, turned)
            slot = self._slots.get(key)
            if slot is None:
                classes = tuple([s if s in (0, 1) else None for s in strides])
                classes = (*classes[:-1], -1) if turned else classes
                if key[3] and (any(strides) or meta.dtype not in _HOST_NUMBERS):
                    raise Unsupported(f"an operand on {meta.device} in a kernel on {loop.device}")
                slot = self._slots[key] = Slot(meta.dtype, classes, mode, by_value=key[3])
            slots.append(slot)
        return tuple(slots)


def _first_stored(loop: FusedLoop, operands: _Operands) -> int:
    """The first operand that is stored to at every index, or else a flag."""
    filled = (k for k, store in zip(operands.stored, loop.stores, strict=True) if store.kind is not StoreKind.FLAG)
    return next(filled, operands.stored[0])


def _row_length(loop: FusedLoop) -> int:
    """How many elements a row has; -1 without reductions. A `Count` of as many is what a kernel finds out itself."""
    return math.prod(loop.shape[k] for k in loop.reduced) if loop.reduced and not loop.ordered else -1


def _collect(loop: FusedLoop) -> _Operands:
    operands = _Operands(loop.shape)
    number, values = operands.number, operands.values
    for k, node in enumerate(loop.nodes):
        if node.store.access.buffer.kind != "input":
            values.setdefault(node.store.access.buffer, []).append((k, node.store.access))
    for node in loop.nodes:
        links: list[int] = []
        for access in node.reading.accesses:
            source = operands.source(access)
            if access.loose:
                operands.loose.add(access.buffer)
            links.append(number(access) if source is None else -1 - source)
        if node.reading.scalars:
            operands.scalars.update(node.reading.scalars)
            order = list(operands.scalars)
            links += [order.index(name) for name in node.reading.scalars]
        operands.links.append(tuple(links))
        if node.reading.axes:
            operands.axes.update(node.reading.axes)
    operands.loaded = len(operands.accesses)
    operands.stored = [number(store.access) for store in loop.stores]
    _check(operands)
    return operands


def _check(operands: _Operands) -> None:
    """What is stored to must be no part of another operand."""
    shape = operands.shape
    of_buffer: dict[Buffer, list[Access]] = {}
    for access in operands.accesses:
        of_buffer.setdefault(access.buffer, []).append(access)
    for k in operands.stored:
        stored = operands.accesses[k]
        others = (other for other in of_buffer[stored.buffer] if other is not stored)
        if stored.buffer in operands.loose or not all(disjoint(shape, stored, shape, other) for other in others):
            raise Unsupported(f"a loop that stores to {stored.buffer} and loads other elements of it")


class _Builder:
    """Rewrites the expressions of a loop as a body's: slots for loads, arguments for host scalars.

    Equal values become one, and so do equal reductions, which gradients of normalisations have. Reductions are built in
    the order of their nodes, in which each uses only earlier ones.
    """

    def __init__(self, loop: FusedLoop, operands: _Operands, collapsed: Collapsed) -> None:
        self.loop = loop
        self.operands = operands
        self.collapsed = collapsed
        self.scalars = list(operands.scalars)
        self.made: dict[int, Expr] = {}
        self.distinct: dict[Any, Expr] = {}
        self.row_length = _row_length(loop)
        #: What stands for the contents of a buffer that a reduction stores to.
        self.reduced: dict[Buffer, Expr] = {}

    def body(self, slots: tuple[Slot, ...]) -> KernelBody:
        reductions: list[KernelStore] = []
        numbers: dict[tuple[str, int], int] = {}
        for node in self.loop.nodes:
            if node.store.kind in (StoreKind.REDUCE, StoreKind.SCAN):
                value = self._value(node.store.value)
                number = numbers.setdefault((node.store.combine, id(value)), len(reductions))
                self.reduced[node.store.access.buffer] = Reduced(number, value.dtype)
                if number == len(reductions):
                    reductions.append(KernelStore(node.store.kind, value, combine=node.store.combine))
        stores = [self._store(slot, store) for slot, store in zip(self.operands.stored, self.loop.stores, strict=True)]
        stores.sort(key=lambda store: store.kind is StoreKind.SCATTER)
        scalars = tuple(self.operands.scalars.values())
        axes, vector = self.collapsed.axes, self.collapsed.vector
        return KernelBody(self.loop.device.type, axes, vector, slots, scalars, (*reductions, *stores))

    def _store(self, slot: int, store: Store) -> KernelStore:
        value = self.reduced.get(store.access.buffer) or self._value(store.value)
        if store.offset is not None and store.inside is not None:
            offset, inside = self._value(store.offset), self._value(store.inside)
            return KernelStore(store.kind, value, slot, offset=offset, inside=inside)
        return KernelStore(StoreKind.FLAG if store.kind is StoreKind.FLAG else StoreKind.ASSIGN, value, slot)

    def _value(self, root: Expr) -> Expr:
        made = self.made
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in made:
                stack.pop()
                continue
            below = node.args if isinstance(node, Op) else self._stored_value(node)
            missing = [arg for arg in below if id(arg) not in made]
            if missing:
                stack.extend(missing)
                continue
            if isinstance(node, Op):
                made[id(node)] = self._operation(node.name, tuple([made[id(arg)] for arg in node.args]), node.dtype)
            elif below:
                made[id(node)] = made[id(below[0])]
            else:
                leaf = self._leaf(node)
                made[id(node)] = self.distinct.setdefault((type(leaf), str(leaf), leaf.dtype), leaf)
            stack.pop()
        return made[id(root)]

    def _operation(self, name: str, args: tuple[Expr, ...], dtype: torch.dtype) -> Expr:
        key = (name, dtype, *map(id, args))
        if key not in self.distinct:
            self.distinct[key] = Op(name, args, dtype)
        return self.distinct[key]

    def _stored_value(self, node: Expr) -> tuple[Expr, ...]:
        """The value that a load would find, where this loop computes it."""
        source = self.operands.source(node.access) if isinstance(node, Load) else None
        if source is None:
            return ()
        store = self.loop.nodes[source].store
        return (store.value,) if store.kind is StoreKind.ASSIGN else ()

    def _leaf(self, node: Expr) -> Expr:
        if isinstance(node, Load):
            if node.access.buffer in self.reduced:
                return self.reduced[node.access.buffer]
            return SlotLoad(self.operands.number(node.access), node.dtype)
        if isinstance(node, Previous):
            stored = zip(self.operands.stored, self.loop.stores, strict=True)
            return SlotPrevious(next(k for k, s in stored if s.access.buffer is node.buffer), node.dtype)
        if isinstance(node, Place):
            return SlotPlace(self.operands.number(node.access), node.dtype)
        if isinstance(node, Scalar):
            return ArgScalar(self.scalars.index(node.name), node.dtype)
        if isinstance(node, Count):
            return RowLength() if node.value == self.row_length else Const(node.value, node.dtype)
        if isinstance(node, Index):
            axis = self.collapsed.axis(node.axis)
            return Const(0, node.dtype) if axis is None else Index(axis)
        return node
