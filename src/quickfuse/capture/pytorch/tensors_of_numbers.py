"""`torch.tensor([x.mean(), 0.5])`: a new tensor of numbers of Python's and of tensors with a number each, which PyTorch
copies through Python. Here they are stacked, which takes no number out of the graph."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..interpreter import Interpreter
from ..symbolic import Symbol, TensorProxy, type_of
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
