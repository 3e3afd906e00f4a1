"""Moves between devices and types: `x.to(...)`, `x.cpu()`, `x.type(...)`, and what tensors say about their device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from .results import OperatorFailed, Result, device_of
from .stand_ins import run_without_data
from .symbolic import TensorProxy


def _to(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    """`x.to(dtype)`, `x.to(device, dtype)`, `x.to(other)`, all with `non_blocking`, `copy` and `memory_format`."""
    proxy, *rest = args
    options = dict(kwargs)
    names = ["non_blocking", "copy"]
    if rest and type(rest[0]) is torch.dtype:
        names.insert(0, "dtype")
    elif rest and type(rest[0]) is TensorProxy:
        names.insert(0, "other")
    elif rest:
        names[:0] = ["device", "dtype"]
    known = {"device", "dtype", "other", "non_blocking", "copy", "memory_format"}
    if len(rest) > len(names) or not kwargs.keys() <= known.difference(names[: len(rest)]):
        raise OperatorFailed("arguments that the method does not take")
    options.update(zip(names, rest, strict=False))
    other = options.pop("other", None)
    if other is not None:
        options["device"], options["dtype"] = other.meta.device, other.meta.dtype
    return _convert(proxy, grad, **options)


def _convert(
    proxy: TensorProxy,
    grad: bool,
    device: Any = None,
    dtype: torch.dtype | None = None,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Result:
    own = proxy.meta.device
    target = own if device is None else device_of(device)
    if target != own:
        try:
            torch.empty(0, device=own).to(target)
        except Exception as error:
            raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    options: dict[str, Any] = {"copy": bool(copy) or target != own}
    if memory_format is not None:
        options["memory_format"] = memory_format
    arguments = (proxy, dtype or proxy.meta.dtype)
    return run_without_data(torch.Tensor.to, arguments, options, [proxy], grad, target)


def _cpu(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    return _convert(args[0], grad, "cpu", **_named(("memory_format",), args, kwargs))


def _cuda(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    options = _named(("device", "non_blocking", "memory_format"), args, kwargs)
    device = options.pop("device", None)
    return _convert(args[0], grad, "cuda" if device is None else device, **options)


def _named(names: tuple[str, ...], args: Any, kwargs: Any) -> dict[str, Any]:
    if len(args) > len(names) + 1 or not kwargs.keys() <= set(names):
        raise OperatorFailed("arguments that the method does not take")
    return {**dict(zip(names, args[1:], strict=False)), **kwargs}


def _type(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    """`x.type()` is the name of a type, `x.type(name or dtype)` a conversion."""
    proxy = args[0]
    options = _named(("dtype", "non_blocking"), args, kwargs)
    wanted = options.pop("dtype", None)
    empty = torch.empty(0, dtype=proxy.meta.dtype, device=proxy.meta.device)
    if wanted is None:
        return Result(empty.type())
    try:
        like = empty.type(wanted)
    except Exception as error:
        raise OperatorFailed(f"{type(error).__name__}: {error}") from error
    return _convert(proxy, grad, like.device, like.dtype, **options)


def _type_as(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return _convert(args[0], grad, other.meta.device, other.meta.dtype)


def _get_device(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    device = args[0].meta.device
    return Result(-1 if device.index is None or device.type == "cpu" else device.index)


def _is_pinned(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    if args[0].meta.device.type == "cpu" and torch.cuda.is_available():
        raise Unsupported("whether a tensor is in pinned memory")
    return Result(False)


#: Methods of tensors.
CONVERSIONS: dict[str, Callable[[Any, Any, list[TensorProxy], bool], Result | None]] = {
    "to": _to, "cpu": _cpu, "cuda": _cuda, "type": _type, "type_as": _type_as, "get_device": _get_device,
    "is_pinned": _is_pinned,
}  # fmt: skip
