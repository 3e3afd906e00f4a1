"""`torch.tensor([x.mean(), 0.5])`: a new tensor of numbers of Python's and of tensors with a number each, which PyTorch
copies through Python. Here they are stacked, which takes no number out of the graph. And of numbers of NumPy's, whose
classes say the type."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from ..interpreter import Interpreter
from ..symbolic import Symbol, TensorProxy, is_numpy, numpy_class, type_of
from . import settings
from .operators import call_operator, call_tensor_method

#: More numbers than this would be as many nodes of the graph.
_MOST = 64
_REAL = (torch.float32, torch.float64)
_WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def of_tensors_and_numbers(
    i: Interpreter, data: Any, dtype: Any = None, device: Any = None, requires_grad: Any = False
) -> Any:
    """The tensor that `torch.tensor` makes of such lists; NotImplemented for others."""
    flat: list[Any] = []
    shape = _shape(i, data, flat, _number_or_tensor)
    tensors = [leaf for leaf in flat if type(leaf) is TensorProxy]
    if not shape or not tensors or len(flat) > _MOST or i.graph.default_device is not None or i.graph.nested:
        return NotImplemented
    if str(device) not in ("None", "cpu") or (dtype is not None and type(dtype) is not torch.dtype):
        return NotImplemented
    if device is None and torch.get_default_device().type != "cpu":
        return NotImplemented
    types = [_type_of_number(i, leaf) for leaf in flat]
    result = functools.reduce(torch.promote_types, types) if dtype is None else dtype
    fits = all(map(_fits, flat, types, [result] * len(flat)))
    if not fits:
        return NotImplemented
    i.outside.guard("state", None, ("torch.get_default_device()", torch.get_default_device()))
    parts = [_converted(i, leaf, result) for leaf in flat]
    made = call_operator(i, torch.stack, (parts,), {})
    made = call_tensor_method(i, made, "reshape", shape, {}) if len(shape) > 1 else made
    return call_tensor_method(i, made, "requires_grad_", (), {}) if i.truth(requires_grad) else made


def numbers_of_numpy(i: Interpreter, data: Any, options: dict[str, Any]) -> tuple[Any, torch.dtype] | None:
    """Lists of numbers of NumPy's, and of Python's among them, as lists of plain ones, and the type of a tensor of them.
    None for other things, and where PyTorch stores the plain ones otherwise or refuses these."""
    flat: list[Any] = []
    if not _shape(i, data, flat, _number):
        return None
    numbers = [leaf.hint if type(leaf) is Symbol else leaf for leaf in flat]
    if not any(map(is_numpy, numbers)):
        return None
    dtype = options.get("dtype")
    if dtype is not None and type(dtype) is not torch.dtype:
        return None
    of_class = [type(leaf) is Symbol and leaf.cls is not leaf.kind for leaf in flat]
    if any(of_class) and dtype is not None and not dtype.is_floating_point:
        return None  # others may not fit it
    try:
        made = torch.tensor(_nested(i, data, iter(numbers)), dtype=dtype, device="cpu")
        plain = [number.item() if is_numpy(number) else number for number in numbers]
        same = torch.tensor(_nested(i, data, iter(plain)), dtype=made.dtype, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        return None
    if not torch.equal(made.nan_to_num(), same.nan_to_num()):
        return None
    if dtype is None:
        i.outside.guard("state", None, ("torch.get_default_dtype()", torch.get_default_dtype()))
    given = [i.graph.number(leaf.kind, leaf) if symbolic else leaf.item() if is_numpy(leaf) else leaf
             for leaf, symbolic in zip(flat, of_class, strict=True)]  # fmt: skip
    return _nested(i, data, iter(given)), made.dtype


def _number(i: Interpreter, data: Any) -> Any:
    """A real number that is known before the graph runs, one of NumPy's as a symbol of its class; None for others."""
    number = i.outside.number_of_numpy(data)
    if type(number) is Symbol:
        return None if number.from_tensor or (number.cls is not number.kind and number.kind is bool) else number
    return number if type(number) in (int, float, bool, numpy.bool_) or numpy_class(number) is not None else None


def _nested(i: Interpreter, data: Any, leaves: Iterator[Any]) -> Any:
    """Lists as nested as some others, with these leaves."""
    contents = i.outside.contents(data)
    return [_nested(i, element, leaves) for element in contents] if type(contents) in (list, tuple) else next(leaves)


def _shape(i: Interpreter, data: Any, flat: list[Any], leaf: Callable[[Interpreter, Any], Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, None where they have none; `flat` gets what `leaf` makes of their leaves."""
    contents = i.outside.contents(data)
    if type(contents) not in (list, tuple):
        flat.append(leaf(i, data))
        return None if flat[-1] is None else ()
    shapes = {_shape(i, element, flat, leaf) for element in contents}
    only = shapes.pop() if len(shapes) == 1 else None
    return None if only is None else (len(contents), *only)


def _number_or_tensor(i: Interpreter, data: Any) -> Any:
    """A number of Python's, or a tensor with one on the CPU, apart from autograd; None for others."""
    if type(data) is TensorProxy:
        plain = data.cls is torch.Tensor and not data.meta.shape and not data.meta.requires_grad
        return data if plain and data.meta.device.type == "cpu" else None
    return data if type(data) in (int, float, bool) or (type(data) is Symbol and data.cls is data.kind) else None


def _type_of_number(i: Interpreter, leaf: Any) -> torch.dtype:
    if type(leaf) is TensorProxy:
        return leaf.meta.dtype  # type: ignore[no-any-return]
    kind = type_of(leaf)
    return settings.default_dtype(i) if kind is float else torch.bool if kind is bool else torch.int64  # type: ignore[no-any-return]


def _fits(leaf: Any, own: torch.dtype, result: torch.dtype) -> bool:
    """Whether the graph stores a number in a tensor of some type as PyTorch does, which makes a float of it for a type of
    floating-point numbers, and an `int` for whole ones."""
    if own == result:
        return own in (*_REAL, *_WHOLE)
    if result in _REAL:
        return own in (*_REAL, *_WHOLE, torch.float16, torch.bfloat16)
    return result is torch.int64 and own in _WHOLE


def _converted(i: Interpreter, leaf: Any, result: torch.dtype) -> Any:
    if type(leaf) is not TensorProxy:
        return call_operator(i, torch.tensor, (leaf,), {"dtype": result, "device": "cpu"})
    if leaf.meta.dtype == result:
        return call_tensor_method(i, leaf, "detach", (), {})
    through = torch.float64 if result is torch.float32 else result
    made = call_tensor_method(i, leaf, "to", (through,), {})
    return made if through == result else call_tensor_method(i, made, "to", (result,), {})
