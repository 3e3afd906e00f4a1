"""Parameters that a captured function makes: tensors without a history, of another class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import TENSOR_TYPES, TensorProxy
from .operators import call_tensor_method
from .torch_function import as_subclass


def _make_subclass(i: Interpreter, cls: Any, data: Any, requires_grad: Any = False, **options: Any) -> TensorProxy:
    """`torch.Tensor._make_subclass`, by which `torch.nn.Parameter` makes a tensor, and other classes do."""
    plain = type(data) is TensorProxy and data.cls is torch.Tensor and not options
    if plain and cls not in TENSOR_TYPES and not i.truth(requires_grad):
        return as_subclass(i, call_tensor_method(i, data, "detach", (), {}), cls)
    if cls is not Parameter or type(data) is not TensorProxy or data.cls not in TENSOR_TYPES or options:
        raise Unsupported("the native function torch.Tensor._make_subclass")
    if i.graph.nested or i.graph.inference.on or torch.is_inference_mode_enabled():
        raise Unsupported("a parameter made inside of a functional transform, checkpoint or inference mode")
    made: TensorProxy = call_tensor_method(i, data, "detach", (), {})
    if i.truth(requires_grad):
        call_tensor_method(i, made, "requires_grad_", (True,), {})
    made.cls = Parameter
    return made


HANDLERS: dict[Any, Callable[..., Any]] = {torch.Tensor._make_subclass: _make_subclass}
