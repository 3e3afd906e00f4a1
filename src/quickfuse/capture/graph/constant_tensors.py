"""Tensors that the captured code made of constants. What is in one is computed where control flow asks, or a size is one.

Libraries count in tensors: `torch.tensor(shapes).prod(1).sum() == length`, `torch.div(length, 2, rounding_mode="trunc")`.
Such a tensor stays in the graph. Only its value is worked out by the way, from the nodes that lead to it, on its device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.fx.node import map_arg

from ...ir.reading import READABLE
from ...ir.values import NumberMeta, TensorMeta
from ..inference.mutation import name_of

#: What is computed: operators on few numbers, which neither draw random ones nor change anything.
OPERATORS = frozenset(
    "tensor as_tensor scalar_tensor full zeros ones arange linspace full_like zeros_like ones_like new_full new_zeros "
    "new_ones add sub mul div truediv floordiv floor_divide remainder mod neg pow abs eq ne lt le gt ge logical_and "
    "logical_or logical_not and_ or_ invert maximum minimum clamp ceil floor round trunc sqrt where sum prod max min amax "
    "amin all any cumsum cumprod diff sort argsort stack cat view reshape flatten squeeze unsqueeze getitem select narrow "
    "unbind split chunk expand repeat roll flip pad meshgrid transpose permute index_select gather masked_fill tril triu to "
    "long int float double bool clone detach contiguous".split()
)
#: How many nodes may lead to a tensor, and how many elements each may have.
_MOST_NODES = 64
_MOST_ELEMENTS = 1 << 14


#: Of these the ones that give elements of their operand, and compute nothing.
VIEWS = frozenset(
    "view reshape flatten squeeze unsqueeze getitem select narrow unbind split chunk flip transpose permute detach".split()
)


class Given(Protocol):
    """What counts as a constant besides constants: numbers and tensors from outside that are guarded to stay the same."""

    operators: frozenset[str]

    def takes(self, node: torch.fx.Node) -> bool:
        """Whether the value of this input may be held."""

    def value(self, node: torch.fx.Node) -> Any:
        """Its value, which is guarded from now on."""


def value_of(
    node: torch.fx.Node, is_changed: Callable[[torch.fx.Node], bool], given: Given | None = None
) -> torch.Tensor | None:
    """The tensor that a node of the graph gives, if it is made of constants, and of what is `given`, alone; `is_changed`
    tells of tensors that were stored to."""
    order: dict[torch.fx.Node, None] = {}
    if not _is_constant(node, is_changed, order, given):
        return None
    inputs = [at for at in order if at.op == "placeholder" or isinstance(at.meta["val"], NumberMeta)]
    found: dict[torch.fx.Node, Any] = {at: given.value(at) for at in inputs} if given is not None else {}
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
    node: torch.fx.Node, is_changed: Callable[[torch.fx.Node], bool], order: dict[torch.fx.Node, None], given: Given | None
) -> bool:
    """Whether a node is computed from constants, and from what is given. `order` gets what it is computed from, and
    then the node itself."""
    if node in order:
        return True
    meta = node.meta.get("val")
    if given is not None and given.takes(node):
        order[node] = None
        return True
    if node.op not in ("call_function", "call_method") or len(order) >= _MOST_NODES or is_changed(node):
        return False
    name = node.target if isinstance(node.target, str) else name_of(node.target)
    name = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    operators = OPERATORS if given is None else given.operators
    if name not in operators or not _is_small(meta) or node.kwargs.get("out") is not None:
        return False
    if not all(_is_constant(operand, is_changed, order, given) for operand in node.all_input_nodes):
        return False
    order[node] = None
    return len(order) <= _MOST_NODES


def _is_small(meta: Any) -> bool:
    if isinstance(meta, (list, tuple)):
        return all(map(_is_small, meta))
    return isinstance(meta, TensorMeta) and meta.device.type in READABLE and meta.numel <= _MOST_ELEMENTS
