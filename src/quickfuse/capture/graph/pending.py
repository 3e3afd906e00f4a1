"""What a later backward may want: the values that are computed into what autograd has recorded and not gone through."""

from __future__ import annotations

import torch

from ..symbolic import TensorProxy
from .builder import Builder
from .contents import owners


def may_be_wanted(graph: Builder, tensor: TensorProxy) -> bool:
    """Whether something that autograd may yet take gradients of was computed from what is in a tensor."""
    if tensor.node is None:
        return False
    history = graph.history
    open_calls = history.open_calls()
    if not open_calls:
        return False
    if history.wanted is None or history.wanted[0] != open_calls:
        history.wanted = (open_calls, _computed_from(graph.graph, open_calls))
    return tensor.node in history.wanted[1]


def _computed_from(graph: torch.fx.Graph, calls: set[torch.fx.Node]) -> set[torch.fx.Node]:
    """What the operands of some calls were computed from, by what was written to them among that."""
    found = set(calls)
    for node in reversed(graph.nodes):
        effects = node.meta.get("effects")
        writes = effects is not None and effects.written
        if node in found or (writes and any(not found.isdisjoint(owners(operand)) for operand in node.all_input_nodes)):
            found.update(node.all_input_nodes)
            for operand in node.all_input_nodes if node in calls or writes else ():
                found.update(owners(operand))
    return found
