"""`torch.tensor([x.mean(), 0.5])`: a new tensor of numbers of Python's and of tensors with a number each, which PyTorch
copies through Python. Here they are stacked, which takes no number out of the graph. And of numbers of NumPy's, whose
classes say the type."""

from __future__ import annotations

import functools
from collections.abc import Iterator
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
    shape = _shape(i, data, flat)
    tensors = [leaf for leaf in flat if type(leaf) is TensorProxy]
    if not shape or not tensors or len(flat) > _MOST or i.graph.device_blocks or i.graph.nested:
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
    if type(i.outside.contents(data)) not in (list, tuple) or not _leaves(i, data, flat):
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


def _leaves(i: Interpreter, data: Any, flat: list[Any]) -> bool:
    """Whether nested lists and tuples hold nothing but real numbers that are known before the graph runs, which are added to
    `flat`, those of NumPy's as symbols of its classes."""
    contents = i.outside.contents(data)
    if type(contents) in (list, tuple):
        return all(_leaves(i, element, flat) for element in contents)
    number = i.outside.number_of_numpy(data)
    flat.append(number)
    if type(number) is Symbol:
        return not number.from_tensor and (number.cls is number.kind or number.kind is not bool)
    return type(number) in (int, float, bool, numpy.bool_) or numpy_class(number) is not None


def _nested(i: Interpreter, data: Any, leaves: Iterator[Any]) -> Any:
    """Lists as nested as some others, with these leaves."""
    contents = i.outside.contents(data)
    return [_nested(i, element, leaves) for element in contents] if type(contents) in (list, tuple) else next(leaves)


def _shape(i: Interpreter, data: Any, flat: list[Any]) -> tuple[int, ...] | None:
    """The shape of nested lists, whose leaves are added to `flat`; None where they have none, or hold something else."""
    contents = i.outside.contents(data)
    if type(contents) not in (list, tuple):
        known = _is_number(data) or (
            type(data) is TensorProxy and data.cls is torch.Tensor and not data.meta.shape
            and data.meta.device.type == "cpu" and not data.meta.requires_grad
        )  # fmt: skip
        flat.append(data)
        return () if known else None
    shapes = {_shape(i, element, flat) for element in contents}
    only = shapes.pop() if len(shapes) == 1 else None
    return None if only is None else (len(contents), *only)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float, bool) or (type(value) is Symbol and value.cls is value.kind)


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
