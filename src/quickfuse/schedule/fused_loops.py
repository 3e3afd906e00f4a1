"""Fusion groups as loops: vertical fusion.

Groups of one rank and index space that load the same elements become one loop, too. Groups that have nothing in common are
left apart: equal ones, such as the parameters of a model, become the members of one grouped kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Buffer, Program, Store, buffers_in

from .dependence import Kind, Node
from .fusion import FusionGroup, Operand, agree, are_few_operands, groups_of, operand
from .index_space import Shape, keeps_threads_busy


@dataclass(eq=False, slots=True)
class FusedLoop:
    """The stores of one loop. A value that one node stores and another one loads is used where it is computed.

    `kept[k]` says whether node k's store is done; of others only the value is used. `reduced` are the axes that the
    loop's reductions reduce, if it has any, or the one that is gone through in order, if `ordered`.
    """

    shape: Shape
    reduced: Shape
    device: torch.device
    rank: int
    nodes: list[Node]
    kept: list[bool]
    ordered: bool = False

    @property
    def stores(self) -> list[Store]:
        """The stores that are done."""
        return [node.store for node, kept in zip(self.nodes, self.kept, strict=True) if kept and node.store is not None]


def fused_loops(program: Program, nodes: list[Node]) -> list[FusedLoop]:
    """The loops of a program in the order of their first stores, without stores that nobody reads."""
    stores = [node for node in nodes if node.store is not None]
    _merge_common_loads(stores)
    needed = _needed(program, nodes)
    return [_loop(group, needed) for group in groups_of(stores)]


def _merge_common_loads(nodes: list[Node]) -> None:
    loading: dict[Operand, list[Node]] = {}
    for node in nodes:
        for access in node.loads:
            if not any(access.strides):
                continue  # a number that all elements share says nothing about belonging together
            others = loading.setdefault(operand(access), [])
            if not any(_merge(other.group, node.group) for other in others) and len(others) < COSTS.most_tried:
                others.append(node)


def _merge(one: FusionGroup | None, two: FusionGroup | None) -> bool:
    """Merge two groups that load the same elements, if that can be: those of one rank do not depend on each other.

    Returns whether they are one group then.
    """
    if one is two:
        return True
    alike = (one.rank, one.shape, one.device) == (two.rank, two.shape, two.device)
    if not alike or len(one.nodes) + len(two.nodes) > COSTS.most_fused_stores:
        return False
    fits = _may_share(one, two) and are_few_operands([one, two])
    if fits:
        one.absorb(two)
    return fits


def _may_share(one: FusionGroup, two: FusionGroup) -> bool:
    """Whether groups of one shape may be in one kernel for the sake of common loads."""
    if (one.reduced, one.ordered) == (two.reduced, two.ordered):
        return True
    if one.ordered or two.ordered or not agree([one, two]):
        return False
    return keeps_threads_busy(one.shape, one.reduced or two.reduced or ())


def _needed(program: Program, nodes: list[Node]) -> set[Buffer]:
    """Buffers whose contents are read outside the loop that fills them."""
    needed = set(buffers_in(program.outputs))
    for node in nodes:
        for dependence in node.before:
            writer = dependence.before
            if writer.store is None or writer.changes_input or dependence.kind is Kind.WRITE_AFTER_READ:
                continue
            if writer.group is not node.group:
                needed.add(writer.store.access.buffer)
    return needed


def _loop(group: FusionGroup, needed: set[Buffer]) -> FusedLoop:
    kept = {}
    nodes = sorted(group.nodes, key=lambda node: node.index)
    for node in nodes:
        buffer = node.store.access.buffer
        kept[node] = buffer.kind != "temp" or buffer in needed
    used = _used(nodes, kept)
    return FusedLoop(
        group.shape, group.reduced or (), group.device, group.rank, used, [kept[node] for node in used], group.ordered
    )


def _used(nodes: list[Node], kept: dict[Node, bool]) -> list[Node]:
    """The nodes whose stores are done, or whose values others of these use."""
    wanted: set[Buffer] = set()
    used = []
    for node in reversed(nodes):
        if kept[node] or node.store.access.buffer in wanted:
            used.append(node)
            wanted.update(access.buffer for access in node.loads)
    return used[::-1]
