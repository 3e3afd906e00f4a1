"""Rules of loss functions: a value for each element or row, which is then averaged or added up.

Where eager stores an intermediate tensor in 16 bits, say the losses before their mean, it is rounded here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import at
from .context import Context
from .layout import Shape, costs_at_least
from .promotion import COMPUTE, Promotion, common_dtype, is_float
from .reductions import log_softmax_of
from .rules import NoRule, operand, promotion_key
from .space import Space
from .symbolic import Tensor

F64, I64 = torch.float64, torch.int64

# --- from losses to a loss ---


def _reduced(ctx: Context, meta: Any, losses: Expr, shape: Shape, dtype: torch.dtype, reduction: Any) -> Tensor:
    """Losses of type `dtype`, each rounded to it, as `reduction` says."""
    if type(meta) is not TensorMeta or reduction not in ("none", "mean", "sum", "batchmean"):
        raise NoRule
    compute = COMPUTE[dtype]
    losses = ops.via(losses, dtype)
    if reduction == "none":
        return made(ctx, meta, ops.via(losses, meta.dtype))
    space = Space(ctx, shape, tuple(range(len(shape))), meta.device)
    total = ops.via(space.sum(ops.via(losses, compute)), compute)
    if reduction != "sum":
        count = space.number_of_elements(compute) if reduction == "mean" else ops.const(shape[0], compute)
        total = ops.div(total, count)
    return made(ctx, meta, ops.via(space.result(total, False), meta.dtype))


def _operands(ctx: Context, *tensors: Any) -> tuple[list[Expr], Shape, torch.dtype]:
    """Tensors of one shape in the type that is computed in; their shape and their common type."""
    if any(type(t) is not Tensor or t.meta.shape != tensors[0].meta.shape for t in tensors):
        raise NoRule
    common = common_dtype(tuple([promotion_key(t) for t in tensors]), Promotion.SAME, ctx.default_dtype)
    shape, device, compute = tensors[0].meta.shape, tensors[0].meta.device, COMPUTE[common]
    if not is_float(common):
        raise NoRule
    return [operand(ctx, t, shape, device, common, compute, True) for t in tensors], shape, common


# --- of two tensors ---


def _register_differences(function: Any, parameters: str, formula: Callable[..., Expr]) -> None:
    """A loss of the difference of two tensors."""

    @rule("", f"input target {parameters}", [function])
    def evaluate(ctx: Context, meta: Any, input: Any, target: Any, reduction: Any, **options: Any) -> Tensor:
        numbers = [options.pop(name) for name in ("beta", "delta") if name in options]
        if any(value is not None for value in options.values()) or any(type(n) not in (int, float) for n in numbers):
            raise NoRule
        (x, y), shape, common = _operands(ctx, input, target)
        return _reduced(ctx, meta, formula(ops.sub(x, y), *numbers), shape, common, reduction)


def _square(difference: Expr) -> Expr:
    return ops.mul(difference, difference)


def _smooth(difference: Expr, beta: float) -> Expr:
    size = ops.absolute(difference)
    if beta == 0:
        return size
    if beta < 0:
        raise NoRule
    half, edge = ops.like(size, 0.5), ops.like(size, beta)
    inner = ops.div(ops.mul(ops.mul(half, size), size), edge)
    return ops.where(ops.lt(size, edge), inner, ops.sub(size, ops.mul(half, edge)))


def _huber(difference: Expr, delta: float) -> Expr:
    if delta <= 0:
        raise NoRule
    size = ops.absolute(difference)
    half, edge = ops.like(size, 0.5), ops.like(size, delta)
    outer = ops.mul(edge, ops.sub(size, ops.mul(half, edge)))
    return ops.where(ops.le(size, edge), ops.mul(ops.mul(half, size), size), outer)


_OLD = "size_average=None reduce=None reduction='mean'"
_register_differences(functional.mse_loss, f"{_OLD} weight=None", _square)
_register_differences(functional.l1_loss, f"{_OLD} weight=None", ops.absolute)
_register_differences(functional.smooth_l1_loss, f"{_OLD} beta=1.0", _smooth)
_register_differences(functional.huber_loss, "reduction='mean' delta=1.0 weight=None", _huber)


@rule("", f"input target weight=None {_OLD} pos_weight=None", [functional.binary_cross_entropy_with_logits])
def bce_with_logits(
    ctx: Context, meta: Any, input: Any, target: Any, weight: Any, size_average: Any, reduce: Any, reduction: Any,
    pos_weight: Any,
) -> Tensor:  # fmt: skip
    if size_average is not None or reduce is not None or weight is not None or pos_weight is not None:
        raise NoRule
    (x, y), shape, common = _operands(ctx, input, target)
    if common is not input.dtype or COMPUTE[common] is not common:
        raise NoRule  # eager rounds several intermediate tensors to 16 bits
    zero = ops.like(x, 0)
    log_sigmoid = ops.sub(ops.minimum(x, zero), ops.log1p(ops.exp(ops.neg(ops.absolute(x)))))
    losses = ops.sub(ops.mul(ops.sub(ops.like(y, 1), y), x), log_sigmoid)
    return _reduced(ctx, meta, losses, shape, common, reduction)


#: What ATen's losses call `reduction`.
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


@rule("binary_cross_entropy", "input target weight=None reduction=1")
def bce(ctx: Context, meta: Any, input: Any, target: Any, weight: Any, reduction: Any) -> Tensor:
    """ATen's form. A probability below zero or above one, or NaN, is an exception."""
    x, y, factor, common = _probabilities(ctx, input, target, weight)
    one, least = ops.like(x, 1), ops.like(x, -100)
    valid = ops.bit_and(ops.ge(x, ops.like(x, 0)), ops.le(x, one))
    ctx.raise_where(ops.bit_not(valid), input.meta.shape)
    without = ops.maximum(ops.log1p(ops.neg(x)), least)
    losses = ops.sub(ops.mul(ops.sub(y, one), without), ops.mul(y, ops.maximum(ops.log(x), least)))
    losses = losses if factor is None else ops.mul(losses, factor)
    return _reduced(ctx, meta, losses, input.meta.shape, common, REDUCTIONS.get(reduction))


@rule("binary_cross_entropy_backward", "grad_output input target weight=None reduction=1")
def bce_backward(
    ctx: Context, meta: Any, grad_output: Any, input: Any, target: Any, weight: Any, reduction: Any
) -> Tensor:
    x, y, factor, common = _probabilities(ctx, input, target, weight)
    if grad_output.dtype is not common or reduction not in REDUCTIONS:
        raise NoRule
    width = ops.maximum(ops.mul(ops.sub(ops.like(x, 1), x), x), ops.like(x, 1e-12))
    value = ctx.read_as(grad_output, input.meta.shape, input.meta.device)
    value = ops.div(ops.mul(value, ops.sub(x, y)), width)
    value = value if factor is None else ops.mul(value, factor)
    if REDUCTIONS[reduction] == "mean":
        value = ops.div(value, ops.const(input.meta.numel, common))
    return made(ctx, meta, value)


def _probabilities(
    ctx: Context, input: Any, target: Any, weight: Any
) -> tuple[Expr, Expr, Expr | None, torch.dtype]:
    """Probabilities, what they should be, and the weight of each loss."""
    values, _, common = _operands(ctx, input, target, *(() if weight is None else (weight,)))
    if common is not input.dtype or COMPUTE[common] is not common or not input.meta.numel:
        raise NoRule  # eager rounds intermediate tensors to 16 bits
    return values[0], values[1], values[2] if weight is not None else None, common


@rule("", f"input target {_OLD} log_target=False", [functional.kl_div])
def kl_div(
    ctx: Context, meta: Any, input: Any, target: Any, size_average: Any, reduce: Any, reduction: Any, log_target: Any
) -> Tensor:
    if size_average is not None or reduce is not None or reduction == "mean":  # which warns
        raise NoRule
    (x, y), shape, common = _operands(ctx, input, target)
    if COMPUTE[common] is not common or (reduction == "batchmean" and not shape):
        raise NoRule
    if log_target is True:
        losses = ops.mul(ops.exp(y), ops.sub(y, x))
    else:
        zero = ops.like(y, 0)
        entropy = ops.where(ops.isnan(y), y, ops.where(ops.eq(y, zero), zero, ops.mul(y, ops.unary("log", y))))
        losses = ops.sub(entropy, ops.mul(y, x))
    return _reduced(ctx, meta, losses, shape, common, reduction)


# --- of classes ---


def _within(target: Expr, classes: int) -> Expr:
    return ops.bit_and(ops.ge(target, ops.const(0, I64)), ops.lt(target, ops.const(classes, I64)))


class Classes:
    """Scores for classes and the class of each row. Targets are `checked` unless they have been before."""

    def __init__(
        self, ctx: Context, input: Any, target: Any, weight: Any, ignored: Any, *, checked: bool = True
    ) -> None:
        if any(type(t) is not Tensor for t in (input, target)) or type(ignored) is not int:
            raise NoRule
        shape = input.meta.shape
        self.axis = 1 if len(shape) > 1 else 0
        kept = tuple([k for k in range(len(shape)) if k != self.axis])
        self.rows = tuple([shape[k] for k in kept])
        if target.dtype is not I64 or target.meta.shape != self.rows or not is_float(input.dtype) or not input.meta.numel:
            raise NoRule
        self.ctx, self.shape, self.dtype = ctx, shape, input.dtype
        self.compute = COMPUTE[input.dtype]
        self.space = Space(ctx, shape, (self.axis,), input.meta.device)
        self.value = ops.via(ctx.read(input), self.compute)
        rows = tuple([tuple([int(j == k) for j in range(len(shape))]) for k in kept])
        self._by_row = IndexMap((0,) * len(kept), rows, len(shape))
        known = ctx.read(target)
        self.target = reindex(known, self._by_row)
        self.is_target = ops.eq(Index(self.axis), self.target)
        self.is_ignored = ops.eq(self.target, ops.const(ignored, I64))
        if checked:
            valid = ops.bit_or(_within(known, shape[self.axis]), ops.eq(known, ops.const(ignored, I64)))
            ctx.raise_where(ops.bit_not(valid), self.rows)
        self.weight = self._weights(weight)

    def _weights(self, weight: Any) -> Expr | None:
        if weight is None:
            return None
        if type(weight) is not Tensor or weight.meta.shape != (self.shape[self.axis],) or weight.dtype != self.dtype:
            raise NoRule
        row = tuple([int(j == self.axis) for j in range(len(self.shape))])
        return ops.via(reindex(self.ctx.read(weight), IndexMap((0,), (row,), len(self.shape))), self.compute)

    def of_rows(self, tensor: Any) -> Expr:
        """A tensor with a number for each row."""
        if type(tensor) is not Tensor or tensor.meta.shape != self.rows:
            raise NoRule
        return ops.via(reindex(self.ctx.read(tensor), self._by_row), self.compute)

    def of_target(self, value: Expr) -> Expr:
        """A value of each class, at the target: that element alone, unless it takes long to compute once more.

        Of a sum over the classes all terms but one are zero, so it is exact.
        """
        if not costs_at_least(value, COSTS.compute_once_more):
            ndim = len(self.shape)
            known = ops.where(_within(self.target, self.shape[self.axis]), self.target, ops.const(0, I64))
            return at(value, [known if k == self.axis else k for k in range(ndim)], ndim, None)
        zero = ops.like(value, 0)
        return ops.via(self.space.sum(ops.where(self.is_target, value, zero)), value.dtype)

    def row_weight(self) -> Expr:
        one = ops.const(1, self.compute) if self.weight is None else self.of_target(self.weight)
        return ops.where(self.is_ignored, ops.const(0, self.compute), one)

    def negative(self, log_probability: Expr) -> Expr:
        """The weighted loss of each row, from the logarithm of its target's probability."""
        loss = ops.neg(log_probability)
        if self.weight is not None:
            loss = ops.mul(loss, self.of_target(self.weight))
        return ops.where(self.is_ignored, ops.like(loss, 0), loss)

    def total_weight(self) -> Expr:
        """What a mean divides by."""
        every = Space(self.ctx, self.rows, tuple(range(len(self.rows))), self.space.device)
        return every.result(every.sum(self.space.result(self.row_weight(), False)), False)

    def reduced(self, meta: Any, losses: Expr, reduction: Any) -> Tensor:
        """The rows' losses, already weighted."""
        if type(meta) is not TensorMeta or reduction not in ("none", "mean", "sum"):
            raise NoRule
        rows = self.space.result(ops.via(losses, self.dtype), False)
        if reduction == "none":
            return made(self.ctx, meta, rows)
        every = Space(self.ctx, self.rows, tuple(range(len(self.rows))), meta.device)
        total = every.sum(ops.via(rows, self.compute))
        if reduction == "mean":
            weights = self.space.result(self.row_weight(), False)
            total = ops.div(total, every.sum(weights))
        return made(self.ctx, meta, ops.via(every.result(total, False), self.dtype))


_CLASSES = "weight=None size_average=None ignore_index=-100 reduce=None reduction='mean'"


@rule("", f"input target {_CLASSES}", [functional.nll_loss])
def nll_loss(
    ctx: Context, meta: Any, input: Any, target: Any, weight: Any, size_average: Any, ignore_index: Any, reduce: Any,
    reduction: Any,
) -> Tensor:  # fmt: skip
    if size_average is not None or reduce is not None:
        raise NoRule
    classes = Classes(ctx, input, target, weight, ignore_index)
    return classes.reduced(meta, classes.negative(classes.of_target(classes.value)), reduction)


@rule("", f"input target {_CLASSES} label_smoothing=0.0", [functional.cross_entropy])
def cross_entropy(
    ctx: Context, meta: Any, input: Any, target: Any, weight: Any, size_average: Any, ignore_index: Any, reduce: Any,
    reduction: Any, label_smoothing: Any,
) -> Tensor:  # fmt: skip
    if size_average is not None or reduce is not None or type(label_smoothing) not in (int, float):
        raise NoRule
    if type(input) is not Tensor or COMPUTE[input.dtype] is not input.dtype:
        raise NoRule  # eager rounds the logarithms to 16 bits
    if not 0 <= label_smoothing <= 1:
        raise NoRule  # an error
    if type(target) is Tensor and is_float(target.dtype):
        return _of_probabilities(ctx, meta, input, target, weight, reduction, float(label_smoothing))
    classes = Classes(ctx, input, target, weight, ignore_index)
    shifted = ops.sub(classes.value, classes.space.largest(classes.value))
    logarithm = ops.via(ops.log(classes.space.sum(ops.exp(shifted))), classes.compute)
    losses = classes.negative(ops.sub(classes.of_target(shifted), logarithm))
    if label_smoothing:
        losses = _smoothed(classes, losses, ops.sub(shifted, logarithm), float(label_smoothing))
    return classes.reduced(meta, losses, reduction)


def _smoothed(classes: Classes, losses: Expr, logarithms: Expr, smoothing: float) -> Expr:
    """Losses that are to some part those of all classes alike."""
    weighted = logarithms if classes.weight is None else ops.mul(logarithms, classes.weight)
    alike = ops.neg(ops.via(classes.space.sum(weighted), losses.dtype))
    alike = ops.where(classes.is_ignored, ops.like(alike, 0), alike)
    share = ops.like(losses, smoothing / classes.space.count)
    return ops.add(ops.mul(losses, ops.like(losses, 1 - smoothing)), ops.mul(alike, share))


def _of_probabilities(
    ctx: Context, meta: Any, input: Tensor, target: Tensor, weight: Any, reduction: Any, smoothing: float
) -> Tensor:
    """Cross entropy with the probability of every class."""
    shape = input.meta.shape
    axis = 1 if len(shape) > 1 else 0
    if weight is not None or target.meta.shape != shape or target.dtype != input.dtype or not input.meta.numel:
        raise NoRule
    rows = Space(ctx, shape, (axis,), input.meta.device)
    wanted = ctx.read(target)
    if smoothing:
        wanted = ops.add(ops.mul(wanted, ops.like(wanted, 1 - smoothing)), ops.like(wanted, smoothing / shape[axis]))
    value = ops.mul(log_softmax_of(rows, ctx.read(input)), wanted)
    losses = rows.result(ops.via(ops.neg(rows.sum(value)), input.dtype), False)
    kept = tuple([size for k, size in enumerate(shape) if k != axis])
    return _reduced(ctx, meta, losses, kept, input.dtype, reduction)
