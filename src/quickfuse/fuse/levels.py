"""The level at which each unit runs.

A unit must come after the stores that it loads from, and a store to an input after all that read the old value. Where
both ends have the same index space and touch the same element, they may also be in one kernel ("joined"): all loads of
an index happen before its stores, and a stored value needs no load. A unit's level counts the edges before it that
cannot be joined, so units of one level can be put into kernels freely, as long as joined ones are kept together. The
calls of a level run before its kernels.

What a reduction stores is complete at the end of a row. So units that load it may be joined to it where they are in its
index space and the same axes are reduced for all of them (see `rows.py`): kernels run in passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from quickfuse.errors import Unsupported
from quickfuse.ir.boxes import disjoint, may_read
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, Loop, Program, Store, buffers_in
from quickfuse.ir.values import TensorMeta, contiguous_stride

from .inputs import InputStores
from .reading import read
from .rows import same_elements
from .units import Dependences, Edge, Meeting, Unit, agree, find, least_level, union, way_into


def analyse(program: Program, cut: Collection[Buffer] = ()) -> Dependences:
    """Split a program into units, give each its level, and join those that must share a kernel.

    What reads a buffer that is `cut` is in a later kernel than what fills it.

    Stores to inputs that cannot be ordered after all readers of the old value go through a temporary.
    """
    units = _split(program)
    staged = 0
    floors_known = False
    while True:
        for unit in units:
            unit.begin()
        analysis = _Analysis(units, cut)
        conflicts = analysis.run()
        if not conflicts and not floors_known and analysis.set_floors():
            floors_known = True
            continue
        if not conflicts:
            return Dependences(units, analysis.edges)
        for unit in conflicts:
            staged += 1
            unit.restore()
            units.append(_stage(unit, len(units), f"staged{staged}"))


def _split(program: Program) -> list[Unit]:
    units: list[Unit] = []
    for step in program.steps:
        if isinstance(step, Loop):
            for store in step.stores:
                units.append(Unit(len(units), step.shape, step.device, store, read(*store.roots)))
        else:
            reads = list(buffers_in((step.args, step.kwargs)))
            units.append(Unit(len(units), (), None, extern=step, reads=reads))
    return units


class _Analysis:
    """One attempt at giving levels to all units."""

    def __init__(self, units: list[Unit], cut: Collection[Buffer]) -> None:
        self.units = units
        self.cut = cut
        self.edges: list[Edge] = []
        self.writers: dict[Buffer, list[Unit]] = {}
        for unit in units:
            if unit.store is not None:
                self.writers.setdefault(unit.store.access.buffer, []).append(unit)
            elif unit.extern is not None:
                self.writers.update((buffer, [unit]) for buffer in unit.extern.outputs)

    def run(self) -> list[Unit]:
        """Returns the stores to inputs that cannot be ordered."""
        stores_to_inputs = []
        for unit in self.units:
            if unit.changes_input:
                stores_to_inputs.append(unit)
            else:
                self._place(unit, self.sources(unit))
        self._delay()
        return InputStores(self, stores_to_inputs).run()

    def sources(self, unit: Unit) -> list[Meeting]:
        """The units whose results `unit` reads."""
        found = []
        for access in unit.loads:
            writers = self.writers.get(access.buffer, ()) if access.buffer.kind != "input" else ()
            for writer in writers:
                stored = writer.store.access if writer.store is not None else None
                if len(writers) == 1 or stored is None or not disjoint(unit.shape, access, writer.shape, stored):
                    found.append(Meeting(writer, access, stored))
        if unit.store is not None and unit.store.offset is not None:  # the rest of the buffer is as others left it
            target = unit.store.access
            for writer in self.writers[target.buffer]:
                if writer is unit:
                    break
                found.append(Meeting(writer, target, writer.store.access if writer.store is not None else None))
        for buffer in unit.reads:
            writers = self.writers.get(buffer, ()) if buffer.kind != "input" else ()
            found += [Meeting(writer) for writer in writers if len(writers) == 1 or _may_read(unit, writer)]
        if unit.extern is not None and unit.extern.after is not None:
            found += [Meeting(writer) for writer in self.writers[unit.extern.after.outputs[0]]]
        return found

    def _place(self, unit: Unit, meetings: list[Meeting]) -> None:
        """Give a unit that comes after units with levels the lowest level there is."""
        if unit.extern is not None:
            unit.level = max([least_level(meeting.before, joined=False) for meeting in meetings], default=0)
            self.edges += [Edge(meeting.before, unit, False) for meeting in meetings]
            return
        cut = [meeting.theirs is not None and meeting.theirs.buffer in self.cut for meeting in meetings]
        level = max([m.before.level + is_cut for m, is_cut in zip(meetings, cut, strict=True)], default=0)
        last = [m for m, is_cut in zip(meetings, cut, strict=True)
                if m.before.level == level and m.before.extern is None and not is_cut]  # fmt: skip
        joined = unit.floor <= level and _join(unit, last)
        unit.level = level if joined else max(level + 1, unit.floor)
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


    def set_floors(self) -> bool:
        """Let the parts of a buffer be stored together, when the last of them can be. Returns whether some are to wait."""
        users: dict[Unit, int] = {}  # the first level at which something reads a part
        for edge in self.edges:
            users[edge.before] = min(users.get(edge.before, edge.after.level), edge.after.level)
        found = False
        for buffer, parts in self.writers.items():
            if len(parts) > 1 and buffer.kind != "input":
                level = max(unit.level for unit in parts)
                for unit in parts:
                    if unit.level < level < users.get(unit, level + 1):
                        unit.floor, found = level, True
        return found


def _may_read(call: Unit, writer: Unit) -> bool:
    """Whether a call of PyTorch may read what a unit stores, one of several that fill a buffer."""
    if call.extern is None or writer.store is None:
        return True
    return may_read(call.extern, writer.shape, writer.store.access)


def _meet(writer: Unit, reader: Unit) -> bool:
    """Whether at each index `reader` loads from `writer` only what is stored at that index."""
    assert writer.store is not None
    stored = writer.store.access
    return all(same_elements(writer.shape, a, stored) for a in reader.loads if a.buffer is stored.buffer)


def _join(unit: Unit, meetings: list[Meeting]) -> bool:
    """Join a unit to those that it meets, if it can be in one kernel with all of them."""
    roots = [find(meeting.before) for meeting in meetings]
    if not roots:
        return True
    if unit.store is None or not agree(roots):
        return False
    index_map = way_into(unit, roots)
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


def _stage(unit: Unit, index: int, name: str) -> Unit:
    """Let `unit` store to a temporary. Returns the unit that copies from there."""
    assert unit.store is not None and unit.device is not None
    if unit.store.offset is not None:
        raise Unsupported("a scatter to an input that other changes of inputs depend on")
    target = unit.store.access
    dtype = target.buffer.meta.dtype
    temp = Buffer(name, TensorMeta(dtype, unit.shape, contiguous_stride(unit.shape), unit.device), "temp")
    access = Access(temp, 0, temp.meta.stride)
    copy = Load(access, dtype)
    copied = Unit(index, unit.shape, unit.device, replace(unit.store, value=copy), read(copy))
    unit.store = Store(access, unit.store.value)
    return copied
