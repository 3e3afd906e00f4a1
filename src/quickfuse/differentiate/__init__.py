"""Gradients: a captured graph -> a forward and a backward graph of ATen operators.

`joint` traces both into one graph, `partition` chooses what forward keeps for backward, and `halves` cuts the graph.
"""

from __future__ import annotations

from torch.fx import Graph

from .. import logs
from ..ir.gradients import Differentiated
from .halves import build_backward, describe, halves
from .joint import trace
from .partition import partition

__all__ = ["describe", "differentiate"]


def differentiate(graph: Graph) -> Differentiated:
    """The forward and backward graphs of a captured graph, whose outputs or changed inputs need gradients.

    Raises:
        Unsupported: with the reason, where the gradients are left to eager.
    """
    with logs.stage("differentiate"):
        joint = trace(graph)
    with logs.stage("partition"):
        plan = partition(joint)
        made = halves(joint, plan)
    position = {node: k for k, node in enumerate(joint.graph.nodes)}
    return made
