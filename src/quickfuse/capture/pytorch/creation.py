"""Tensors made of data, of sizes or of other tensors: `torch.tensor`, `torch.from_numpy`, `torch.Tensor(2, 3)`."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ...errors import Unsupported
from ...ir.reading import copied_tensor
from ..interpreter import Args, Interpreter, Kwargs
from ..objects.arrays import tensor_of
from ..objects.containers import iterate
from ..symbolic import real_of, type_of
from ..symbolic.graph_values import TENSOR_TYPES, Symbol, TensorProxy
from ..symbolic.made import HeldArray
from ..symbolic.outside import ForeignArray, numpy_class
from . import settings, torch_function
from .operators import call_operator, call_tensor_method
from .tensors_of_numbers import numbers_of_numpy, of_tensors_and_numbers


def _tensor(i: Interpreter, data: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.tensor`."""
    return _made_of(i, data, False, lambda i, data, *args, **kwargs: call_operator(i, torch.tensor, (data, *args), kwargs),
                    args, kwargs)  # fmt: skip


def _as_tensor(i: Interpreter, data: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.as_tensor`."""
    return _made_of(i, data, True, _of_number_or_tensor, args, kwargs)


def _made_of(i: Interpreter, data: Any, shares: bool, make: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What `torch.tensor` or `torch.as_tensor` makes of something; `shares`: it may have the memory of an array."""
    if type(data) in (ForeignArray, HeldArray):
        return _converted(i, tensor_of(i, data, shares), *args, **kwargs)
    if type_of(data) is collections.deque:
        data = list(iterate(i, data))  # which PyTorch makes the same tensor of
    if not args and (numbers := _number_of_numpy(i, data) or numbers_of_numpy(i, data, kwargs)) is not None:
        given = {name: option for name, option in kwargs.items() if option is not None}
        return make(i, numbers[0], **{"dtype": numbers[1], **given})
    if not (args or kwargs) and _are_single_numbers(i, data):
        return call_operator(i, torch.stack, ([call_tensor_method(i, number, "detach", (), {}) for number in data],), {})
    if not (args or kwargs.keys() - {"dtype", "device", "requires_grad"}):
        made = of_tensors_and_numbers(i, data, **kwargs)
        if made is not NotImplemented:
            return made
    return make(i, data, *args, **kwargs)


def _of_number_or_tensor(i: Interpreter, data: Any, dtype: Any = None, device: Any = None) -> Any:
    """A tensor that is of this type and there already is returned as it is; a number becomes a new tensor."""
    options = {name: v for name, v in (("dtype", dtype), ("device", device)) if v is not None}
    if type(data) is TensorProxy:
        return call_tensor_method(i, data, "to", (), options) if options else data
    return call_operator(i, torch.tensor, (data,), options)


def _are_single_numbers(i: Interpreter, data: Any) -> bool:
    """Whether a list holds nothing but tensors of one type with a number each, which its tensor has as they are."""
    if type(data) is not list or not data or i.graph.default_device is not None:
        return False
    if not all(type(t) is TensorProxy and t.cls is torch.Tensor for t in data):
        return False
    kinds = {(t.meta.dtype, t.meta.device.type, t.meta.shape, t.meta.requires_grad) for t in data}
    return kinds == {(data[0].meta.dtype, "cpu", (), False)}


def _number_of_numpy(i: Interpreter, value: Any) -> tuple[Any, torch.dtype] | None:
    """A number of NumPy's as a plain one, and the type of a tensor of it; None for other things."""
    real = real_of(value)
    real = value.hint if type(value) is Symbol and value.cls is not value.kind else real
    if numpy_class(real) is None or (made := copied_tensor(np.asarray(real))) is None:
        return None
    return (i.graph.number(value.kind, value) if type(value) is Symbol else i.outside.number(value)), made.dtype


def _converted(
    i: Interpreter, made: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False, **others: Any
) -> Any:
    """What `torch.tensor` and `torch.as_tensor` make of the tensor that an array became."""
    if others:
        raise Unsupported(f"a tensor of an array of NumPy's with {', '.join(others)}")
    options = {name: i.outside.concrete(v) for name, v in (("dtype", dtype), ("device", device)) if v is not None}
    made = call_tensor_method(i, made, "to", (), options) if options else made
    return call_tensor_method(i, made, "requires_grad_", (), {}) if i.truth(requires_grad) else made


def _from_numpy(i: Interpreter, array: Any) -> Any:
    if type(array) not in (ForeignArray, HeldArray):
        raise Unsupported("the native function torch.from_numpy")
    return tensor_of(i, array, True)


def _variable(i: Interpreter, data: Any, requires_grad: Any = None) -> Any:
    """`torch.autograd.Variable(x)`, of code from before PyTorch 0.4: the same memory, apart from autograd."""
    if type(data) is not TensorProxy or type(requires_grad) not in (bool, type(None)):
        raise Unsupported("making a Variable of something else than a tensor")
    made = call_tensor_method(i, data, "detach", (), {})
    if requires_grad and not (made.meta.dtype.is_floating_point or made.meta.dtype.is_complex):
        raise Unsupported("making a Variable of whole numbers")
    return call_tensor_method(i, made, "requires_grad_", (), {}) if requires_grad else made


def _maker(cls: Any) -> Callable[..., Any]:
    """`torch.IntTensor([...])`: a tensor on the CPU, of numbers of its kind. `torch.IntTensor(2, 3)` has that shape. What
    `torch.Tensor` gives is of the default type, or, of another tensor, has its memory."""

    def make(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        is_default = cls is torch.Tensor
        dtype = settings.default_dtype(i) if is_default else cls.dtype
        options = {"dtype": dtype, "device": "cpu"}
        if kwargs:
            raise Unsupported(f"making a {cls.__name__} with options")
        if _are_sizes(args):
            return call_operator(i, torch.empty, args, options)
        if len(args) == 1 and type(args[0]) in (ForeignArray, HeldArray):  # whose memory it has where their types agree
            return _as_tensor(i, args[0], dtype=dtype)
        given = i.outside.contents(args[0]) if len(args) == 1 else None
        if is_default and type(given) is TensorProxy:
            return call_operator(i, torch.ops.aten.alias.default, (given,), {})
        kinds = (bool,) if dtype is torch.bool else (int, float) if dtype.is_floating_point else (int,)
        kinds = (*kinds, bool) if is_default else kinds
        if type(given) not in (list, tuple) or not given or any(type_of(n) not in kinds for n in given):
            raise Unsupported(f"making a {cls.__name__} of other things than numbers of its kind")
        return call_operator(i, torch.tensor, (given,), options)

    return make


def _are_sizes(args: tuple[Any, ...]) -> bool:
    """Whether the class of a tensor is called with a shape, for memory that nobody has written to."""
    if len(args) == 1 and type_of(args[0]) is torch.Size:
        return True
    return bool(args) and all(type_of(n) is int for n in args)


def _make_subclass(i: Interpreter, cls: Any, data: Any, requires_grad: Any = False, **options: Any) -> TensorProxy:
    """`torch.Tensor._make_subclass`, by which `torch.nn.Parameter` makes a tensor, and other classes do."""
    plain = type(data) is TensorProxy and data.cls is torch.Tensor and not options
    if plain and cls not in TENSOR_TYPES and not i.truth(requires_grad):
        return torch_function.as_subclass(i, call_tensor_method(i, data, "detach", (), {}), cls)
    if cls is not torch.nn.Parameter or type(data) is not TensorProxy or data.cls not in TENSOR_TYPES or options:
        raise Unsupported("the native function torch.Tensor._make_subclass")
    if i.graph.nested or i.graph.inference.on or torch.is_inference_mode_enabled():
        raise Unsupported("a parameter made inside of a functional transform, checkpoint or inference mode")
    made: TensorProxy = call_tensor_method(i, data, "detach", (), {})
    if i.truth(requires_grad):
        call_tensor_method(i, made, "requires_grad_", (True,), {})
    made.cls = torch.nn.Parameter
    return made


_LEGACY_CLASSES = (
    torch.Tensor, torch.FloatTensor, torch.DoubleTensor, torch.LongTensor, torch.IntTensor, torch.ByteTensor,
    torch.BoolTensor,
)  # fmt: skip


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    torch.from_numpy: _from_numpy,
    torch.autograd.Variable: _variable,
    torch.Tensor._make_subclass: _make_subclass,
    **{cls: _maker(cls) for cls in _LEGACY_CLASSES},
}
