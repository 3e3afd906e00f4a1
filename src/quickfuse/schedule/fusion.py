"""Fusion: nodes are merged into groups, each of which becomes one kernel.

Nodes are taken in topological order, and each is put into a group for good. A group has a rank: what comes before a kernel
is in groups of lower rank, or are calls of the same rank, which run first. So the graph of groups has no cycles, by
construction. A node joins groups of the rank that it must have at least, where each dependence on them joins the same
element at each index, or a finished reduction of an earlier pass; otherwise it begins a group of its own, one rank up.

A group that only reduces, and that nothing depends on yet, waits for its first user: its rank is raised to that of the
user. Nothing is ever undone, so the work is that of looking at each dependence once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Access, Buffer
from quickfuse.ir.reindex import IndexMap
from quickfuse.ir.target import OPERATION_COSTS, costs_on

from .dependence import Dependence, Kind, Node, topological_order
from .index_space import Shape, embedding, one_by_one, same_elements

#: An element of a buffer as a function of the indices.
Operand = tuple[int, int, tuple[int, ...]]


@dataclass(eq=False, slots=True)
class FusionGroup:
    """Nodes that run together: stores of one index space, or a call alone, or a barrier.

    `reduced`: the axes that are reduced for all of them, or the one that they go along in order, if `ordered`; None where
    none of them does either, and `one_by_one` if vectors do not help there. `is_used`: something in another group depends on
    it. `operands`: the elements that it reads or writes.
    """

    nodes: list[Node]
    rank: int
    shape: Shape = ()
    device: torch.device | None = None
    reduced: Shape | None = None
    ordered: bool = False
    one_by_one: bool = False
    is_used: bool = field(default=False)
    operands: set[Operand] = field(default_factory=set)

    @property
    def is_call(self) -> bool:
        """Whether it runs before the kernels of its rank. A barrier does nothing and may as well."""
        return self.nodes[0].store is None

    @property
    def index(self) -> int:
        return min(node.index for node in self.nodes)

    def absorb(self, other: FusionGroup) -> FusionGroup:
        """Merge two groups of one rank; the larger one stays. Returns it."""
        if len(other.nodes) > len(self.nodes):
            return other.absorb(self)
        for node in other.nodes:
            node.group = self
        self.nodes += other.nodes
        self.operands |= other.operands
        if other.reduced is not None:
            self.reduced, self.ordered = other.reduced, other.ordered
        self.one_by_one = self.one_by_one or other.one_by_one
        self.is_used = self.is_used or other.is_used
        return self

    @property
    def only_reduces(self) -> bool:
        return self.reduced is not None and all(node.reduced is not None for node in self.nodes)


def groups_of(nodes: list[Node]) -> list[FusionGroup]:
    """The distinct groups of some nodes, in the order of their first nodes."""
    return list(dict.fromkeys([node.group for node in nodes if node.group is not None]))


def fuse(nodes: list[Node], together: list[list[Node]], cut: Collection[Buffer] = ()) -> None:
    """Give each node its group. Nodes that are `together` wait for each other in a circle, and are put into one group.

    What reads a buffer that is `cut` is in a later kernel than what fills it.
    """
    circles = {node: circle for circle in together for node in circle}
    waiting = {id(circle): len(circle) for circle in together}
    for node in topological_order(nodes):
        circle = circles.get(node, [node])
        if len(circle) > 1:
            waiting[id(circle)] -= 1
            if waiting[id(circle)]:
                continue
        _Placement(circle, cut).place()


class _Placement:
    """Finds the group of a node, or of some that must be together."""

    def __init__(self, nodes: list[Node], cut: Collection[Buffer]) -> None:
        self.nodes = nodes
        self.cut = cut
        first = nodes[0]
        self.shape, self.device = first.shape, first.device
        self.reduced, self.ordered = first.reduced, first.ordered
        used = _operands(nodes)
        alone = any(node.store is not None and one_by_one(node.shape, node.store, node.device) for node in nodes)
        self.own = FusionGroup(list(nodes), 0, self.shape, self.device, self.reduced, self.ordered, alone, operands=used)
        self.before: dict[int, tuple[FusionGroup, list[Dependence]]] = {}
        for node in nodes:
            for dependence in node.before:
                group = dependence.before.group
                if group is not None:
                    self.before.setdefault(id(group), (group, []))[1].append(dependence)

    def place(self) -> None:
        if self.nodes[0].store is None:
            rank = max([_after(group) for group, _ in self.before.values()], default=0)
            self._begin(rank)
            return
        fusable = [group for group, dependences in self.before.values() if self._may_join(group, dependences)]
        known = {id(group) for group in fusable}
        rank = max([_after(group) for key, (group, _) in self.before.items() if key not in known], default=0)
        rank = max([rank, *[group.rank for group in fusable]])
        joined = [group for group in fusable if group.rank == rank]
        if not self._may_be_one(joined):
            rank, joined = rank + 1, []
        for group in fusable:
            waits = group.rank < rank and not group.is_used and group.only_reduces  # what it stores is small
            if waits and self._may_be_one([*joined, group]):
                joined.append(group)
        self._join(rank, joined)

    def _may_be_one(self, groups: list[FusionGroup]) -> bool:
        """Whether some groups may be one with the nodes in it."""
        every = [*groups, self.own]
        if not agree(groups if self.reduced is None else every) or _need_vectors(every):
            return False
        return not groups or are_few_operands(every)

    def _way_into(self, group: FusionGroup) -> IndexMap | None:
        """How the nodes may be in the index space of a group with reductions, as a function of its indices."""
        if self.shape == group.shape or self.reduced is not None or not group.reduced or group.ordered:
            return None
        return embedding(self.shape, group.shape, group.reduced)

    def _may_join(self, group: FusionGroup, dependences: list[Dependence]) -> bool:
        """Whether the nodes may be in the kernel of a group that they depend on."""
        if group.is_call or group.device != self.device:
            return False
        way = self._way_into(group)
        if way is None and self.shape != group.shape:
            return False
        return all(self._is_same_element(group, dependence, way) for dependence in dependences)

    def _is_same_element(self, group: FusionGroup, dependence: Dependence, way: IndexMap | None) -> bool:
        mine, theirs, other = dependence.mine, dependence.theirs, dependence.before
        if mine is None or theirs is None:
            return False
        if dependence.kind is Kind.READ_AFTER_WRITE and theirs.buffer in self.cut:
            return False
        mine = mine if way is None else way.access(mine)
        theirs = theirs if other.into is None else other.into.access(theirs)
        return same_elements(group.shape, mine, theirs)

    def _join(self, rank: int, joined: list[FusionGroup]) -> None:
        if not joined:
            self._begin(rank)
            return
        way, space = self._way_into(joined[0]), joined[0].shape
        merged = joined[0]
        for group in joined:
            group.rank = rank
        for group in joined[1:]:
            merged = merged.absorb(group)
        for node in self.nodes:
            if way is not None:
                node.embed(way, space)
            node.group = merged
        merged.nodes += self.nodes
        merged.operands |= self.own.operands
        if self.reduced is not None:
            merged.reduced, merged.ordered = self.reduced, self.ordered
        merged.one_by_one = merged.one_by_one or self.own.one_by_one
        self._note_uses(merged)

    def _begin(self, rank: int) -> None:
        self.own.rank = rank
        for node in self.nodes:
            node.group = self.own
        self._note_uses(self.own)

    def _note_uses(self, mine: FusionGroup) -> None:
        for group, dependences in self.before.values():
            group = dependences[0].before.group or group  # it may be a part of another one by now
            if group is not mine:
                group.is_used = True


def _after(group: FusionGroup) -> int:
    """The least rank of a kernel that depends on a group without being in it, or of a call."""
    return group.rank if group.is_call else group.rank + 1


def agree(groups: list[FusionGroup]) -> bool:
    """Whether groups may be one, as far as their index spaces go."""
    spaces = {(group.shape, group.device) for group in groups}
    reduced = {(group.reduced, group.ordered) for group in groups if group.reduced is not None}
    return len(spaces) <= 1 and len(reduced) <= 1 and not _need_vectors(groups)


def _need_vectors(groups: list[FusionGroup]) -> bool:
    """Whether some groups compute something costly, and others would make them do so for one element at a time."""
    if not any(group.one_by_one for group in groups):
        return False
    return any(_is_costly(node) for group in groups if not group.one_by_one for node in group.nodes)


def _is_costly(node: Node) -> bool:
    code = () if node.reading is None else node.reading.code
    cost = sum(OPERATION_COSTS.get(entry[0], 0) for entry in code if isinstance(entry, tuple))
    return cost >= COSTS.most_one_by_one


def are_few_operands(groups: list[FusionGroup]) -> bool:
    """Whether groups read and write few enough elements to be one kernel."""
    most = _most_operands(groups[0].device)
    if not most or sum(len(group.operands) for group in groups) <= most:
        return True
    return len(set().union(*[group.operands for group in groups])) <= most


def operand(access: Access) -> Operand:
    """What tells an element that is read or written from others of the same index space."""
    return id(access.buffer), access.offset, access.strides


def _operands(nodes: list[Node]) -> set[Operand]:
    """What nodes read and write; nothing where that has no limit."""
    if not _most_operands(nodes[0].device):
        return set()
    return {operand(access) for node in nodes for access in (*node.loads, node.target) if access is not None}


def _most_operands(device: torch.device | None) -> int:
    return 0 if device is None else costs_on(device).most_fused_operands
