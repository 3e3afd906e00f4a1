"""Shape rules of our own, for common operators that can be asked neither without data nor on small tensors.

A rule is `(args, kwargs, tensors, grad) -> Result`, or None where PyTorch has to answer: where the arguments are not as
they should be, for example.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.values import TensorMeta, channels_last_stride, contiguous_stride, goes_by_channels_last, span_of
from ..symbolic import TensorProxy
from .elementwise import is_contiguous
from .results import OperatorFailed, Result, View, device_of
from .stand_ins import run_without_data

Rule = Callable[[Any, Any, list[TensorProxy], bool], Result | None]


def _bind(names: str, args: Any, kwargs: Any) -> dict[str, Any] | None:
    """Arguments by name, None where they do not fit."""
    known = names.split()
    given = {**dict(zip(known, args, strict=False)), **kwargs}
    if len(args) > len(known) or len(given) != len(args) + len(kwargs) or not given.keys() <= set(known):
        return None
    return given


def _device_in(kwargs: Any) -> torch.device:
    """The device that an operator without tensor operands makes its result on."""
    wanted = kwargs.get("device")
    return device_of(torch.get_default_device() if wanted is None else wanted)


# convolutions ---------------------------------------------------------------------------------------------------


def _convolution(axes: int) -> Rule:
    """`F.conv1d`, `conv2d` and `conv3d` on a batch on the CPU, by the documented formula of the output's size.

    The result has channels last if the input or the weight goes by them. (In three dimensions that depends on the dtype.)
    """

    def rule(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
        given = _bind("input weight bias stride padding dilation groups", args, kwargs)
        if given is None or any(type(given.get(name)) is not TensorProxy for name in ("input", "weight")):
            return None
        x, weight, bias, groups = given["input"].meta, given["weight"].meta, given.get("bias"), given.get("groups", 1)
        if not _fit(x, weight, axes, groups) or not _is_bias(bias, x, weight.shape[0]):
            return None
        stride, dilation = _each(given.get("stride", 1), axes), _each(given.get("dilation", 1), axes)
        if stride is None or dilation is None or min(*stride, *dilation) < 1:
            return None
        padding = _padding(given.get("padding", 0), weight.shape[2:], stride, dilation)
        last = [goes_by_channels_last(meta.shape, meta.stride) for meta in (x, weight)]
        if padding is None or not (last[0] or is_contiguous(x)) or not (last[1] or is_contiguous(weight)):
            return None
        if axes == 3 and any(last):
            return None
        sizes = [
            (n + p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
        ]
        if min(sizes) < 1:
            return None
        shape = (x.shape[0], weight.shape[0], *sizes)
        strides = channels_last_stride(shape) if any(last) else contiguous_stride(shape)
        needs_grad = grad and any(t.meta.requires_grad for t in tensors)
        return Result(TensorMeta(x.dtype, shape, strides, x.device, needs_grad))

    return rule


def _fit(x: TensorMeta, weight: TensorMeta, axes: int, groups: Any) -> bool:
    return (
        x.device.type == "cpu"
        and weight.device == x.device
        and (x.dtype.is_floating_point or x.dtype.is_complex)
        and weight.dtype == x.dtype
        and x.ndim == weight.ndim == axes + 2
        and x.numel > 0
        and weight.numel > 0
        and type(groups) is int
        and groups > 0
        and x.shape[1] == weight.shape[1] * groups
        and weight.shape[0] % groups == 0
    )


def _is_bias(bias: Any, x: TensorMeta, channels: int) -> bool:
    if bias is None:
        return True
    return type(bias) is TensorProxy and bias.meta.shape == (channels,) and bias.meta.dtype == x.dtype


def _each(value: Any, axes: int) -> tuple[int, ...] | None:
    """One number for each axis."""
    if type(value) is int:
        return (value,) * axes
    if type(value) in (tuple, list) and len(value) in (1, axes) and all(type(v) is int for v in value):
        return tuple(value) * (axes if len(value) == 1 else 1)
    return None


def _padding(
    value: Any, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...] | None:
    """How much longer each axis becomes, by both sides together."""
    if value == "valid":
        return (0,) * len(kernel)
    if value == "same":
        grown = tuple([d * (k - 1) for k, d in zip(kernel, dilation, strict=True)])
        return grown if set(stride) == {1} and all(n % 2 == 0 for n in grown) else None
    each = _each(value, len(kernel))
    return None if each is None or min(each) < 0 else tuple([2 * p for p in each])


# random numbers -------------------------------------------------------------------------------------------------


def _drawn(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    """`torch.randn`: the same arguments and results as `torch.rand`, whose rule is quick."""
    if tensors or kwargs.get("out") is not None:
        return None
    return run_without_data(torch.rand, args, kwargs, tensors, grad, _device_in(kwargs))


def _normal(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    """`torch.normal(mean, std, size)` of numbers: like `torch.rand(size)`."""
    options = {name: value for name, value in kwargs.items() if name != "generator"}
    size = args[2] if len(args) == 3 else options.pop("size", None)
    return None if size is None or len(args) < 2 else _drawn((size,), options, tensors, grad)


def _multinomial(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    options = {name: value for name, value in kwargs.items() if name != "generator"}
    given = _bind("input num_samples replacement", args, options)
    if given is None or len(tensors) != 1 or type(given.get("num_samples")) is not int:
        return None
    x, samples = tensors[0].meta, given["num_samples"]
    if x.ndim not in (1, 2) or not x.dtype.is_floating_point or samples < 1 or x.shape[-1] < samples:
        return None
    shape = (*x.shape[:-1], samples)
    return Result(TensorMeta.dense(torch.int64, shape, x.device))


# other new tensors ----------------------------------------------------------------------------------------------


def _as_strided(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    """`x.as_strided(size, stride)` reaches all of the memory that `x` is a view of. Raises `Unsupported` where the offset is
    from the beginning of that memory, of which capture knows nothing, or elements are asked for that are after the last one
    of `x`, where that memory may end."""
    given = _bind("input size stride storage_offset", args, kwargs)
    if given is None or len(tensors) != 1 or not {"size", "stride"} <= given.keys():
        return None
    if given.get("storage_offset") is not None:
        raise Unsupported("the place of a tensor in its storage", "as_strided without storage_offset begins at the tensor")
    x, size, stride = tensors[0].meta, tuple(given["size"]), tuple(given["stride"])
    if len(size) != len(stride) or not all(type(n) is int and n >= 0 for n in (*size, *stride)):
        return None
    if span_of(size, stride) > span_of(x.shape, x.stride):
        raise Unsupported("elements after a tensor's last one")
    if x.requires_grad and not grad:  # so does the view, and what else is true of it depends on what `x` is
        return None
    return Result(View(TensorMeta(x.dtype, size, stride, x.device, x.requires_grad), 0))


def _eye(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    if tensors or kwargs.get("out") is not None or not all(type(a) is int for a in args) or not 1 <= len(args) <= 2:
        return None
    return run_without_data(torch.zeros, ((args[0], args[-1]),), kwargs, tensors, grad, _device_in(kwargs))


# moves between devices and types, and what tensors say about their device ------------------------------------------


#: Types of arguments that name no device.
_NO_DEVICE = frozenset({torch.dtype, torch.memory_format, bool})


def _moving(name: str) -> Rule:
    """A method that gives a tensor on another device, or of another type: what it makes of its arguments, it says itself."""

    def rule(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result:
        own = tensors[0].meta.device
        stays = name == "to" and {type(v) for v in (*args[1:], *kwargs.values())} <= _NO_DEVICE  # which is quicker to ask
        result = run_without_data(getattr(torch.Tensor, name), args, kwargs, tensors, grad, own if stays else None)
        made = result.structure
        if isinstance(made, TensorMeta) and made.device != own:
            try:
                torch.empty(0, device=own).to(made.device)  # which there may be no way to
            except Exception as error:
                raise OperatorFailed(f"{type(error).__name__}: {error}") from error
        return result

    return rule


def _get_device(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    device = args[0].meta.device
    return Result(-1 if device.index is None or device.type == "cpu" else device.index)


def _is_pinned(args: Any, kwargs: Any, tensors: list[TensorProxy], grad: bool) -> Result | None:
    if args[0].meta.device.type == "cpu" and torch.cuda.is_available():
        raise Unsupported("whether a tensor is in pinned memory")
    return Result(False)


_F = torch.nn.functional

_RULES: dict[Any, Rule] = {
    _F.conv1d: _convolution(1), torch.conv1d: _convolution(1),
    _F.conv2d: _convolution(2), torch.conv2d: _convolution(2),
    _F.conv3d: _convolution(3), torch.conv3d: _convolution(3),
    torch.randn: _drawn, torch.normal: _normal,
    torch.multinomial: _multinomial, torch.Tensor.multinomial: _multinomial,
    torch.eye: _eye, torch.as_strided: _as_strided, torch.Tensor.as_strided: _as_strided,
    torch.Tensor.get_device: _get_device, torch.Tensor.is_pinned: _is_pinned,
    **{getattr(torch.Tensor, name): _moving(name) for name in ("to", "cpu", "cuda", "type", "type_as")},
}  # fmt: skip


def shape_rule(function: Callable[..., Any]) -> Rule | None:
    """Our rule for an operator, if there is one."""
    return _RULES.get(function)
