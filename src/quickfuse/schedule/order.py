"""The order of fusion groups: as early as they can be, but for what would only take memory until it is needed.

A backward pass computes a lot again from saved tensors. All of it could be computed at its start, long before the gradients
that need it, and would no longer be in the processor's caches by then. And the parts of one buffer, which nothing reads
before the last of them is stored, are stored together: in one kernel, where they are alike.

On a GPU, launches count, too. What is made of inputs alone, such as weights in another type or layout, is made at the start,
and results that nothing else needs, such as the gradients of these weights and their updates, at the end, as far as that
takes little memory: equal loops of one rank are one launch. So are small ones that are needed at different times.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Buffer
from quickfuse.ir.target import CUDA

from .dependence import Node
from .fusion import FusionGroup, agree, are_few_operands, groups_of
from .index_space import Shape


def order(nodes: list[Node]) -> None:
    """Raise the ranks of groups to just below those of what depends on them, where that is better for memory."""
    groups = groups_of(nodes)
    users: dict[FusionGroup, set[FusionGroup]] = {}
    before: dict[FusionGroup, set[FusionGroup]] = {}
    writers: dict[Buffer, set[FusionGroup]] = {}
    for node in nodes:
        for dependence in node.before:
            group = dependence.before.group
            if group is not None and group is not node.group:
                users.setdefault(group, set()).add(node.group)
                before.setdefault(node.group, set()).add(group)
        if node.store is not None and node.store.access.buffer.kind in ("temp", "output"):
            writers.setdefault(node.store.access.buffer, set()).add(node.group)
    from_inputs = _within_limit([group for group in groups if group.rank == 0 and _is_made_of_inputs(group)], _stored)
    last_ones = {group for group in groups if group not in users and _makes_results(group)}
    readers = _readers(groups)
    results = _within_limit([*_with_those_beside(last_ones, _read_together(readers))], _read)
    last = max([group.rank for group in results], default=0)
    for group in results:
        group.rank = last
    read_until: dict[Buffer, int] = {}  # the last rank of those groups that have theirs
    beside: dict[FusionGroup, FusionGroup] = {}  # what is computed in the kernel of another group
    for group in sorted(groups, key=lambda group: (-group.rank, group.is_call, -group.index)):
        latest = min([user.rank for user in users.get(group, ())], default=1 << 62) - (not group.is_call)
        if group in beside:
            group.rank = beside[group].rank
        elif found := _made_beside(group, latest, before, users, readers):
            beside.update(found)
            group.rank = max(other.rank for other in found.values()) + 1
        elif group in from_inputs or group in results:
            pass
        elif group in users and _takes_memory(group, read_until, latest):
            group.rank = max(group.rank, latest)
        else:
            parts = [other.rank for buffer in _stored(group) for other in writers.get(buffer, ())]
            group.rank = max(group.rank, min(latest, max(parts, default=0)))
        if group.device is None or group.device.type == "cuda":
            for buffer in _read(group):
                read_until[buffer] = max(read_until.get(buffer, 0), group.rank)
    _gather_small([group for group in groups if group in users and _is_small(group)], users)
    for group, other in beside.items():
        if group.rank == other.rank and agree([group, other]) and are_few_operands([group, other]):
            other.absorb(group)


def _made_beside(
    call: FusionGroup, latest: int, before: dict[FusionGroup, set[FusionGroup]], users: dict[FusionGroup, set[FusionGroup]],
    readers: dict[tuple[Shape, Buffer], list[FusionGroup]],
) -> dict[FusionGroup, FusionGroup]:  # fmt: skip
    """What is made for a call alone, element by element, of a large tensor that another kernel reads just after the call,
    and that kernel: the call can wait for it."""
    found: dict[FusionGroup, FusionGroup] = {}
    for group in before.get(call, ()) if call.is_call else ():
        if group.reduced is not None or not _is_on_gpu(group) or users[group] != {call}:
            continue
        others = [
            other for buffer in _large_loads(group) for other in readers.get((group.shape, buffer), ())
            if other is not group and other.rank == call.rank < latest and agree([group, other])
        ]  # fmt: skip
        if others and not any(other in found.values() for other in others):
            found[group] = min(others, key=lambda other: other.index)
    return found


def _readers(groups: list[FusionGroup]) -> dict[tuple[Shape, Buffer], list[FusionGroup]]:
    """The kernels on a GPU that load each large tensor, by their shape."""
    readers: dict[tuple[Shape, Buffer], list[FusionGroup]] = {}
    for group in groups:
        for buffer in _large_loads(group) if _is_on_gpu(group) else ():
            readers.setdefault((group.shape, buffer), []).append(group)
    return readers


def _large_loads(group: FusionGroup) -> set[Buffer]:
    buffers = {access.buffer for node in group.nodes for access in node.loads}
    return {buffer for buffer in buffers if buffer.meta.span_bytes >= COSTS.large_bytes}


def _gather_small(groups: list[FusionGroup], users: dict[FusionGroup, set[FusionGroup]]) -> None:
    """Give groups that take next to no memory as few ranks as they can have together, each just before something needs one
    of them: parts of normalisations that belong to channels, for instance, are computed for many layers at once."""
    windows = [(max(min(user.rank for user in users[group]) - 1, group.rank), group) for group in groups]
    ranks = [-1]
    for latest, group in sorted(windows, key=lambda window: window[0]):
        if group.rank > ranks[-1]:
            ranks.append(latest)
    for group in groups:
        group.rank = ranks[bisect.bisect_left(ranks, group.rank)]


def _within_limit(groups: list[FusionGroup], memory: Callable[[FusionGroup], set[Buffer]]) -> set[FusionGroup]:
    """As many of some groups as take no more memory together than there is for it."""
    total, found, taken = 0, set(), set[Buffer]()
    for group in sorted(groups, key=lambda group: group.index):
        more = memory(group) - taken
        total += sum(buffer.meta.span_bytes for buffer in more)
        if total > CUDA.bytes_for_fewer_launches:
            break
        taken |= more
        found.add(group)
    return found


def _with_those_beside(groups: set[FusionGroup], together: list[list[FusionGroup]]) -> set[FusionGroup]:
    """The groups that are not `together` with any that is not among them."""
    left = set(groups)
    while apart := {group for beside in together if not left.issuperset(beside) for group in beside} & left:
        left -= apart
    return left


def _read_together(readers: dict[tuple[Shape, Buffer], list[FusionGroup]]) -> list[list[FusionGroup]]:
    """Groups of one rank that load the same large tensor, and may become one kernel."""
    together: dict[tuple[int, Shape, Buffer], list[FusionGroup]] = {}
    for (shape, buffer), groups in readers.items():
        for group in groups:
            together.setdefault((group.rank, shape, buffer), []).append(group)
    return [beside for beside in together.values() if len(beside) > 1]


def _is_made_of_inputs(group: FusionGroup) -> bool:
    """Whether a group on a GPU makes new tensors, element by element, of nothing but inputs."""
    return _is_on_gpu(group) and group.reduced is None and all(
        node.store is not None and node.store.access.buffer.kind in ("temp", "output")
        and all(access.buffer.kind == "input" for access in node.loads)
        for node in group.nodes
    )  # fmt: skip


def _makes_results(group: FusionGroup) -> bool:
    """Whether a group on a GPU stores nothing but outputs and inputs, as updates of parameters, and what only itself uses,
    and keeps little memory."""
    if not _is_on_gpu(group) or sum(buffer.meta.span_bytes for buffer in _read(group)) > CUDA.bytes_for_later_launch:
        return False
    return all(buffer.kind in ("temp", "output", "input") for buffer in _stored(group))


def _is_small(group: FusionGroup) -> bool:
    """Whether a group on a GPU makes few elements, each by itself, of few others."""
    if not _is_on_gpu(group) or group.reduced is not None:
        return False
    stored, read = _stored(group), _read(group)
    made_here = all(buffer.kind in ("temp", "output") for buffer in stored)
    return made_here and sum(buffer.meta.span_bytes for buffer in stored | read) <= CUDA.bytes_of_small_results


def _is_on_gpu(group: FusionGroup) -> bool:
    return group.device is not None and group.device.type == "cuda" and not group.is_call


def _read(group: FusionGroup) -> set[Buffer]:
    """The buffers that a group reads, of those that others store and no caller gave."""
    found: set[Buffer] = set()
    for node in group.nodes:
        if node.call is not None:
            found.update(node.call.reads)
        else:
            found.update(access.buffer for access in node.loads)
    return {buffer for buffer in found if buffer.kind != "input"} - _stored(group)


def _stored(group: FusionGroup) -> set[Buffer]:
    return {node.store.access.buffer for node in group.nodes if node.store is not None}


def _takes_memory(group: FusionGroup, read_until: dict[Buffer, int], latest: int) -> bool:
    """Whether much more memory is in use after a group than before, if it has the rank `latest`: operands that others read
    after that are there anyway."""
    made: set[Buffer] = set(_stored(group))
    for node in group.nodes:
        if node.call is not None:
            made.update(node.call.outputs)
    if any(buffer.kind in ("input", "flag") for buffer in made):
        return False
    results = sum(buffer.meta.span_bytes for buffer in made)
    operands = sum(buffer.meta.span_bytes for buffer in _read(group) - made if read_until.get(buffer, -1) < latest)
    return results >= COSTS.large_bytes and results >= COSTS.smaller_operands * operands
