"""Units, one for each store or call, and the level at which each runs.

A unit must come after the stores that it loads from, and a store to an input after all that read the old value. Where
both ends have the same index space and touch the same element, they may also be in one kernel ("joined"): all loads of
an index happen before its stores, and a stored value needs no load. A unit's level counts the edges before it that
cannot be joined, so units of one level can be put into kernels freely, as long as joined ones are kept together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, View
from quickfuse.ir.values import TensorMeta, contiguous_stride

from .reading import Reading, read

#: Rounds of levelling input stores that read each other's inputs; what moves after that is staged.
_ROUNDS = 8


@dataclass(eq=False, slots=True)
class Unit:
    """A store with the shape of its loop and what is known of its value, or a call of PyTorch and what it reads."""

    index: int
    shape: tuple[int, ...]
    device: torch.device | None
    store: Store | None = None
    reading: Reading | None = None
    extern: Extern | None = None
    reads: list[Buffer] = field(default_factory=list)
    level: int = 0
    parent: Unit | None = None  # in the union-find forest of `merge.py`

    @property
    def loads(self) -> list[Access]:
        return self.reading.accesses if self.reading is not None else []

    @property
    def changes_input(self) -> bool:
        return self.store is not None and self.store.access.buffer.kind == "input"


@dataclass(eq=False, slots=True)
class Edge:
    """`before` runs before `after`, or in the same kernel where `joined`."""

    before: Unit
    after: Unit
    joined: bool


@dataclass(eq=False, slots=True)
class Dependences:
    """The units of a program in order, the edges between them, and the unit that fills each buffer."""

    units: list[Unit]
    edges: list[Edge]
    writers: dict[Buffer, Unit]


def analyse(program: Program) -> Dependences:
    """Split a program into units and give each its level.

    Stores to inputs that cannot be ordered after all readers of the old value go through a temporary.
    """
    units = _split(program)
    staged = 0
    while True:
        writers: dict[Buffer, Unit] = {}
        for unit in units:
            if unit.store is not None:
                writers[unit.store.access.buffer] = unit
            elif unit.extern is not None:
                writers.update((buffer, unit) for buffer in unit.extern.outputs)
        edges, conflicts = _edges(units, writers)
        conflicts = conflicts or _assign_levels(units, edges)
        if not conflicts:
            return Dependences(units, edges, writers)
        for unit in conflicts:
            staged += 1
            units.append(_stage(unit, len(units), f"staged{staged}"))


def _split(program: Program) -> list[Unit]:
    units: list[Unit] = []
    for step in program.steps:
        if isinstance(step, Loop):
            for store in step.stores:
                units.append(Unit(len(units), step.shape, step.device, store, read(store.value)))
        else:
            reads = list(_buffers((step.args, step.kwargs)))
            units.append(Unit(len(units), (), None, extern=step, reads=reads))
    return units


def _buffers(value: Any) -> Iterator[Buffer]:
    if isinstance(value, Buffer):
        yield value
    elif isinstance(value, View):
        yield value.buffer
    elif isinstance(value, (list, tuple)):
        for element in value:
            yield from _buffers(element)
    elif isinstance(value, dict):
        yield from _buffers(tuple(value.values()))
    elif isinstance(value, slice):
        yield from _buffers((value.start, value.stop, value.step))


def _edges(units: list[Unit], writers: dict[Buffer, Unit]) -> tuple[list[Edge], list[Unit]]:
    """The edges, and the units that store to an input which they also read at another element."""
    edges: list[Edge] = []
    conflicts: list[Unit] = []
    for unit in units:
        for access in unit.loads:
            writer = writers.get(access.buffer)
            if writer is None:
                continue
            joined = _same_element(unit, access, writer)
            if writer is unit:
                if not joined and unit not in conflicts:
                    conflicts.append(unit)
            elif access.buffer.kind == "input":
                edges.append(Edge(unit, writer, joined))
            else:
                edges.append(Edge(writer, unit, joined))
        for buffer in unit.reads:
            writer = writers.get(buffer)
            if writer is not None:
                by_input = buffer.kind == "input"
                edges.append(Edge(unit, writer, False) if by_input else Edge(writer, unit, False))
    return edges, conflicts


def _same_element(unit: Unit, access: Access, writer: Unit) -> bool:
    """Whether at each index `unit` loads what `writer` stores at that index."""
    if writer.store is None or writer.shape != unit.shape or writer.device != unit.device:
        return False
    stored = writer.store.access
    return stored.strides == access.strides and stored.offset == access.offset


def _assign_levels(units: list[Unit], edges: list[Edge]) -> list[Unit]:
    """Set each unit's level. Returns the stores to inputs that cannot be ordered.

    Nothing loads what a store to an input has stored, so only such stores can form cycles.
    """
    before: list[list[Edge]] = [[] for _ in units]
    for edge in edges:
        before[edge.after.index].append(edge)
    stores_to_inputs = []
    for unit in units:
        unit.level = 0
        if unit.changes_input:
            stores_to_inputs.append(unit)
        else:
            _raise_level(unit, before[unit.index])
    moved: list[Unit] = []
    for _ in range(_ROUNDS):
        moved = [unit for unit in stores_to_inputs if _raise_level(unit, before[unit.index])]
        if not moved:
            break
    return moved


def _raise_level(unit: Unit, before: list[Edge]) -> bool:
    level = unit.level
    for edge in before:
        least = edge.before.level if edge.joined else edge.before.level + 1
        if least > level:
            level = least
    raised = level > unit.level
    unit.level = level
    return raised


def _stage(unit: Unit, index: int, name: str) -> Unit:
    """Let `unit` store to a temporary. Returns the unit that copies from there."""
    assert unit.store is not None and unit.device is not None
    target = unit.store.access
    dtype = target.buffer.meta.dtype
    temp = Buffer(name, TensorMeta(dtype, unit.shape, contiguous_stride(unit.shape), unit.device), "temp")
    access = Access(temp, 0, temp.meta.stride)
    unit.store = Store(access, unit.store.value)
    copy = Load(access, dtype)
    return Unit(index, unit.shape, unit.device, Store(target, copy), read(copy))
