"""Large results that are needed late are computed late: until then they would only take memory.

Levels are as low as they can be. So all that a backward pass computes again from saved tensors would be computed at its
start, long before the gradients that need it, and would no longer be in the processor's caches by then.
"""

from __future__ import annotations

from quickfuse.ir.loop import Buffer

from .units import Dependences, Edge, Unit, find

#: Results of fewer bytes may as well come early, all in one launch.
_LARGE = 1 << 16
#: Operands that die with a unit must be so many times smaller than its results.
_SMALLER = 4


def postpone(dependences: Dependences) -> None:
    """Raise the levels of kernels that mostly read inputs to just below those of what reads their results, and those of
    calls to the same level, where they come first."""
    members: dict[Unit, list[Unit]] = {}
    for unit in dependences.units:
        members.setdefault(find(unit), []).append(unit)
    after: dict[Unit, list[Edge]] = {}
    for edge in dependences.edges:
        if not edge.joined:
            after.setdefault(find(edge.before), []).append(edge)
    for root in sorted(members, key=lambda root: (-root.level, root.extern is not None, -root.index)):
        edges = after.get(root)
        if edges and _grows(members[root]):
            level = min(edge.after.level for edge in edges) - (root.extern is None)
            if level > root.level:
                for unit in members[root]:
                    unit.level = level


def _grows(units: list[Unit]) -> bool:
    """Whether much more memory is in use after the units than before."""
    made: set[Buffer] = set()
    read: set[Buffer] = set()
    for unit in units:
        if unit.extern is not None:
            made.update(unit.extern.outputs)
            read.update(unit.reads)
        elif unit.store is not None:
            made.add(unit.store.access.buffer)
            read.update(access.buffer for access in unit.loads)
    if any(buffer.kind in ("input", "flag") for buffer in made):
        return False
    results = sum(buffer.meta.span_bytes for buffer in made)
    operands = sum(buffer.meta.span_bytes for buffer in read - made if buffer.kind != "input")
    return results >= _LARGE and results >= _SMALLER * operands
