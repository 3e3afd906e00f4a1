"""Large results that are needed late are computed late: until then they would only take memory.

Levels are as low as they can be. So all that a backward pass computes again from saved tensors would be computed at its
start, long before the gradients that need it, and would no longer be in the processor's caches by then.
"""

from __future__ import annotations

from .units import Dependences, Edge, Unit, find

#: Results of fewer bytes may as well come early, all in one launch.
_LARGE = 1 << 16
#: Operands that die with a unit must be so many times smaller than its results.
_SMALLER = 4


def postpone(dependences: Dependences) -> None:
    """Raise the levels of kernels that mostly read inputs to just below those of what reads their results."""
    components: dict[Unit, list[Unit]] = {}
    for unit in dependences.units:
        if unit.store is not None:
            components.setdefault(find(unit), []).append(unit)
    after: dict[Unit, list[Edge]] = {}
    for edge in dependences.edges:
        if not edge.joined and edge.before.store is not None:
            after.setdefault(find(edge.before), []).append(edge)
    for root in sorted(components, key=lambda root: -root.level):
        edges = after.get(root)
        if edges and _grows(components[root]):
            level = min(edge.after.level for edge in edges) - 1
            if level > root.level:
                for unit in components[root]:
                    unit.level = level


def _grows(units: list[Unit]) -> bool:
    """Whether much more memory is in use after the units than before."""
    made = {unit.store.access.buffer for unit in units if unit.store is not None}
    if any(buffer.kind in ("input", "flag") for buffer in made):
        return False
    read = {access.buffer for unit in units for access in unit.loads} - made
    results = sum(buffer.meta.span_bytes for buffer in made)
    operands = sum(buffer.meta.span_bytes for buffer in read if buffer.kind != "input")
    return results >= _LARGE and results >= _SMALLER * operands
