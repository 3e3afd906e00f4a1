"""Rules for the metadata of convolutions, normalisations, shuffled images, attention and strided views.

The layout of their results depends on the device, and PyTorch's own rules for them are slow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.convolution import memory_format_of_convolution, stride_in_format, stride_of_weight_gradient
from ..ir.values import TensorMeta, channels_last_stride, contiguous_stride, goes_by_channels_last

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
    settings = (stride, padding, dilation, transposed, output_padding, groups, None)
    try:
        memory_format, _ = memory_format_of_convolution(x, weight, bias, *settings)
    except RuntimeError as error:  # operands that do not fit, as PyTorch says itself
        raise Unsupported(f"a convolution that raises: {error}") from error
    return laid_out((x.meta.shape[0], channels, *sizes), memory_format, x.meta)


def _convolution_backward(
    grad: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Any,
) -> Spec:  # fmt: skip
    count = len(weight.meta.shape) - 2
    settings = [_repeat(v, count) for v in (stride, padding, dilation)]
    more = (transposed, _repeat(output_padding, count), groups, bias_sizes)
    memory_format, backend = memory_format_of_convolution(x, weight, None, *settings, *more)
    weight_stride = stride_of_weight_gradient(weight.meta, memory_format, backend)
    return (
        laid_out(x.meta.shape, memory_format, grad.meta) if mask[0] else None,
        Out(replace(grad.meta, shape=weight.meta.shape, stride=weight_stride), 0) if mask[1] else None,
        laid_out((grad.meta.shape[1],), None, grad.meta) if mask[2] else None,
    )


def _repeat(value: Any, count: int) -> list[int]:
    return list(value) * count if len(value) == 1 else list(value)


def laid_out(shape: Any, memory_format: Any, like: TensorMeta) -> Out:
    """A new tensor of the type of `like`."""
    shape = tuple(shape)
    return Out(TensorMeta(like.dtype, shape, stride_in_format(shape, memory_format), like.device), 0)


def _as_strided(x: Any, size: Any, stride: Any, offset: int | None = None) -> Spec:
    return Out(TensorMeta(x.meta.dtype, tuple(size), tuple(stride), x.meta.device), offset or 0)


# --- normalisations ---


def _batch_norm(x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Spec:
    channels = (x.meta.shape[1],)
    if x.meta.device.type != "cpu":
        laid = torch.empty_like(torch.empty_strided(x.meta.shape, x.meta.stride, device=_META))
        like = Out(TensorMeta(x.meta.dtype, x.meta.shape, laid.stride(), x.meta.device), 0)
        return like, _statistics(x, channels, weight), _statistics(x, channels, weight)
    if not training:
        channels = (0,)
    if _is_contiguous(x):
        like = laid_out(x.meta.shape, None, x.meta)
    else:
        like = _with_channels_last(x) if _has_channels_last(x) else _like(x)
    return like, _statistics(x, channels, weight), _statistics(x, channels, weight)


def _batch_norm_functional(x: Any, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Spec:
    return (*_batch_norm(x, weight, bias, mean, var, *rest), Out(mean.meta, 0), Out(var.meta, 0))


def _batch_norm_backward(
    grad: Any, x: Any, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_scale: Any, train: bool, eps: float,
    mask: Any,
) -> Spec:  # fmt: skip
    parameter = _statistics(x, (x.meta.shape[1],), weight)
    like = _like(x)
    if x.meta.device.type == "cpu" and _is_contiguous(x):
        if memory_format_of(grad) is torch.channels_last:
            like = laid_out(x.meta.shape, None, x.meta)
    elif x.meta.device.type == "cpu" and _has_channels_last(x) and not _has_channels_last(grad):
        like = _with_channels_last(x)
    return like if mask[0] else None, parameter if mask[1] else None, parameter if mask[2] else None


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Spec:
    outer = (*x.meta.shape[: x.meta.ndim - len(shape)], *[1] * len(shape))
    return laid_out(x.meta.shape, None, x.meta), _statistics(x, outer, weight), _statistics(x, outer, weight)


def _layer_norm_backward(grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any) -> Spec:
    return (
        laid_out(x.meta.shape, None, x.meta) if mask[0] else None,
        laid_out(shape, None, weight.meta) if mask[1] else None,
        laid_out(shape, None, bias.meta) if mask[2] else None,
    )


def _group_norm(x: Any, weight: Any, bias: Any, n: int, c: int, size: int, groups: int, eps: float) -> Spec:
    if x.meta.device.type != "cpu":
        return NotImplemented
    return _like(x), _statistics(x, (n, groups), weight), _statistics(x, (n, groups), weight)


def _group_norm_backward(
    grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: int, c: int, size: int, groups: int, mask: Any
) -> Spec:
    if x.meta.device.type != "cpu":
        return NotImplemented
    parameter = _statistics(x, (c,), weight)
    return _like(x) if mask[0] else None, parameter if mask[1] else None, parameter if mask[2] else None


def _like(x: Any) -> Out:
    """A result laid out as normalisations do it: contiguous, with the channels last if the operand's are."""
    return laid_out(x.meta.shape, memory_format_of(x), x.meta)


def _has_channels_last(x: Any) -> bool:
    """As PyTorch says it, whatever the strides of axes of one element: a single image with an axis put before it has, which
    does not go by that elsewhere."""
    return x.meta.ndim == 4 and x.meta.looks_like(replace(x.meta, stride=channels_last_stride(x.meta.shape)))


def _with_channels_last(x: Any) -> Out:
    return laid_out(x.meta.shape, torch.channels_last, x.meta)


def _is_contiguous(x: Any) -> bool:
    """As PyTorch says it: an image of one pixel, or of one channel, is contiguous with its channels last, too."""
    return x.meta.looks_like(replace(x.meta, stride=contiguous_stride(x.meta.shape)))  # type: ignore[no-any-return]


def memory_format_of(x: Any) -> torch.memory_format:
    """The memory format that PyTorch takes a tensor to have, by its strides."""
    if not goes_by_channels_last(x.meta.shape, x.meta.stride):
        return torch.contiguous_format
    return torch.channels_last if x.meta.ndim == 4 else torch.channels_last_3d


def _statistics(x: Any, shape: Any, weight: Any) -> Out:
    """Statistics are in the parameters' type, on a GPU in 32 bits at least."""
    dtype = weight.meta.dtype if weight is not None else x.meta.dtype
    if x.meta.device.type != "cpu" and dtype.itemsize < 4:
        dtype = torch.float32
    return laid_out(shape, None, TensorMeta(dtype, (), (), x.meta.device))


# --- images ---


def _pixel_shuffle(x: Any, factor: int) -> Spec:
    *batch, channels, height, width = x.meta.shape
    shape = (*batch, channels // factor**2, height * factor, width * factor)
    if x.meta.device.type != "cpu":
        return laid_out(shape, None, x.meta)
    return laid_out(shape, memory_format_of(x), x.meta) if len(batch) == 1 else NotImplemented


def _pixel_unshuffle(x: Any, factor: int) -> Spec:
    """On GPUs both shuffles give contiguous results, whatever the operand is."""
    *batch, channels, height, width = x.meta.shape
    if x.meta.device.type == "cpu":
        return NotImplemented
    return laid_out((*batch, channels * factor**2, height // factor, width // factor), None, x.meta)


def _channel_shuffle(x: Any, groups: int) -> Spec:
    return _like(x) if x.meta.device.type == "cpu" and x.meta.ndim == 4 else NotImplemented


# --- linear algebra ---


def _svd(a: Any, full_matrices: bool = False, compute_uv: bool = True, driver: Any = None) -> Spec:
    """Both matrices have their columns next to each other in memory, as LAPACK makes them."""
    if a.meta.device.type != "cpu":
        return NotImplemented
    *batch, m, n = a.meta.shape
    k = min(m, n)
    values = laid_out((*batch, k), None, TensorMeta(a.meta.dtype.to_real(), (), (), a.meta.device))
    if not compute_uv:
        nothing = laid_out((0,), None, a.meta)
        return nothing, values, nothing
    left, right = (m, m if full_matrices else k), (n if full_matrices else k, n)
    return _columns((*batch, *left), a.meta), values, _columns((*batch, *right), a.meta)


def _columns(shape: Any, like: TensorMeta) -> Out:
    *batch, m, n = shape
    stride = contiguous_stride((*batch, n, m))
    return Out(TensorMeta(like.dtype, tuple(shape), (*stride[:-2], stride[-1], stride[-2]), like.device), 0)


def _log_sigmoid(x: Any) -> Spec:
    """On CPUs the result is contiguous, whatever the operand is."""
    if x.meta.device.type != "cpu":
        return NotImplemented
    return laid_out(x.meta.shape, None, x.meta), laid_out(x.meta.shape, None, x.meta)


# --- attention ---


def _flash_attention_on_cpu(query: Any, *args: Any, **kwargs: Any) -> Spec:
    """The sums of exponentials are in the type that the products are added up in, which PyTorch before 2.13 does not tell
    of float64."""
    like = query.meta
    made = torch.empty_like(torch.empty_strided(like.shape, like.stride, device=_META))
    batch, heads, length, _ = like.shape
    sums = like.dtype if like.dtype is torch.float64 else torch.float32
    stride = (length * heads, 1, heads)
    return (
        Out(TensorMeta(like.dtype, like.shape, made.stride(), like.device), 0),
        Out(TensorMeta(sums, (batch, heads, length), stride, like.device), 0),
    )


def _rnn_layer(*args: Any) -> Spec:
    raise Unsupported("a recurrent layer, which keeps for backward what only it understands")


#: Operator -> what it returns for these operands; `NotImplemented`: PyTorch knows.
RULES: dict[Any, Callable[..., Spec]] = {
    aten.as_strided.default: _as_strided,
    aten._linalg_svd.default: _svd,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_attention_on_cpu,
    aten.convolution.default: _convolution,
    aten.log_sigmoid_forward.default: _log_sigmoid,
    aten.mkldnn_rnn_layer.default: _rnn_layer,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.pixel_shuffle.default: _pixel_shuffle,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.convolution_backward.default: _convolution_backward,
}
