"""Gradients: a captured graph -> a forward and a backward graph of ATen operators.

`joint` traces both into one graph, `partition` chooses what forward keeps for backward, and `split` cuts the graph.
"""

from __future__ import annotations

import torch
from torch.fx import Graph

from .. import logs
from ..ir.gradients import Differentiated, Variant
from .joint import trace
from .partition import partition, plan_like
from .split import build_backward, describe, split

__all__ = ["describe", "differentiate"]


def differentiate(graph: Graph, whole: bool = False) -> Differentiated:
    """The forward and backward graphs of a captured graph, whose outputs or changed inputs need gradients. With `whole`
    all of it is traced, also what comes after the last gradient.

    Raises:
        Unsupported: with the reason, where the gradients are left to eager.
    """
    grad_enabled = torch.is_grad_enabled()
    with logs.stage("differentiate"):
        joint = trace(graph, grad_enabled, whole=whole)
    with logs.stage("partition"):
        plan = partition(joint)
        made = split(joint, plan)

    def variant(absent: frozenset[int]) -> Variant:
        other = trace(graph, grad_enabled, absent, whole)
        backward, _ = build_backward(other, plan_like(plan, joint, other))
        return Variant(backward, [node.meta["val"] for node in other.tangents])

    made.variant = variant
    return made
