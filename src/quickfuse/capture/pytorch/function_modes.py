"""`TorchFunctionMode`s: two of PyTorch's own, and the program's.

In one for masks, indices of one element stay tensors, where indexing would read their values. `with torch.device(...)` gives
functions that make tensors their device.

The program's own see every call of a function or method of PyTorch's, and every attribute of a tensor that is read. What
they do with it is captured: see `torch_function.by_mode`. Whatever else they might see ends the graph in front of the block.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors

from ...errors import Unsupported
from ..interpreter import Args, Interpreter, Kwargs
from ..library.higher_order import IndexingMode
from ..objects.class_attributes import python_method
from ..symbolic import Symbol, TensorProxy, tensors_among, type_of
from ..symbolic.kinds import is_trusted_module

#: Part of PyTorch's compiler, which capture does not import.
INDEXING = "torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex"


def make_indexing(i: Interpreter) -> Any:
    """The mode, which is only ever entered in captured code: a break in its block ends the segment in front of this."""
    i.outside.classes_made.setdefault(IndexingMode, i.performed)
    return i.mark_created(object.__new__(IndexingMode))


def _push(i: Interpreter, mode: Any) -> None:
    cls = type_of(mode)
    if cls is not IndexingMode and f"{cls.__module__}.{cls.__name__}" != INDEXING:
        own = python_method(i, mode, "__torch_function__") is not None and issubclass(cls, TorchFunctionMode)
        inside = i.graph.indexing_modes or i.graph.default_device is not None or i.graph.nested
        if not own or is_trusted_module(cls.__module__) or inside:
            raise Unsupported(f"the torch function mode {cls.__name__}")
        i.graph.user_modes.append((mode, i.performed))
        return
    if i.graph.user_modes:
        raise Unsupported("a mode for indices in another torch function mode")
    i.graph.indexing_modes.append((mode, i.performed))


def _pop(i: Interpreter) -> Any:
    if i.graph.user_modes:
        return i.graph.user_modes.pop()[0]
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


def _enter_device(i: Interpreter, device: torch.device) -> torch.device:
    if device.type not in ("cpu", "cuda") or i.graph.indexing_modes or i.graph.user_modes or i.graph.nested:
        raise Unsupported(f"the context manager {device}")
    i.graph.device_blocks.append((device, i.performed))
    return device


def _leave_device(i: Interpreter, device: torch.device, *_: Any) -> None:
    if not i.graph.device_blocks or i.graph.indexing_modes:
        raise Unsupported("leaving a torch.device that was entered outside")
    i.graph.device_blocks.pop()


def block_of_peer(i: Interpreter, begins: bool) -> None:
    """The beginning or end of a block with other options of PyTorch's compiler, which compiles nothing within a graph."""
    if begins:
        i.graph.peer_blocks.append(i.performed)
    elif not i.graph.peer_blocks:
        raise Unsupported("leaving a block with options of PyTorch's compiler that was entered outside")
    else:
        i.graph.peer_blocks.pop()


def on_device(i: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The keyword arguments of a call within `with torch.device(...)`, or where a default device is set.

    PyTorch's functions that are written in Python are called without the mode. For the CPU that makes no difference, as
    tensors are made there otherwise, too; unless they are made of others.
    """
    try:
        makes_tensors = function in _device_constructors()
    except Exception:  # it cannot be hashed
        makes_tensors = False
    if not makes_tensors:
        return kwargs
    if kwargs.get("device") is not None:
        return kwargs
    device = i.graph.default_device
    if not i.in_library():
        return {**kwargs, "device": device}
    if device.type != "cpu" or any(t.meta.device.type != "cpu" for t in tensors_among((*args, *kwargs.values()))):
        raise Unsupported("PyTorch's own code that makes tensors within a torch.device")
    return kwargs


def _count(i: Interpreter) -> int:
    devices = len(i.graph.device_blocks) + (i.graph.device_around is not None)
    return len(i.graph.indexing_modes) + len(i.graph.user_modes) + devices


HANDLERS: dict[Any, Callable[..., Any]] = {
    IndexingMode: make_indexing,
    torch._C._push_on_torch_function_stack: _push,
    torch._C._pop_torch_function_stack: _pop,
    torch._C._len_torch_function_stack: _count,
    torch.device.__enter__: _enter_device, torch.device.__exit__: _leave_device,
}
