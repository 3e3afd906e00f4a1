"""Units, one for each store or call, and the level at which each runs.

A unit must come after the stores that it loads from, and a store to an input after all that read the old value. Where
both ends have the same index space and touch the same element, they may also be in one kernel ("joined"): all loads of
an index happen before its stores, and a stored value needs no load. A unit's level counts the edges before it that
cannot be joined, so units of one level can be put into kernels freely, as long as joined ones are kept together. The
calls of a level run before its kernels.

What a reduction stores is complete at the end of a row. So units that load it may be joined to it where they are in its
index space and the same axes are reduced for all of them (see `rows.py`): kernels run in passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, View
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta, contiguous_stride

from .reading import Reading, read
from .rows import Shape, embedding, reduced_axes, same_elements

#: Rounds of levelling input stores that read each other's inputs; what moves after that is staged.
_ROUNDS = 8


@dataclass(eq=False, slots=True)
class Unit:
    """A store with the shape of its loop and what is known of its value, or a call of PyTorch and what it reads.

    `parent` links units that are joined, and their root's `reduced` are the axes that their kernel reduces, if it does.
    `native` is what a unit was before it was moved to the index space of a kernel with reductions.
    """

    index: int
    shape: tuple[int, ...]
    device: torch.device | None
    store: Store | None = None
    reading: Reading | None = None
    extern: Extern | None = None
    reads: list[Buffer] = field(default_factory=list)
    level: int = 0
    parent: Unit | None = None
    reduced: Shape | None = None
    native: tuple[Shape, Store, Reading] | None = None

    @property
    def loads(self) -> list[Access]:
        return self.reading.accesses if self.reading is not None else []

    @property
    def changes_input(self) -> bool:
        return self.store is not None and self.store.access.buffer.kind == "input"

    def begin(self) -> None:
        """Forget all decisions."""
        self.restore()
        self.level, self.parent = 0, None
        self.reduced = None if self.store is None else reduced_axes(self.shape, self.store)

    def move(self, index_map: IndexMap, space: Shape) -> None:
        """Become the same unit over the indices of `space`."""
        assert self.store is not None and self.reading is not None and self.native is None
        self.native = (self.shape, self.store, self.reading)
        store = Store(index_map.access(self.store.access), reindex(self.store.value, index_map))
        self.shape, self.store, self.reading = space, store, read(store.value)

    def restore(self) -> None:
        if self.native is not None:
            self.shape, self.store, self.reading = self.native
            self.native = None


def find(unit: Unit) -> Unit:
    """The unit that stands for all that are joined to this one."""
    root = unit
    while root.parent is not None:
        root = root.parent
    while unit.parent is not None:
        unit.parent, unit = root, unit.parent
    return root


def union(one: Unit, two: Unit) -> Unit:
    one, two = find(one), find(two)
    if one is two:
        return one
    if two.index < one.index:
        one, two = two, one
    two.parent = one
    one.reduced = one.reduced if two.reduced is None else two.reduced
    return one


def agree(units: list[Unit]) -> bool:
    """Whether units may be in one kernel, as far as its index space goes."""
    roots = {id(root): root for root in map(find, units)}
    spaces = {(root.shape, root.device) for root in roots.values()}
    return len(spaces) <= 1 and len({root.reduced for root in roots.values()} - {None}) <= 1


@dataclass(eq=False, slots=True)
class Edge:
    """`before` runs before `after`, or in the same kernel where `joined`.

    `flows`: `after` reads what `before` stores. If not, `before` reads what `after` overwrites.
    """

    before: Unit
    after: Unit
    joined: bool
    flows: bool = True


@dataclass(eq=False, slots=True)
class Dependences:
    """The units of a program in order, the edges between them, and the unit that fills each buffer."""

    units: list[Unit]
    edges: list[Edge]
    writers: dict[Buffer, Unit]


def analyse(program: Program) -> Dependences:
    """Split a program into units, give each its level, and join those that must share a kernel.

    Stores to inputs that cannot be ordered after all readers of the old value go through a temporary.
    """
    units = _split(program)
    staged = 0
    while True:
        for unit in units:
            unit.begin()
        analysis = _Analysis(units)
        conflicts = analysis.run()
        if not conflicts:
            return Dependences(units, analysis.edges, analysis.writers)
        for unit in conflicts:
            staged += 1
            unit.restore()
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


@dataclass(eq=False, slots=True)
class _Meeting:
    """A unit that must come before another one, and the elements by which they meet; None with a call of PyTorch."""

    before: Unit
    mine: Access | None = None
    theirs: Access | None = None
    flows: bool = True


class _Analysis:
    """One attempt at giving levels to all units."""

    def __init__(self, units: list[Unit]) -> None:
        self.units = units
        self.edges: list[Edge] = []
        self.writers: dict[Buffer, Unit] = {}
        for unit in units:
            if unit.store is not None:
                self.writers[unit.store.access.buffer] = unit
            elif unit.extern is not None:
                self.writers.update((buffer, unit) for buffer in unit.extern.outputs)

    def run(self) -> list[Unit]:
        """Returns the stores to inputs that cannot be ordered."""
        stores_to_inputs = []
        for unit in self.units:
            if unit.changes_input:
                stores_to_inputs.append(unit)
            else:
                self._place(unit, self.sources(unit))
        self._delay()
        return _InputStores(self, stores_to_inputs).run()

    def sources(self, unit: Unit) -> list[_Meeting]:
        """The units whose results `unit` reads."""
        found = []
        for access in unit.loads:
            writer = self.writers.get(access.buffer)
            if writer is not None and access.buffer.kind != "input":
                found.append(_Meeting(writer, access, writer.store.access if writer.store is not None else None))
        for buffer in unit.reads:
            writer = self.writers.get(buffer)
            if writer is not None and buffer.kind != "input":
                found.append(_Meeting(writer))
        return found

    def _place(self, unit: Unit, meetings: list[_Meeting]) -> None:
        """Give a unit that comes after units with levels the lowest level there is."""
        if unit.extern is not None:
            unit.level = max([_least_level(meeting.before, joined=False) for meeting in meetings], default=0)
            self.edges += [Edge(meeting.before, unit, False) for meeting in meetings]
            return
        level = max([meeting.before.level for meeting in meetings], default=0)
        last = [m for m in meetings if m.before.level == level and m.before.extern is None]
        joined = _join(unit, last)
        unit.level = level if joined else level + 1
        self.edges += [Edge(m.before, unit, joined and m in last) for m in meetings]


    def _delay(self) -> None:
        """Put units that are alone in their kernels where their results are used, if all users are in one kernel."""
        joined = {id(find(unit)) for edge in self.edges if edge.joined for unit in (edge.before, edge.after)}
        users: dict[Unit, list[Edge]] = {}
        for edge in self.edges:
            users.setdefault(edge.before, []).append(edge)
        for unit in reversed(self.units):
            edges = users.get(unit, [])
            if unit.reduced is None or id(find(unit)) in joined or len({id(find(e.after)) for e in edges}) != 1:
                continue
            target = find(edges[0].after)
            if target.extern is None and agree([unit, target]) and all(_meet(unit, edge.after) for edge in edges):
                unit.level = target.level
                joined.add(id(union(unit, target)))
                for edge in edges:
                    edge.joined = True


def _meet(writer: Unit, reader: Unit) -> bool:
    """Whether at each index `reader` loads from `writer` only what is stored at that index."""
    assert writer.store is not None
    stored = writer.store.access
    return all(same_elements(writer.shape, a, stored) for a in reader.loads if a.buffer is stored.buffer)


def _least_level(before: Unit, *, joined: bool) -> int:
    """The level from which on a unit may come after `before`. Calls come first in their level."""
    return before.level if joined or before.extern is not None else before.level + 1


def _join(unit: Unit, meetings: list[_Meeting]) -> bool:
    """Join a unit to those that it meets, if it can be in one kernel with all of them."""
    roots = [find(meeting.before) for meeting in meetings]
    if not roots:
        return True
    if unit.store is None or not agree(roots):
        return False
    index_map = _way_into(unit, roots)
    if unit.device != roots[0].device or (unit.shape != roots[0].shape and index_map is None):
        return False
    for meeting in meetings:
        assert meeting.mine is not None and meeting.theirs is not None
        mine = meeting.mine if index_map is None else index_map.access(meeting.mine)
        if not same_elements(roots[0].shape, mine, meeting.theirs):
            return False
    if index_map is None and not agree([unit, *roots]):
        return False
    if index_map is not None:
        unit.move(index_map, roots[0].shape)
    for root in roots:
        union(root, unit)
    return True


def _way_into(unit: Unit, roots: list[Unit]) -> IndexMap | None:
    """How a unit of another shape may be in the index space of units with reductions."""
    reduced = next((root.reduced for root in roots if root.reduced is not None), None)
    if unit.shape == roots[0].shape or unit.reduced is not None or reduced is None:
        return None
    return embedding(unit.shape, roots[0].shape, reduced)


class _InputStores:
    """Levels of stores to inputs: after all units that read the old value, in the same kernel where they can be.

    They may read each other's inputs, so they are raised in rounds until nothing moves.
    """

    def __init__(self, analysis: _Analysis, stores: list[Unit]) -> None:
        self.analysis = analysis
        self.stores = stores
        self.before: dict[Unit, list[Edge]] = {unit: [] for unit in stores}

    def run(self) -> list[Unit]:
        conflicts = []
        for unit in self.stores:
            own = [a for a in unit.loads if self.analysis.writers.get(a.buffer) is unit]
            assert unit.store is not None
            if any(not same_elements(unit.shape, access, unit.store.access) for access in own):
                conflicts.append(unit)
        if conflicts:
            return conflicts
        readers = self._readers()
        for unit in self.stores:
            self._move(unit, self._meetings(unit, readers))
        readers = self._readers()
        for unit in self.stores:
            self.before[unit] = [
                Edge(m.before, unit, _may_join(unit, m), m.flows) for m in self._meetings(unit, readers)
            ]
        moved = self._raise()
        if moved:
            return moved
        for unit in self.stores:
            self.analysis.edges += self.before[unit]
            if unit.native is not None and find(unit).reduced is None:
                unit.restore()
        return [unit for unit in self.stores if unit.shape != find(unit).shape]

    def _readers(self) -> dict[Buffer, list[tuple[Unit, Access | None]]]:
        """Who reads the inputs that are stored to, and where."""
        readers: dict[Buffer, list[tuple[Unit, Access | None]]] = {
            unit.store.access.buffer: [] for unit in self.stores if unit.store is not None
        }
        for unit in self.analysis.units:
            for access in unit.loads:
                if access.buffer in readers:
                    readers[access.buffer].append((unit, access))
            for buffer in unit.reads:
                if buffer in readers:
                    readers[buffer].append((unit, None))
        return readers

    def _meetings(self, unit: Unit, readers: dict[Buffer, list[tuple[Unit, Access | None]]]) -> list[_Meeting]:
        assert unit.store is not None
        found = self.analysis.sources(unit)
        for reader, access in readers[unit.store.access.buffer]:
            if reader is not unit:
                mine = None if access is None else unit.store.access
                found.append(_Meeting(reader, mine, access, flows=False))
        return found

    def _move(self, unit: Unit, meetings: list[_Meeting]) -> None:
        """Into the index space of a kernel with reductions that it could be a part of."""
        for meeting in meetings:
            root = find(meeting.before)
            if meeting.mine is None or meeting.theirs is None or root.device != unit.device:
                continue
            index_map = _way_into(unit, [root])
            if index_map is not None and same_elements(root.shape, index_map.access(meeting.mine), meeting.theirs):
                unit.move(index_map, root.shape)
                return

    def _raise(self) -> list[Unit]:
        """Returns the units that never stop moving."""
        while True:
            moved: list[Unit] = []
            for _ in range(_ROUNDS):
                moved = [unit for unit in self.stores if _raise_level(unit, self.before[unit])]
                if not moved:
                    break
            if moved or not self._separate():
                return moved

    def _separate(self) -> bool:
        """Join what is of one level; an edge between units that do not agree is none to be joined by.

        Returns whether there was one. Then nothing is joined, as levels have to be found again.
        """
        before = [(unit, unit.parent, unit.reduced) for unit in self.analysis.units]
        for unit in self.stores:
            for edge in self.before[unit]:
                if edge.joined and edge.before.level == unit.level:
                    if not agree([edge.before, unit]):
                        edge.joined = False
                        for one, parent, reduced in before:
                            one.parent, one.reduced = parent, reduced
                        return True
                    union(edge.before, unit)
        return False


def _may_join(unit: Unit, meeting: _Meeting) -> bool:
    if meeting.mine is None or meeting.theirs is None or not agree([unit, meeting.before]):
        return False
    return same_elements(unit.shape, meeting.mine, meeting.theirs)


def _raise_level(unit: Unit, before: list[Edge]) -> bool:
    level = unit.level
    for edge in before:
        level = max(level, _least_level(edge.before, joined=edge.joined))
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
