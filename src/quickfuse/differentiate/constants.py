"""Contents of tensors in a trace that depend on no input: PyTorch's own formulas look at such tensors now and then."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..ir.arguments import map_leaves
from ..ir.cost_model import COSTS
from ..ir.values import TensorMeta


class _NotConstant(Exception):
    pass


def value_of(node: Node) -> torch.Tensor | None:
    """What a node computes, None where that depends on an input, is random, or is much work."""
    try:
        value = _value(node, {})
    except _NotConstant:
        return None
    return value if isinstance(value, torch.Tensor) else None


def _value(node: Node, known: dict[Node, Any]) -> Any:
    if node in known:
        return known[node]
    target: Any = node.target
    meta = node.meta.get("val")
    too_large = isinstance(meta, TensorMeta) and (meta.numel > COSTS.most_constant_elements or meta.device.type != "cpu")
    if len(known) >= COSTS.most_constant_nodes or too_large or not _is_known(node, target):
        raise _NotConstant
    args, kwargs = map_leaves(lambda v: _value(v, known) if isinstance(v, Node) else v, (node.args, node.kwargs))
    with torch.no_grad():
        known[node] = target(*args, **kwargs)
    return known[node]


def _is_known(node: Node, target: Callable[..., Any]) -> bool:
    """Whether a node's operator always gives the same for the same operands."""
    if node.op != "call_function":
        return False
    if target is operator.getitem or target is torch.tensor:
        return True
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return not target._schema.is_mutable and "empty" not in target._schema.name
