"""Rules for the metadata of convolutions, normalisations and strided views.

The layout of their results depends on the device, and PyTorch's own rules for them are slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.values import TensorMeta, contiguous_stride

aten = torch.ops.aten

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Out:
    """One tensor of a result. `offset` is the storage offset: in a view's case from the operand's first element."""

    meta: TensorMeta
    offset: int


#: What an operator returns: `Out`, None, plain values, and tuples and lists of these.
Spec = Any


# --- convolutions ---


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int,
) -> Spec:  # fmt: skip
    kernel, spatial = weight.meta.shape[2:], x.meta.shape[2:]
    count = len(kernel)
    if len(spatial) != count:  # without a batch
        raise Unsupported("a convolution without a batch")
    stride, padding, dilation, output_padding = (_repeat(v, count) for v in (stride, padding, dilation, output_padding))
    if transposed:
        sizes = [
            (n - 1) * s - 2 * p + d * (k - 1) + o + 1
            for n, k, s, p, d, o in zip(spatial, kernel, stride, padding, dilation, output_padding, strict=True)
        ]
        channels = weight.meta.shape[1] * groups
    else:
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation, strict=True)
        ]
        channels = weight.meta.shape[0]
    memory_format = _memory_format(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, None)
    return _laid_out((x.meta.shape[0], channels, *sizes), memory_format, x.meta)


def _convolution_backward(
    grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any,
) -> Spec:  # fmt: skip
    count = len(weight.meta.shape) - 2
    settings = [_repeat(v, count) for v in (stride, padding, dilation)]
    more = (transposed, _repeat(output_padding, count), groups, bias_sizes)
    memory_format = _memory_format(x, weight, None, *settings, *more)
    return (
        _laid_out(x.meta.shape, memory_format, grad.meta) if mask[0] else None,
        _laid_out(weight.meta.shape, memory_format, grad.meta) if mask[1] else None,
        _laid_out((grad.meta.shape[1],), None, grad.meta) if mask[2] else None,
    )


def _repeat(value: Any, count: int) -> list[int]:
    return list(value) * count if len(value) == 1 else list(value)


def _memory_format(x: Any, weight: Any, bias: Any, *settings: Any) -> torch.memory_format:
    """The memory format of a convolution's results, as the library that PyTorch picks for it makes them."""
    if len(weight.meta.shape) == 3:  # without strides of its own: a two-dimensional one of one row
        return torch.contiguous_format
    backend = torch._C._select_conv_backend(x, weight, bias, *settings)
    return torch._C._conv_determine_backend_memory_format(x, weight, backend)


def _laid_out(shape: Any, memory_format: Any, like: TensorMeta) -> Out:
    shape = tuple(shape)
    if memory_format in (None, torch.contiguous_format):
        stride = contiguous_stride(shape)
    elif len(shape) == 3:
        image = (shape[0], shape[1], 1, shape[2])
        stride = torch.empty(image, device=_META, memory_format=memory_format).squeeze(2).stride()
    else:
        stride = torch.empty(shape, device=_META, memory_format=memory_format).stride()
    return Out(TensorMeta(like.dtype, shape, stride, like.device), 0)


def _as_strided(x: Any, size: Any, stride: Any, offset: int | None = None) -> Spec:
    return Out(TensorMeta(x.meta.dtype, tuple(size), tuple(stride), x.meta.device), offset or 0)


# --- normalisations ---


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Spec:
    channels = (x.meta.shape[1],)
    if not training and x.meta.device.type == "cpu":
        channels = (0,)
    return _like(x), _statistics(x, channels, weight), _statistics(x, channels, weight)


def _batch_norm_functional(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Spec:
    return (*_batch_norm(x, weight, bias, mean, var, *rest), Out(mean.meta, 0), Out(var.meta, 0))


def _batch_norm_backward(
    grad: Any, x: Any, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_scale: Any, train: bool, eps: float,
    mask: Any,
) -> Spec:  # fmt: skip
    parameter = _statistics(x, (x.meta.shape[1],), weight)
    return _like(x) if mask[0] else None, parameter if mask[1] else None, parameter if mask[2] else None


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Spec:
    outer = (*x.meta.shape[: x.meta.ndim - len(shape)], *[1] * len(shape))
    return _laid_out(x.meta.shape, None, x.meta), _statistics(x, outer, weight), _statistics(x, outer, weight)


def _layer_norm_backward(
    grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Spec:
    return (
        _laid_out(x.meta.shape, None, x.meta) if mask[0] else None,
        _laid_out(shape, None, weight.meta) if mask[1] else None,
        _laid_out(shape, None, bias.meta) if mask[2] else None,
    )


def _like(x: Any) -> Out:
    """A result laid out as normalisations do it: contiguous, with the channels last if the operand's are."""
    return _laid_out(x.meta.shape, torch._prims_common.suggest_memory_format(x), x.meta)


def _statistics(x: Any, shape: Any, weight: Any) -> Out:
    """Statistics are in the parameters' type, on a GPU in 32 bits at least."""
    dtype = weight.meta.dtype if weight is not None else x.meta.dtype
    if x.meta.device.type != "cpu" and dtype.itemsize < 4:
        dtype = torch.float32
    return _laid_out(shape, None, TensorMeta(dtype, (), (), x.meta.device))


def _rnn_layer(*args: Any) -> Spec:
    raise Unsupported("a recurrent layer, which keeps for backward what only it understands")


#: Operator -> what it returns for these operands.
RULES: dict[Any, Callable[..., Spec]] = {
    aten.as_strided.default: _as_strided,
    aten.convolution.default: _convolution,
    aten.mkldnn_rnn_layer.default: _rnn_layer,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.convolution_backward.default: _convolution_backward,
}
