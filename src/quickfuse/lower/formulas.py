"""Operators of ATen as formulas of others: functions of elements, activations, losses, softmax, and their gradients.

Each is what PyTorch's own kernel computes, as PyTorch calls, which `expansion.py` takes apart. Operands of 16 bits are
converted to float32, and results are rounded at the end, as in the kernels. Formulas of PyTorch (`torch._decomp`) are used
where their kernels are as short and their results are eager's, but without what they are wrapped in, and none that calls
`torch._check`: when called first, these import SymPy, for which a program would wait a second.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import decomposition_table

X = torch.Tensor
_HALF = (torch.bfloat16, torch.float16)

#: Name of an operator -> its formula.
FORMULAS: dict[str, Callable[..., Any]] = {}


def formula(names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of the operator's arguments, which is computed in 32 bits at least."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def composed(*args: Any, **options: Any) -> Any:
            return function(*[_computed(a) if isinstance(a, X) else a for a in args], **options)

        FORMULAS.update(dict.fromkeys(names.split(), composed))
        return composed

    return register


def _computed(x: X) -> X:
    return x.float() if x.dtype in _HALF else x


# --- PyTorch's own ---


def _from_pytorch(name: str) -> Callable[..., Any]:
    """PyTorch's formula of an operator, without the conversions and checks around it."""
    function: Callable[..., Any] = inspect.unwrap(decomposition_table[getattr(torch.ops.aten, name).default])
    return function


for _name in (
    "frac glu_backward hardtanh_backward leaky_relu_backward _prelu_kernel _prelu_kernel_backward "
    "hardswish_backward elu_backward gelu_backward silu_backward softplus_backward mse_loss_backward "
    "_log_softmax_backward_data"
).split():
    formula(_name)(_from_pytorch(_name))

# They convert operands of 16 bits themselves where eager does, or move elements without changing them.
for _name in (
    "nan_to_num nansum count_nonzero aminmax _safe_softmax rot90 slice_backward select_backward diagonal_backward"
).split():
    FORMULAS[_name] = _from_pytorch(_name)

# --- functions of elements ---

formula("deg2rad")(lambda x: x * (math.pi / 180))
formula("rad2deg")(lambda x: x * (180 / math.pi))
formula("isposinf")(lambda x: x == math.inf)
formula("isneginf")(lambda x: x == -math.inf)
formula("sinc")(lambda x: torch.where(x == 0, 1.0, torch.sin(x * math.pi) / (x * math.pi)))
formula("heaviside")(lambda x, values: torch.where(x == 0, values, (x > 0).to(x.dtype)))
formula("special_xlog1py")(lambda x, y: torch.where(y.isnan(), y, torch.where(x == 0, 0, x * y.log1p())))


@formula("glu")
def _glu(x: X, dim: int = -1) -> X:
    first, second = x.chunk(2, dim)
    return first * second.sigmoid()


@formula("logit")
def _logit(x: X, eps: float | None = None) -> X:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())  # before `1 - x`, which wraps around in uint8
    if eps is not None:
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return (x / (1 - x)).log()


def _added_logarithms(x: X, y: X, rest: Callable[[X], X]) -> X:
    """log(exp(x) + exp(y)), scaled by the larger of both; equal infinities are their own sum."""
    return torch.where(x.isinf() & (x == y), x, torch.maximum(x, y) + rest(-(x - y).abs()))


formula("logaddexp")(lambda x, y: _added_logarithms(x, y, lambda away: away.exp().log1p()))
formula("logaddexp2")(lambda x, y: _added_logarithms(x, y, lambda away: away.exp2().log1p() * math.log2(math.e)))


# --- activations and their gradients ---


@formula("mish_backward")
def _mish_backward(grad: X, x: X) -> X:
    bent = x.exp().log1p().tanh()
    return grad * (bent + x * x.sigmoid() * (1 - bent * bent))


@formula("log_sigmoid_forward")
def _log_sigmoid_forward(x: X) -> tuple[X, X]:
    """With exp(-|x|) for backward on each device. PyTorch's kernel for GPUs keeps nothing, but its rule for shapes does."""
    small = torch.exp(-x.abs())
    return torch.minimum(x.new_zeros(()), x) - torch.log1p(small), small


@formula("log_sigmoid_backward")
def _log_sigmoid_backward(grad: X, x: X, small: X) -> X:
    """`small` is exp(-|x|)."""
    share = small / (1 + small)
    return grad * torch.where(x < 0, 1 - share, share)


@formula("logit_backward")
def _logit_backward(grad: X, x: X, eps: float | None = None) -> X:
    """Beyond [eps, 1 - eps] the gradient is 0; without `eps` it is NaN beyond [0, 1], and infinite at the ends."""
    low, high, beyond = (0.0, 1.0, math.nan) if eps is None else (eps, 1 - eps, 0.0)
    inner = torch.where((x == 0) | (x == 1), grad * math.inf, grad / (x * (1 - x)))
    return torch.where((x < low) | (x > high), beyond, inner)


# --- losses and their gradients: `reduction` is 0 for none, 1 for the mean, 2 for the sum ---


def _reduced(losses: X, reduction: int) -> X:
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


def _loss(name: str, of_difference: Callable[..., X], wide: torch.dtype | None = None) -> None:
    """Of operands of the type `wide`, the CPU's kernel rounds nothing before the losses."""

    def loss(x: X, target: X, reduction: int = 1, *numbers: float, **options: float) -> X:
        if wide is x.dtype is target.dtype and x.device.type == "cpu":
            losses = of_difference(x.float() - target.float(), *numbers, **options)
            return _reduced(losses.to(wide), reduction)
        return _reduced(of_difference(x - target, *numbers, **options), reduction)

    FORMULAS[name] = loss  # not by `formula`: eager stores the losses, in 16 bits where those are the operands


def _smooth(difference: X, beta: float = 1.0) -> X:
    if not beta >= 0:  # NaN neither
        raise ValueError("no formula: the call itself is to raise what PyTorch raises")
    size = difference.abs()
    return torch.where(size < beta, 0.5 * size * size / beta, size - 0.5 * beta) if beta else size


def _huber(difference: X, delta: float = 1.0) -> X:
    size = difference.abs()
    if difference.dtype is torch.bfloat16:  # to which eager rounds it
        delta = torch.full_like(size, delta)
    return torch.where(size <= delta, 0.5 * size * size, delta * (size - 0.5 * delta))


def _bce_with_logits(
    x: X, target: X, weight: X | None = None, pos_weight: X | None = None, reduction: int = 1
) -> X | None:
    if x.dtype is not target.dtype:
        return None
    log_sigmoid = torch.nn.functional.logsigmoid(x)
    positive = log_sigmoid if pos_weight is None else ((pos_weight - 1) * target + 1) * log_sigmoid
    losses = (1 - target) * x - positive
    return _reduced(losses if weight is None else losses * weight, reduction)


FORMULAS["binary_cross_entropy_with_logits"] = _bce_with_logits
_loss("mse_loss", lambda difference: difference * difference)
_loss("smooth_l1_loss", _smooth, torch.bfloat16)
_loss("huber_loss", _huber, torch.float16)


def _share(x: X, reduction: int) -> float:
    return 1 / x.numel() if reduction == 1 else 1.0


def _clipped(grad: X, difference: X, factor: float, edge: float, inner: X) -> X:
    outer = factor * grad
    return torch.where(difference <= -edge, -outer, torch.where(difference >= edge, outer, inner))


@formula("smooth_l1_loss_backward")
def _smooth_backward(grad: X, x: X, target: X, reduction: int, beta: float) -> X:
    difference, factor = x - target, _share(x, reduction)
    inner = factor * difference * grad / beta if beta else grad
    return _clipped(grad, difference, factor, beta, inner)


@formula("huber_loss_backward")
def _huber_backward(grad: X, x: X, target: X, reduction: int, delta: float) -> X:
    difference, factor = x - target, _share(x, reduction)
    return _clipped(grad, difference, factor * delta, delta, factor * difference * grad)


@formula("binary_cross_entropy_backward")
def _bce_backward(grad: X, x: X, target: X, weight: X | None = None, reduction: int = 1) -> X:
    value = grad * (x - target) / ((1 - x) * x).clamp_min(1e-12)
    value = value if weight is None else value * weight
    return value * _share(x, reduction) if reduction == 1 else value


def _of_classes(x: X) -> tuple[int, list[int]]:
    """The axis of the classes, and a shape for a vector that has something for each of them."""
    axis = min(1, x.ndim - 1)
    return axis, [-1 if k == axis else 1 for k in range(x.ndim)]


@formula("nll_loss_forward nll_loss2d_forward")
def _nll_loss(x: X, target: X, weight: X | None, reduction: int, ignore_index: int) -> tuple[X, X]:
    """The losses, from the element of each row that is its target's, and what a mean divides them by."""
    axis, of_classes = _of_classes(x)
    counts = target != ignore_index
    place = torch.where(counts, target, 0).unsqueeze(axis)
    losses, weights = -x.gather(axis, place).squeeze(axis), counts.to(x.dtype)
    if weight is not None:
        weights = torch.where(counts, weight.view(of_classes).expand_as(x).gather(axis, place).squeeze(axis), 0)
        losses = losses * weights
    losses = torch.where(counts, losses, 0)
    if reduction == 0:
        return losses, x.new_zeros(())
    return losses.sum() / weights.sum() if reduction == 1 else losses.sum(), weights.sum()


@formula("nll_loss_backward nll_loss2d_backward")
def _nll_loss_backward(
    grad: X, x: X, target: X, weight: X | None, reduction: int, ignore_index: int, total_weight: X
) -> X:
    axis, of_classes = _of_classes(x)
    row = target.unsqueeze(axis)
    classes = torch.ops.aten.arange.default(x.shape[axis], device=x.device)  # `torch.arange` wants to find the device
    here = (classes.view(of_classes) == row) & (row != ignore_index)
    factor = -(grad.unsqueeze(axis) if reduction == 0 else grad.expand(row.shape))  # no kernel for a single number
    factor = factor if weight is None else factor * weight.view(of_classes)
    return torch.where(here, factor / total_weight if reduction == 1 else factor, 0)


# --- rows and their gradients ---


formula("_softmax_backward_data")(lambda grad, y, dim, input_dtype: (grad - (grad * y).sum(dim, keepdim=True)) * y)


@formula("logsumexp")
def _logsumexp(x: X, dim: Any, keepdim: bool = False) -> X:
    x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
    best = x.amax(dim, keepdim=True)
    shift = torch.where(best.isinf(), 0, best)
    powers = (x - shift).exp()
    return powers.sum(dim, keepdim).log() + (shift if keepdim else shift.amax(dim))


def _rms_norm(x: X, shape: Any, weight: X | None = None, eps: float | None = None) -> tuple[X, X]:
    dtype = x.dtype
    x = _computed(x)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    scale = ((x * x).mean([*range(-len(shape), 0)], keepdim=True) + eps).rsqrt()
    return (x * scale if weight is None else x * scale * weight).to(dtype), scale


FORMULAS["_fused_rms_norm"] = _rms_norm  # not by `formula`: the second result is not rounded


@formula("_fused_rms_norm_backward")
def _rms_norm_backward(grad: X, x: X, shape: Any, scale: X, weight: X | None, mask: Any) -> tuple[X | None, X | None]:
    value = x * scale
    inner = grad if weight is None else grad * weight
    of_input = (inner - value * (inner * value).mean([*range(-len(shape), 0)], keepdim=True)) * scale
    outer = [*range(x.ndim - len(shape))]
    of_weight = (grad * value).sum(outer) if outer else grad * value
    return of_input if mask[0] else None, of_weight if mask[1] and weight is not None else None


# --- normalisations and their gradients, in 32 bits at least, which are rounded at the end ---
# `mask` says which gradients are wanted.


def _standardised(x: X, axes: list[int], eps: float) -> tuple[X, X, X]:
    """The elements with mean 0 and variance 1 along some axes; what was taken away for it, and by what they were scaled."""
    x = _computed(x)
    if x.device.type == "cpu":
        mean = x.mean(axes, keepdim=True)
        variance = (x - mean).square().mean(axes, keepdim=True)
    else:
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    scale = (variance + eps).rsqrt()
    return (x - mean) * scale, mean, scale


def _affine(value: X, weight: X | None, bias: X | None) -> X:
    value = value if weight is None else value * weight
    return value if bias is None else value + bias


def _gradient(grad: X, value: X, scale: X, weight: X | None, axes: list[int]) -> X:
    """With respect to the elements that were standardised to `value`: what would change mean or scale has no effect."""
    grad = grad if weight is None else grad * weight
    along_value = (grad * value).mean(axes, keepdim=True)
    return (grad - value * along_value - grad.mean(axes, keepdim=True)) * scale


def _wanted(found: list[X | None], mask: Any) -> tuple[X | None, ...]:
    return tuple([gradient if wanted else None for gradient, wanted in zip(found, mask, strict=True)])


def _layer_norm_backward(
    grad: X, x: X, shape: Any, mean: X, scale: X, weight: X | None, bias: X | None, mask: Any
) -> tuple[X | None, ...]:
    grad, value, outer = _computed(grad), (_computed(x) - mean) * scale, [*range(x.ndim - len(shape))]
    of_input = _gradient(grad, value, scale, weight, [*range(-len(shape), 0)])
    of_weight, of_bias = (g.sum(outer) if outer else g.clone() for g in (grad * value, grad))
    return _wanted([of_input, of_weight if weight is not None else None, of_bias if bias is not None else None], mask)


def _grouped(x: X, groups: int) -> X:
    """(N, C, ...) as (N, groups, C / groups, ...)"""
    return x.unflatten(1, (groups, -1))


def _by_channel(parameter: X | None, groups: int, ndim: int) -> X | None:
    return None if parameter is None else parameter.view(groups, -1, *[1] * (ndim - 2))


def _group_norm(
    x: X, weight: X | None, bias: X | None, N: int, C: int, HxW: int, groups: int, eps: float
) -> tuple[X, X, X]:
    for parameter in (weight, bias):
        if parameter is not None and (parameter.dtype not in (x.dtype, _computed(x).dtype) or parameter.shape != (C,)):
            raise TypeError("eager refuses parameters of other types and lengths")
    value, mean, scale = _standardised(_grouped(x, groups), [*range(2, x.ndim + 1)], eps)
    value = _affine(value, *[_by_channel(p, groups, x.ndim) for p in (weight, bias)])
    return value.flatten(1, 2), mean.flatten(1), scale.flatten(1)


def _group_norm_backward(
    grad: X, x: X, mean: X, scale: X, weight: X | None, N: int, C: int, HxW: int, groups: int, mask: Any
) -> tuple[X | None, ...]:
    mean, scale = (s.view(*s.shape, *[1] * (x.ndim - 1)) for s in (mean, scale))
    grad, value = _computed(_grouped(grad, groups)), (_computed(_grouped(x, groups)) - mean) * scale
    axes, others = [*range(2, x.ndim + 1)], [0, *range(3, x.ndim + 1)]
    of_input = _gradient(grad, value, scale, _by_channel(weight, groups, x.ndim), axes).flatten(1, 2)
    return _wanted([of_input, *[g.sum(others).flatten() for g in (grad * value, grad)]], mask)


def _batch_norm_backward(
    grad: X, x: X, weight: X | None, running_mean: X | None, running_var: X | None, mean: X | None, scale: X | None,
    train: bool, eps: float, mask: Any,
) -> tuple[X | None, ...]:  # fmt: skip
    axes, shape = [0, *range(2, x.ndim)], (-1, *[1] * (x.ndim - 2))
    if not train:
        assert running_mean is not None and running_var is not None
        mean, scale = running_mean, 1 / (_computed(running_var) + eps).sqrt()
    assert mean is not None and scale is not None
    scale, grad = _computed(scale).view(shape), _computed(grad)
    value = (_computed(x) - mean.view(shape)) * scale
    product, rest = grad * value, grad
    if train:
        rest = grad - value * product.mean(axes, keepdim=True) - grad.mean(axes, keepdim=True)
    of_input = rest * scale if weight is None else rest * scale * weight.view(shape)
    return _wanted([of_input, product.sum(axes), grad.sum(axes)], mask)


FORMULAS.update({
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm": _group_norm, "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm_backward": _batch_norm_backward,
})  # fmt: skip
