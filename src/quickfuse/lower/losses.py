"""Rules of loss functions: a value for each element or row, which is then averaged or added up.

Where eager stores an intermediate tensor in 16 bits, say the losses before their mean, it is rounded here.
"""

from __future__ import annotations

from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, optional, rule, several
from .computed_indices import at
from .context import Context
from .layout import Shape, costs_at_least
from .promotion import COMPUTE, Promotion, common_dtype, is_float
from .rules import NoRule, operand, promotion_key
from .space import Space
from .symbolic import Tensor

I64 = torch.int64

#: What ATen's losses take for `reduction`.
NONE, MEAN, SUM = range(3)

# --- from losses to a loss ---


def _reduced(ctx: Context, meta: Any, losses: Expr, shape: Shape, dtype: torch.dtype, reduction: Any) -> Tensor:
    """Losses of type `dtype`, each rounded to it, as ATen's `reduction` says: as they are, their mean, or their sum."""
    if type(meta) is not TensorMeta or reduction not in (NONE, MEAN, SUM):
        raise NoRule
    compute = COMPUTE[dtype]
    losses = ops.via(losses, dtype)
    if reduction == NONE:
        return made(ctx, meta, ops.via(losses, meta.dtype))
    space = Space(ctx, shape, tuple(range(len(shape))), meta.device)
    total = ops.via(space.sum(ops.via(losses, compute)), compute)
    if reduction == MEAN:
        total = ops.div(total, space.number_of_elements(compute))
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


@rule("binary_cross_entropy", "input target weight=None reduction=1")
def bce(ctx: Context, meta: Any, input: Any, target: Any, weight: Any, reduction: Any) -> Tensor:
    """A probability below zero or above one, or NaN, is an exception, and so is a target of another type."""
    if type(input) is not Tensor or type(target) is not Tensor or target.dtype is not input.dtype:
        raise NoRule
    (x, y, *factors), _, common = _operands(ctx, input, target, *(() if weight is None else (weight,)))
    if common is not input.dtype or COMPUTE[common] is not common or not input.meta.numel:
        raise NoRule  # eager rounds intermediate tensors to 16 bits
    one, least = ops.like(x, 1), ops.like(x, -100)
    valid = ops.bit_and(ops.ge(x, ops.like(x, 0)), ops.le(x, one))
    ctx.raise_where(ops.bit_not(valid), input.meta.shape, input.meta.device)
    without = ops.maximum(ops.log1p(ops.neg(x)), least)
    losses = ops.sub(ops.mul(ops.sub(y, one), without), ops.mul(y, ops.maximum(ops.log(x), least)))
    for factor in factors:
        losses = ops.mul(losses, factor)
    return _reduced(ctx, meta, losses, input.meta.shape, common, reduction)


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
            ctx.raise_where(ops.bit_not(valid), self.rows, self.space.device)
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
        formula = self.ctx.formula_behind(value, self.shape)
        value = value if costs_at_least(formula, COSTS.compute_once_more) else formula
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
        if type(meta) is not TensorMeta or reduction not in (NONE, MEAN, SUM):
            raise NoRule
        rows = self.space.result(ops.via(losses, self.dtype), False)
        if reduction == NONE:
            return made(self.ctx, meta, rows)
        every = Space(self.ctx, self.rows, tuple(range(len(self.rows))), meta.device)
        total = every.sum(ops.via(rows, self.compute))
        if reduction == MEAN:
            weights = self.space.result(self.row_weight(), False)
            total = ops.div(total, every.sum(weights))
        return made(self.ctx, meta, ops.via(every.result(total, False), self.dtype))


@rule("nll_loss_forward nll_loss2d_forward", "input target weight reduction ignore_index")
def nll_loss(
    ctx: Context, meta: Any, input: Any, target: Any, weight: Any, reduction: Any, ignore_index: Any
) -> list[Tensor | None]:
    """The second result is the weight that the losses were divided by, for the gradient."""
    metas = several(meta, 2)
    classes = Classes(ctx, input, target, weight, ignore_index)
    losses = classes.negative(classes.of_target(classes.value))
    total = ops.const(0, metas[1].dtype) if reduction == NONE else classes.total_weight()
    return [classes.reduced(metas[0], losses, reduction), optional(ctx, metas[1], total)]


@rule("nll_loss_backward nll_loss2d_backward", "grad_output input target weight reduction ignore_index total_weight")
def nll_loss_backward(
    ctx: Context, meta: Any, grad_output: Any, input: Any, target: Any, weight: Any, reduction: Any, ignore_index: Any,
    total_weight: Any,
) -> Tensor:  # fmt: skip
    classes = Classes(ctx, input, target, weight, ignore_index, checked=False)
    compute, shape, device = classes.compute, classes.shape, classes.space.device
    grad = classes.of_rows(grad_output) if reduction == NONE else _number(ctx, grad_output, shape, device, compute)
    factor = ops.neg(grad if classes.weight is None else ops.mul(grad, classes.weight))
    if reduction == MEAN:
        factor = ops.div(factor, _number(ctx, total_weight, shape, device, compute))
    here = ops.bit_and(classes.is_target, ops.bit_not(classes.is_ignored))
    return made(ctx, meta, ops.via(ops.where(here, factor, ops.like(factor, 0)), meta.dtype))


def _number(ctx: Context, tensor: Any, shape: Shape, device: torch.device, dtype: torch.dtype) -> Expr:
    if type(tensor) is not Tensor or tensor.meta.shape:
        raise NoRule
    return ops.via(ctx.read_as(tensor, shape, device), dtype)
