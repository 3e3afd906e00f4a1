"""Values that are compared for equality: these are computed once, since kernels may differ in the last bit."""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from quickfuse.ir.nodes import is_view
from quickfuse.ir.values import TensorMeta

aten = torch.ops.aten

_EQUALITIES = frozenset({aten.eq.Tensor, aten.ne.Tensor, torch.eq, torch.ne, operator.eq, operator.ne, "eq", "ne"})


def compared_for_equality(graph: Graph) -> frozenset[Node]:
    """The nodes whose values are compared for equality, directly or by a view, and used elsewhere, too."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.target in _EQUALITIES and len(node.all_input_nodes) > 1:
            for operand in node.all_input_nodes:
                whole = operand
                while whole.all_input_nodes and is_view(whole.target):
                    whole = whole.all_input_nodes[0]
                meta = whole.meta.get("val")
                if not isinstance(meta, TensorMeta) or not meta.dtype.is_floating_point or meta.numel == 1:
                    continue
                if len(whole.users) > 1 or len(operand.users) > 1:
                    found.add(whole)
    return frozenset(found)
