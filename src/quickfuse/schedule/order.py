"""The order of fusion groups: as early as they can be, but for what would only take memory until it is needed.

A backward pass computes a lot again from saved tensors. All of it could be computed at its start, long before the gradients
that need it, and would no longer be in the processor's caches by then. And the parts of one buffer, which nothing reads
before the last of them is stored, are stored together: in one kernel, where they are alike.
"""

from __future__ import annotations

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Buffer, buffers_in

from .dependence import Node
from .fusion import FusionGroup, groups_of


def order(nodes: list[Node]) -> None:
    """Raise the ranks of groups to just below those of what depends on them, where that is better for memory."""
    groups = groups_of(nodes)
    users: dict[FusionGroup, set[FusionGroup]] = {}
    writers: dict[Buffer, set[FusionGroup]] = {}
    for node in nodes:
        assert node.group is not None
        for dependence in node.before:
            group = dependence.before.group
            if group is not None and group is not node.group:
                users.setdefault(group, set()).add(node.group)
        if node.store is not None and node.store.access.buffer.kind in ("temp", "output"):
            writers.setdefault(node.store.access.buffer, set()).add(node.group)
    for group in sorted(groups, key=lambda group: (-group.rank, group.is_call, -group.index)):
        latest = min([user.rank for user in users.get(group, ())], default=1 << 62) - (not group.is_call)
        if group in users and _takes_memory(group):
            group.rank = max(group.rank, latest)
        else:
            last = max([other.rank for buffer in _stored(group) for other in writers.get(buffer, ())], default=0)
            group.rank = max(group.rank, min(latest, last))


def _stored(group: FusionGroup) -> set[Buffer]:
    return {node.store.access.buffer for node in group.nodes if node.store is not None}


def _takes_memory(group: FusionGroup) -> bool:
    """Whether much more memory is in use after a group than before."""
    made: set[Buffer] = set()
    read: set[Buffer] = set()
    for node in group.nodes:
        if node.call is not None:
            made.update(node.call.outputs)
            read.update(buffers_in((node.call.args, node.call.kwargs)))
        elif node.store is not None:
            made.add(node.store.access.buffer)
            read.update(access.buffer for access in node.loads)
    if any(buffer.kind in ("input", "flag") for buffer in made):
        return False
    results = sum(buffer.meta.span_bytes for buffer in made)
    operands = sum(buffer.meta.span_bytes for buffer in read - made if buffer.kind != "input")
    return results >= COSTS.large_bytes and results >= COSTS.smaller_operands * operands
