"""PyTorch's own `TorchFunctionMode` for masks: indices of one element stay tensors, where indexing would read their values.

Other modes are left to Python: they may look at every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import Symbol, TensorProxy, type_of

_INDEXING = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


def _push(i: Interpreter, mode: Any) -> None:
    cls = type_of(mode)
    if (cls.__module__, cls.__name__) != _INDEXING:
        raise Unsupported(f"the torch function mode {cls.__name__}")
    i.graph.indexing_modes.append((mode, i.performed))


def _pop(i: Interpreter) -> Any:
    if not i.graph.indexing_modes:
        raise Unsupported("leaving a torch function mode that began outside")
    return i.graph.indexing_modes.pop()[0]


def as_indexed(i: Interpreter, target: Any, args: tuple[Any, ...]) -> Any:
    """`x[indices]` as the mode does it; NotImplemented where it leaves the call as it is."""
    if target not in (operator.getitem, "__getitem__"):
        return NotImplemented
    tensor, key = args
    indices = pytree.tree_leaves(key)
    if not all(type(v) is TensorProxy or isinstance(v, int) or (type(v) is Symbol and v.kind is int) for v in indices):
        return NotImplemented
    options = {"dtype": torch.int64, "device": tensor.meta.device}
    made = [v if type(v) is TensorProxy else i.graph.call("call_function", torch.tensor, (v,), options) for v in indices]
    return i.graph.call("call_function", torch.ops.aten.index.Tensor, (tensor, made), {})


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch._C._push_on_torch_function_stack: _push,
    torch._C._pop_torch_function_stack: _pop,
    torch._C._len_torch_function_stack: lambda i: len(i.graph.indexing_modes),
}
