"""Levels of the stores to inputs, which come after all that read the old values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quickfuse.ir.boxes import disjoint
from quickfuse.ir.loop import FLAG, Access, Buffer

from .rows import same_elements
from .units import Edge, Meeting, Unit, agree, find, least_level, union

if TYPE_CHECKING:
    from .levels import _Analysis

#: Rounds of levelling input stores that read each other's inputs; what moves after that is staged.
_ROUNDS = 8


#: A unit that reads a buffer, where (None: all of it), and its shape then: units may move to other index spaces.
_Reader = tuple[Unit, Access | None, tuple[int, ...]]


class InputStores:
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
            assert unit.store is not None
            stored = unit.store.access
            own = [a for a in unit.loads if a.buffer is stored.buffer]
            if not all(same_elements(unit.shape, a, stored) or disjoint(unit.shape, a, unit.shape, stored) for a in own):
                conflicts.append(unit)
        if conflicts:
            return conflicts
        readers = self._readers()
        for unit in self.stores:
            self.before[unit] = [
                Edge(m.before, unit, _may_join(unit, m), m.flows) for m in self._meetings(unit, readers)
            ]
        self._come_after_flags()
        moved = self._raise()
        if moved:
            return moved
        for unit in self.stores:
            self.analysis.edges += self.before[unit]
            if unit.native is not None and not find(unit).reduced:
                unit.restore()
        return [unit for unit in self.stores if unit.shape != find(unit).shape]

    def _come_after_flags(self) -> None:
        """No input changes before it is known that the graph need not run in eager mode, and that no call fails."""
        flags = [unit for unit in self.analysis.units if unit.store is not None and unit.store.combine == FLAG]
        calls = [unit for unit in self.analysis.units if unit.extern is not None and unit.extern.may_fail]
        for last in [max(units, key=lambda unit: unit.level) for units in (flags, calls) if units]:
            for unit in self.stores:
                self.before[unit].append(Edge(last, unit, joined=False, flows=False))

    def _readers(self) -> dict[Buffer, list[_Reader]]:
        """Who reads the inputs that are stored to, and where."""
        readers: dict[Buffer, list[_Reader]] = {
            unit.store.access.buffer: [] for unit in self.stores if unit.store is not None
        }
        for unit in self.analysis.units:
            for access in unit.loads:
                if access.buffer in readers:
                    readers[access.buffer].append((unit, access, unit.shape))
            for buffer in unit.reads:
                if buffer in readers:
                    readers[buffer].append((unit, None, unit.shape))
        return readers

    def _meetings(self, unit: Unit, readers: dict[Buffer, list[_Reader]]) -> list[Meeting]:
        assert unit.store is not None
        found = self.analysis.sources(unit)
        stored = unit.store.access
        for reader, access, shape in readers[stored.buffer]:
            if reader is unit or (access is not None and disjoint(unit.shape, stored, shape, access)):
                continue
            found.append(Meeting(reader, None if access is None else stored, access, flows=False))
        return found

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

        Returns whether there was one. Then nothing is joined, as levels have to be found again. What hangs together with
        such an edge waits for that: it may get other levels. The rest goes on, so that there are few turns.
        """
        before = [(unit, unit.parent, unit.reduced, unit.serial) for unit in self.analysis.units]
        waiting: set[Unit] = set()
        for unit in self.stores:
            if waiting and not waiting.isdisjoint([find(unit), *[find(edge.before) for edge in self.before[unit]]]):
                waiting.add(find(unit))
                continue
            for edge in self.before[unit]:
                if edge.joined and edge.before.level == unit.level:
                    if not agree([edge.before, unit]):
                        edge.joined = False
                        waiting.add(find(unit))
                        break
                    union(edge.before, unit)
        if not waiting:
            return False
        for one, parent, reduced, serial in before:
            one.parent, one.reduced, one.serial = parent, reduced, serial
        return True


def _may_join(unit: Unit, meeting: Meeting) -> bool:
    if meeting.mine is None or meeting.theirs is None or not agree([unit, meeting.before]):
        return False
    return same_elements(unit.shape, meeting.mine, meeting.theirs)


def _raise_level(unit: Unit, before: list[Edge]) -> bool:
    level = unit.level
    for edge in before:
        level = max(level, least_level(edge.before, joined=edge.joined))
    raised = level > unit.level
    unit.level = level
    return raised
