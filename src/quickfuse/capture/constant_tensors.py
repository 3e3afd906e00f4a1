"""Tensors that the captured code made of constants. What is in one is computed where control flow asks, or a size is one.

Libraries count in tensors: `torch.tensor(shapes).prod(1).sum() == length`, `torch.div(length, 2, rounding_mode="trunc")`.
Such a tensor stays in the graph. Only its value is worked out by the way, from the nodes that lead to it, on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

from ..ir.values import NumberMeta, TensorMeta
from .mutation import name_of

#: What is computed: operators on few numbers, which neither draw random ones nor change anything.
_OPERATORS = frozenset(
    "tensor as_tensor scalar_tensor full zeros ones arange linspace add sub mul div truediv floordiv floor_divide remainder "
    "mod neg pow abs eq ne lt le gt ge logical_and logical_or logical_not and_ or_ invert maximum minimum clamp ceil floor "
    "round trunc sqrt where sum prod max min amax amin all any cumsum cumprod stack cat view reshape flatten squeeze "
    "unsqueeze getitem select narrow unbind split chunk expand repeat flip transpose permute to long int float double bool "
    "clone detach contiguous".split()
)
#: How many nodes may lead to a tensor, and how many elements each may have.
_MOST_NODES = 48
_MOST_ELEMENTS = 1024


def value_of(
    node: torch.fx.Node, is_changed: Callable[[torch.fx.Node], bool], number: Callable[[torch.fx.Node], Any] | None = None
) -> torch.Tensor | None:
    """The tensor that a node of the graph gives, if it is made of constants alone; `is_changed` tells of tensors that
    were stored to. `number` gives the values of numbers from outside, with guards, where these count as constants."""
    order: dict[torch.fx.Node, None] = {}
    if not _is_constant(node, is_changed, order, number is not None):
        return None
    numbers = [at for at in order if isinstance(at.meta["val"], NumberMeta)]
    found: dict[torch.fx.Node, Any] = {at: number(at) for at in numbers} if number is not None else {}
    try:
        with torch.no_grad():
            for at in [at for at in order if at not in found]:
                args, kwargs = (map_arg(part, found.__getitem__) for part in (at.args, at.kwargs))
                function = getattr(torch.Tensor, at.target) if isinstance(at.target, str) else at.target
                found[at] = function(*args, **kwargs)
    except Exception:  # the operator itself will raise it
        return None
    return found[node] if type(found[node]) is torch.Tensor else None


def _is_constant(
    node: torch.fx.Node, is_changed: Callable[[torch.fx.Node], bool], order: dict[torch.fx.Node, None], numbers: bool
) -> bool:
    """Whether a node is computed from constants. `order` gets what it is computed from, and then the node itself. With
    `numbers`, those from outside count as constants."""
    if node in order:
        return True
    meta = node.meta.get("val")
    if numbers and isinstance(meta, NumberMeta) and not meta.from_tensor:
        order[node] = None
        return True
    if node.op not in ("call_function", "call_method") or len(order) >= _MOST_NODES or is_changed(node):
        return False
    name = node.target if isinstance(node.target, str) else name_of(node.target)
    name = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    if name not in _OPERATORS or not _is_small(meta) or node.kwargs.get("out") is not None:
        return False
    if not all(_is_constant(operand, is_changed, order, numbers) for operand in node.all_input_nodes):
        return False
    order[node] = None
    return len(order) <= _MOST_NODES


def _is_small(meta: Any) -> bool:
    if isinstance(meta, (list, tuple)):
        return all(map(_is_small, meta))
    return isinstance(meta, TensorMeta) and meta.device.type == "cpu" and meta.numel <= _MOST_ELEMENTS
