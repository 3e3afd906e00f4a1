"""Shapes, dtypes and aliasing of an operator's results.

Elementwise operators have rules of their own (`elementwise`). The others run on tensors without data: PyTorch's own
`meta` device kernels give eager's promotion rules, strides and errors. Results are remembered by the operands'
descriptions: the thousandth parameter of one shape costs a dictionary lookup.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.values import TensorMeta
from .elementwise import broadcast, is_elementwise, keeps_layout, result_stride, run_on_one_element
from .values import Symbol, TensorProxy

_META = torch.device("meta")


class SameTensor:
    """In a result: the operator returned its tensor operand number `index` itself (it worked in place)."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class OperatorFailed(Exception):
    """The operator raises for these operands. The eager run will raise the same, with the user's traceback."""


_memo: dict[Any, Any] = {}


def result_of(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Any:
    """The structure that `function(*args, **kwargs)` returns: `TensorMeta`, `SameTensor`, constants, and lists of them.

    `tensors` are the tensor operands in order of appearance.

    Raises:
        OperatorFailed: where the operator raises.
        Unsupported: where the result depends on the tensors' contents.
    """
    first: dict[int, int] = {}
    key = (function, _describe(args, first), _describe(kwargs, first), grad, torch.get_default_dtype())
    try:
        known = _memo.get(key)
    except TypeError as error:
        raise Unsupported(f"an operand of {name_of(function)} is not a plain value: {error}") from error
    if known is None:
        known = _memo[key] = _infer(function, args, kwargs, tensors, grad)
    return known


def _infer(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Any:
    name = name_of(function)
    if name.startswith("_foreach_") and is_elementwise(_single_form(name), kwargs):
        return _foreach(name, args, kwargs, grad)
    if tensors and is_elementwise(function, kwargs):
        return _elementwise(function, args, kwargs, tensors, grad)
    return _run(function, args, kwargs, tensors, grad)


def _single_form(name: str) -> Any:
    return getattr(torch.Tensor, name.removeprefix("_foreach_").strip("_"), None)


def _foreach(name: str, args: Any, kwargs: Any, grad: bool) -> Any:
    """The results of an elementwise operator on lists, member by member; nothing where it works in place."""
    single = _single_form(name)
    listed = args[0] if type(args[0]) in (list, tuple) else args[1]
    results = []
    for k in range(len(listed)):
        pick = [a[k] if type(a) in (list, tuple) else a for a in args]
        named = dict(kwargs)
        if "addc" in name and len(pick) == 4:
            named["value"] = pick.pop()
        if name.strip("_").endswith(("maximum", "minimum")) and type(pick[1]) is not TensorProxy:
            member = torch.Tensor.clamp_min
        else:
            member = single
        if type(pick[0]) is not TensorProxy:
            member, pick = getattr(torch, single.__name__), pick
        result = result_of(member, tuple(pick), named, [a for a in pick if type(a) is TensorProxy], grad)
        if name.endswith("_") and result.shape != pick[0].meta.shape:
            raise OperatorFailed("an operand that is broadcast in place")
        results.append(result)
    return () if name.endswith("_") else tuple(results)


def _elementwise(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Any:
    shape = broadcast([t.meta.shape for t in tensors])
    if shape is None:
        raise OperatorFailed("shapes that do not broadcast")
    try:
        result, made = run_on_one_element(function, args, kwargs, grad)
    except Exception as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    if not isinstance(result, torch.Tensor):
        return result
    for index, tensor in enumerate(tensors):
        if result is made[id(tensor)]:
            if tensor.meta.shape != shape:
                raise OperatorFailed("an operand that is broadcast in place")
            return SameTensor(index)
    kept = keeps_layout(function, tensors)
    stride = tensors[0].meta.stride if kept else result_stride(shape, [t.meta for t in tensors])
    return TensorMeta(result.dtype, shape, stride, result_device(tensors, args), result.requires_grad)


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", function))


def _describe(value: Any, first: dict[int, int]) -> Any:
    kind = type(value)
    if kind is TensorProxy:
        return (value.meta, first.setdefault(id(value), len(first)))
    if kind is Symbol:
        return (Symbol, value.kind)
    if kind is list or kind is tuple:
        return (kind, tuple([_describe(v, first) for v in value]))
    if kind is dict:
        return tuple([(k, _describe(v, first)) for k, v in value.items()])
    if kind is slice:
        return (slice, _describe((value.start, value.stop, value.step), first))
    return (kind, value)


def _run(function: Callable[..., Any], args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Any:
    made: dict[int, torch.Tensor] = {}

    def operand(value: Any) -> Any:
        kind = type(value)
        if kind is TensorProxy:
            if id(value) not in made:
                made[id(value)] = empty_like_meta(value.meta)
            return made[id(value)]
        if kind is Symbol:
            return value.hint if value.hint is not None else value.kind(1)
        if kind is list or kind is tuple:
            return kind([operand(v) for v in value])
        if kind is dict:
            return {k: operand(v) for k, v in value.items()}
        if kind is slice:
            return slice(operand(value.start), operand(value.stop), operand(value.step))
        if kind is torch.device:
            return _META
        return value

    meta_kwargs = operand(kwargs)
    target_device = kwargs.get("device") if isinstance(kwargs, dict) else None
    if target_device is not None:
        meta_kwargs["device"] = _META
    meta_args = operand(args)
    device = torch.device(target_device) if target_device is not None else result_device(tensors, args)
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(grad)
    try:
        with contextlib.nullcontext() if tensors else _META:  # a factory must not make data, nor draw random numbers
            result = function(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        raise Unsupported(f"no shape rule for {name_of(function)}") from error
    except Exception as error:
        if "meta" in str(error):
            raise Unsupported(f"{name_of(function)} depends on a tensor's contents") from error
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    finally:
        torch._C._set_grad_enabled(before)
    for tensor in tensors:
        operand_now = made.get(id(tensor))
        if operand_now is not None and meta_of(operand_now, tensor.meta.device) != tensor.meta:
            raise Unsupported(f"{name_of(function)} gives a tensor another shape or layout")
    indices = {id(made[id(t)]): k for k, t in enumerate(tensors) if id(t) in made}
    return _structure(result, indices, device)


def _structure(result: Any, operands: dict[int, int], device: torch.device) -> Any:
    if isinstance(result, torch.Tensor):
        if id(result) in operands:
            return SameTensor(operands[id(result)])
        if result.layout != torch.strided or result.device.type != "meta":
            raise Unsupported("a result that is not a strided tensor")
        return meta_of(result, device)
    if isinstance(result, (list, tuple)):
        elements = [_structure(r, operands, device) for r in result]
        if hasattr(result, "_fields") or type(result).__module__ == "torch.return_types":
            raise Unsupported(f"a result of type {type(result).__name__}")
        return type(result)(elements) if type(result) in (list, tuple) else tuple(elements)
    return result


def empty_like_meta(meta: TensorMeta) -> torch.Tensor:
    """A tensor without data that has this metadata, but for its device."""
    return torch.empty_strided(
        meta.shape, meta.stride, dtype=meta.dtype, device=_META, requires_grad=meta.requires_grad
    )


def meta_of(tensor: torch.Tensor, device: torch.device | None = None) -> TensorMeta:
    """The metadata of a strided tensor."""
    return TensorMeta(
        tensor.dtype, tuple(tensor.shape), tensor.stride(), device or tensor.device, tensor.requires_grad
    )


def result_device(tensors: list[TensorProxy], args: Any = ()) -> torch.device:
    """The device an operator computes on: that of the operands, where 0-dim CPU tensors follow the others.

    Raises:
        Unsupported: for operands on several devices, which eager refuses or copies.
    """
    devices = {t.meta.device for t in tensors}
    if len(devices) > 1:
        devices = {t.meta.device for t in tensors if t.meta.ndim or t.meta.device.type != "cpu"} or devices
    if len(devices) > 1:
        raise Unsupported(f"operands on several devices: {', '.join(sorted(map(str, devices)))}")
    for arg in args:
        if type(arg) is torch.device:
            return arg
    return next(iter(devices), torch.get_default_device())
