"""The metadata of an ATen operator's results, without running it.

Convolutions and normalisations have rules here: their results' layout depends on the device, and PyTorch's own rules for
them are slow. Other operators run on the `meta` device. Both are remembered by operator and operands' metadata. What is
found out is checked against the real results when the graphs first run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.values import TensorMeta, contiguous_stride
from .traced import TracedTensor

aten = torch.ops.aten

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class Out:
    """One tensor of a result. `offset` is the storage offset: in a view's case from the operand's first element."""

    meta: TensorMeta
    offset: int


#: What an operator returns: `Out`, None, plain values, and tuples and lists of these.
Spec = Any

_memo: dict[Any, Spec] = {}


def spec_of(function: Any, args: Any, kwargs: Any) -> Spec:
    """What `function(*args, **kwargs)` returns, for traced tensors.

    Raises:
        Unsupported: where that depends on the contents, or cannot be found out.
    """
    key = (function, _describe(args), _describe(kwargs), torch.get_default_dtype())
    try:
        known = _memo.get(key, _memo)
    except TypeError as error:
        raise Unsupported(f"an operand of {function} that is no plain value: {error}") from error
    if known is _memo:
        known = _memo[key] = _infer(function, args, kwargs)
    return known


def _describe(value: Any) -> Any:
    kind = type(value)
    if kind is TracedTensor:
        return value.meta
    if kind is list or kind is tuple:
        return tuple([_describe(v) for v in value])
    if kind is dict:
        return tuple([(k, _describe(v)) for k, v in value.items()])
    if kind is float:
        return (float, value.hex())
    return (kind, value)


def _infer(function: Any, args: Any, kwargs: Any) -> Spec:
    rule = _RULES.get(function)
    if rule is not None:
        return rule(*args, **kwargs)
    tensors = list(traced_in((args, kwargs)))
    device = _result_device(tensors, kwargs)
    try:
        return _on_meta(function, args, kwargs, device)
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"what {function} returns is not known before it runs: {error}") from error


def is_view(function: Any) -> bool:
    """Whether an operator's schema says that it returns its first operand's memory, and leaves it unchanged."""
    returns = function._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def traced_in(value: Any) -> Any:
    """The traced tensors within arguments."""
    kind = type(value)
    if kind is TracedTensor:
        yield value
    elif kind is list or kind is tuple:
        for element in value:
            yield from traced_in(element)
    elif kind is dict:
        yield from traced_in(list(value.values()))


def map_traced(function: Callable[[TracedTensor], Any], value: Any) -> Any:
    """Arguments with `function(tensor)` in place of each traced tensor."""
    kind = type(value)
    if kind is TracedTensor:
        return function(value)
    if kind is list or kind is tuple:
        return kind([map_traced(function, v) for v in value])
    if kind is dict:
        return {k: map_traced(function, v) for k, v in value.items()}
    return value


def map_spec(function: Callable[..., Any], spec: Spec) -> Any:
    """`function(out, its position)` for each tensor of a spec."""
    if type(spec) is Out:
        return function(spec, None)
    if isinstance(spec, (list, tuple)):
        return type(spec)([function(s, k) if type(s) is Out else s for k, s in enumerate(spec)])
    return spec


def _result_device(tensors: list[TracedTensor], kwargs: Any) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    devices = {t.meta.device for t in tensors}
    if len(devices) > 1:
        devices = {t.meta.device for t in tensors if t.meta.shape or t.meta.device.type != "cpu"} or devices
    if len(devices) > 1:
        raise Unsupported("operands on several devices")
    return next(iter(devices), torch.device("cpu"))


def _on_meta(function: Any, args: Any, kwargs: Any, device: torch.device) -> Spec:
    made: dict[TensorMeta, torch.Tensor] = {}

    def without_data(tensor: TracedTensor) -> torch.Tensor:
        meta = tensor.meta
        if meta not in made:
            made[meta] = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=_META)
        return made[meta]

    options = map_traced(without_data, kwargs)
    if "device" in options:
        options["device"] = _META
    return _spec(function(*map_traced(without_data, args), **options), device)


def _spec(returned: Any, device: torch.device) -> Spec:
    if isinstance(returned, torch.Tensor):
        if returned.layout is not torch.strided or returned.is_conj() or returned.is_neg():
            raise Unsupported("a result that is no plain tensor")
        shape, stride = tuple(returned.shape), returned.stride()
        if not all(type(n) is int for n in (*shape, *stride)):
            raise Unsupported("a shape that depends on contents")
        meta = TensorMeta(returned.dtype, shape, stride, device)
        return Out(meta, returned.storage_offset())
    if isinstance(returned, (list, tuple)):
        return tuple([_spec(r, device) for r in returned])
    if returned is None or type(returned) in (int, float, bool):
        return returned
    raise Unsupported(f"a result of type {type(returned).__name__}")


# --- convolutions ---


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int
) -> Spec:
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
    memory_format = _memory_format(x, weight, None, *settings, transposed, _repeat(output_padding, count), groups, bias_sizes)
    return (
        _laid_out(x.meta.shape, memory_format, grad.meta) if mask[0] else None,
        _laid_out(weight.meta.shape, memory_format, grad.meta) if mask[1] else None,
        _laid_out((grad.meta.shape[1],), None, grad.meta) if mask[2] else None,
    )


def _repeat(value: Any, count: int) -> list[int]:
    return list(value) * count if len(value) == 1 else list(value)


def _memory_format(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int,
    bias_sizes: Any,
) -> torch.memory_format:
    backend = torch._C._select_conv_backend(
        x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, bias_sizes
    )
    return torch._C._conv_determine_backend_memory_format(x, weight, backend)


def _laid_out(shape: Any, memory_format: Any, like: TensorMeta) -> Out:
    shape = tuple(shape)
    if memory_format in (None, torch.contiguous_format):
        stride = contiguous_stride(shape)
    elif len(shape) == 3:
        stride = torch.empty((shape[0], shape[1], 1, shape[2]), device=_META, memory_format=memory_format).squeeze(2).stride()
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
    grad: Any, x: Any, weight: Any, mean: Any, var: Any, saved_mean: Any, saved_scale: Any, train: bool, eps: float, mask: Any
) -> Spec:
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


_RULES: dict[Any, Callable[..., Spec]] = {
    aten.as_strided.default: _as_strided,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm_functional,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.convolution_backward.default: _convolution_backward,
}
