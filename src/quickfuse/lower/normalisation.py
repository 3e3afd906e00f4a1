"""Rules of batch and layer normalisation: statistics of each row, and the elements scaled by them, in one kernel.

Statistics are rounded to the type that eager computes in (float32 for 16-bit types) and used as numbers of that type. Other
norms, and all gradients, are formulas in PyTorch calls: see `formulas.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.expr import Expr
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, optional, rule, several
from .computed_indices import at
from .context import Context
from .layout import Shape
from .moments import moments
from .promotion import COMPUTE, is_float
from .rules import given, no_rule_if
from .space import Space
from .symbolic import Tensor


def _along(ctx: Context, operand: Tensor | None, axes: Shape, input: Tensor) -> Expr | None:
    """A weight over some axes of the input, as a value over all of it; None for no weight."""
    if operand is None:
        return None
    shape, dtype = input.meta.shape, COMPUTE[input.dtype]
    no_rule_if(operand.meta.shape != tuple(shape[k] for k in axes))
    no_rule_if(operand.dtype not in (input.dtype, dtype))  # eager refuses others
    return ops.via(at(ctx.read(operand), axes, len(shape), None), dtype)


def _computed_in(input: Tensor) -> torch.dtype:
    """The type of the arithmetic on a float tensor with elements."""
    no_rule_if(not is_float(input.dtype) or not input.meta.numel)
    return COMPUTE[input.dtype]


@rule("native_layer_norm")
def layer_norm(
    ctx: Context, meta: Any, input: Tensor, normalized_shape: Any, weight: Tensor | None, bias: Tensor | None, eps: Any
) -> list[Tensor | None]:
    """A formula takes three times as long to lower and to schedule, and a transformer has two of these in each block."""
    metas, compute, shape = several(meta, 3), _computed_in(input), input.meta.shape
    space = Space(ctx, shape, tuple(range(len(shape) - len(normalized_shape), len(shape))), input.meta.device)
    x = ops.via(ctx.read(input), compute)
    mean, variance = moments(space, x)
    mean = ops.via(mean, compute)
    scale = ops.via(ops.rsqrt(variance + given(eps, variance.dtype)), compute)
    value = (x - mean) * scale
    gain, shift = (_along(ctx, w, space.axes, input) for w in (weight, bias))
    value = value if gain is None else value * gain
    value = value if shift is None else value + shift
    values = (value, space.result(mean, True), space.result(scale, True))
    return [optional(ctx, one, result) for one, result in zip(metas, values, strict=True)]


def _inverse_deviation(variance: Expr, eps: Expr) -> Expr:
    return 1 / ops.sqrt(variance + eps)


class _BatchNormalised:
    """Elements standardised in each channel, by statistics of the batch if `training`, or by the running ones.

    As in eager, every channel has one factor and one summand. `value` is the result, `mean` and `unbiased` variance those
    of the batch in the space's wide type, `inverse` the reciprocal of the standard deviation in the type that is computed
    in.
    """

    def __init__(
        self, ctx: Context, input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
        running_var: Tensor | None, training: bool, eps: Any,
    ) -> None:  # fmt: skip
        compute = self.compute = _computed_in(input)
        self.ctx, self.running, self.training = ctx, (running_mean, running_var), training
        storages = [t.storage for t in (input, weight, bias, running_mean, running_var) if t is not None]
        no_rule_if(training and any(storages.count(t.storage) > 1 for t in self.running if t is not None))  # changed first
        shape = input.meta.shape
        value = ops.via(ctx.read(input) if self.training else ctx.formula(input), compute)
        self.space = Space(ctx, shape, tuple(k for k in range(len(shape)) if k != 1), input.meta.device)
        if self.training:
            self._by_batch(value, eps)
            mean = ops.via(self.mean, compute)
        else:
            centre, spread = (_along(ctx, t, (1,), input) for t in self.running)
            no_rule_if(centre is None or spread is None)
            mean = centre
            self.eps = given(eps, compute)
            self.inverse = _inverse_deviation(spread, self.eps)
        gain, shift = (_along(ctx, t, (1,), input) for t in (weight, bias))
        factor = self.inverse if gain is None else self.inverse * gain
        offset = mean * factor
        summand = -offset if shift is None else shift - offset
        self.value = ops.plus_product(summand, value, factor)

    def _by_batch(self, value: Expr, eps: Any) -> None:
        space = self.space
        self.mean, variance = moments(space, value)
        self.inverse = ops.via(ops.rsqrt(variance + given(eps, variance.dtype)), self.compute)
        count = space.number_of_elements(variance.dtype)
        others = ops.maximum(count - 1, 1)
        self.unbiased = variance * (count / others)

    def statistics(self) -> list[Expr]:
        """Mean and reciprocal of the deviation of each channel; on CPUs the running ones are returned without elements."""
        if not self.training:
            mean, variance = (ops.via(self.ctx.read(running), self.compute) for running in self.running)
            return [mean, _inverse_deviation(variance, self.eps)]
        return [self.space.result(value, False) for value in (self.mean, self.inverse)]

    def moved(self, momentum: Any) -> list[Expr | None]:
        """The running statistics, moved towards those of the batch if `training`; None for those that there are not."""
        if not self.training:
            return [self.ctx.read(running) for running in self.running]
        values = zip(self.running, (self.mean, self.unbiased), strict=True)
        return [None if running is None else self._moved(running, value, momentum) for running, value in values]

    def _moved(self, running: Tensor, value: Expr, momentum: Any) -> Expr:
        no_rule_if(not is_float(running.dtype))
        compute = COMPUTE[running.dtype]
        if type(momentum) is Tensor:  # a number out of a tensor
            rate = ops.via(reindex(self.ctx.read(momentum), IndexMap((), (), 1)), compute)
        else:
            rate = given(momentum, compute)
        new = rate * ops.via(self.space.result(value, False), compute)
        old = (1 - rate) * ops.via(self.ctx.read(running), compute)
        return ops.via(new + old, running.dtype)

    def move(self, momentum: Any) -> None:
        """Change the running statistics in place, where there are any, if `training`."""
        for running, value in zip(self.running, self.moved(momentum), strict=True) if self.training else ():
            if value is not None:
                self.ctx.assign(running, value)


@rule("", [functional.batch_norm])
def batch_norm(
    ctx: Context, meta: TensorMeta, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: Any = 0.1, eps: Any = 1e-5,
) -> Tensor:  # fmt: skip
    normalised = _BatchNormalised(ctx, input, weight, bias, running_mean, running_var, training, eps)
    normalised.move(momentum)
    return made(ctx, meta, ops.via(normalised.value, meta.dtype))


@rule("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional")
def native_batch_norm(
    ctx: Context, meta: Any, input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, training: bool, momentum: Any, eps: Any,
) -> list[Tensor | None]:  # fmt: skip
    """The operator whose gradient needs the statistics. The running ones are changed in place, or two further results."""
    no_rule_if(not isinstance(meta, (list, tuple)) or len(meta) not in (3, 5))
    normalised = _BatchNormalised(ctx, input, weight, bias, running_mean, running_var, training, eps)
    values = [normalised.value, *normalised.statistics()]
    if len(meta) == 5:
        values += normalised.moved(momentum)  # type: ignore[arg-type]
    else:
        normalised.move(momentum)
    return [optional(ctx, one, value) for one, value in zip(meta, values, strict=True)]
