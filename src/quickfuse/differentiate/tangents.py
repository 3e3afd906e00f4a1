"""Gradients in a trace: how those that backward is given are laid out, and those that it gives."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from ..errors import Unsupported
from ..ir.gradients import takes_gradients
from ..ir.values import TensorMeta
from .layouts import Out
from .plain_shapes import like_first

#: Why a gradient cannot be traced.
CHANGED = "a tensor that backward needs is changed in place"
#: What backward raises then.
_REFUSED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: the compiled function "
    "changes it after what it computed from it. Hint: enable anomaly detection to find the operation that failed to compute "
    "its gradient, with torch.autograd.set_detect_anomaly(True)."
)


def is_added(node: Node) -> bool:
    """Whether a gradient is only added to a leaf's, by `backward()`: its strides, which capture cannot know, are nobody's
    business then."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and takes_gradients(source) and all(_adds(user, node) for user in node.users)


def _adds(user: Node, gradient: Node) -> bool:
    if user.target == "clone":
        return user.kwargs.get("memory_format") is torch.contiguous_format
    return user.target in ("copy_", "add_") and user.args[0] is not gradient


def gradients_of(outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any], order: list[int]) -> Sequence[Any]:
    """As `torch.autograd.grad`, which imports a library for symbolic sizes to compare the tangents' shapes. The numbers of
    the inputs are added to `order` when their gradients are there."""
    for k, tensor in enumerate(inputs):
        tensor.register_hook(lambda _, k=k: order.append(k))
    engine: Any = torch.autograd.Variable._execution_engine
    found: Sequence[Any] = engine.run_backward(
        tuple(outputs), tuple(tangents), False, False, tuple(inputs), allow_unreachable=True, accumulate_grad=False
    )
    return found


def tangent_layout(meta: TensorMeta, strides: tuple[int, ...] | None = None) -> TensorMeta:
    """The layout in which backward takes the gradient of an output: the output's, where that has no gaps, or `strides`."""
    if strides is not None:
        return TensorMeta(meta.dtype, meta.shape, strides, meta.device)
    known = like_first([meta])
    if type(known) is Out:
        return known.meta
    with torch._C._DisableTorchDispatch():  # these are no operators of the program
        stand_in = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")
        dense = torch.empty_like(stand_in)  # keeps the strides of what is dense
    return TensorMeta(meta.dtype, meta.shape, dense.stride(), meta.device)


def used_up_of(outputs: Sequence[Any], inputs: Sequence[Any]) -> dict[int, str]:
    """The outputs of a graph that has taken gradients whose history is gone, with PyTorch's message; and those of which
    backward is refused, as the graph then changed what it needs: the parameters, in an optimizer's step."""
    found: dict[int, str] = {}
    for number, output in enumerate(outputs):
        try:
            torch.autograd.grad([output], inputs, [torch.ones_like(output)], retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            found[number] = str(error)
        except Unsupported as unsupported:
            if unsupported.reason != CHANGED:
                raise
            found[number] = _REFUSED
    return found
