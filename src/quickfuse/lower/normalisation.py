"""Rules of normalisation: statistics of each row, and the elements scaled by them, in one kernel.

Statistics are rounded to the type that eager computes in (float32 for 16-bit types) and used as numbers of that type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, optional, rule, several
from .context import Context
from .layout import Shape
from .moments import moments
from .promotion import COMPUTE, is_float
from .rules import NoRule
from .space import Space
from .symbolic import Storage, Tensor


def computed_in(input: Any) -> torch.dtype:
    """The type of the arithmetic on a float tensor with elements."""
    if type(input) is not Tensor or not is_float(input.dtype) or not input.meta.numel:
        raise NoRule
    return COMPUTE[input.dtype]


def number_of(value: Any, dtype: torch.dtype) -> Expr:
    if type(value) is Scalar:
        return ops.via(value, dtype)
    if type(value) not in (int, float):
        raise NoRule
    return ops.const(value, dtype)


def along(ctx: Context, operand: Any, axes: Shape, shape: Shape, dtype: torch.dtype) -> Expr | None:
    """A weight over some axes of `shape`, as a value over all of it; None for no weight."""
    if operand is None:
        return None
    if type(operand) is not Tensor or operand.meta.shape != tuple(shape[k] for k in axes):
        raise NoRule
    rows = tuple([tuple([int(j == axis) for j in range(len(shape))]) for axis in axes])
    return ops.via(reindex(ctx.read(operand), IndexMap((0,) * len(axes), rows, len(shape))), dtype)


def affine(value: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    value = value if weight is None else ops.mul(value, weight)
    return value if bias is None else ops.add(value, bias)


def standardised(space: Space, value: Expr, eps: Any) -> tuple[Expr, Expr, Expr]:
    """The elements with mean 0 and variance 1 in each row; what was taken away for it, and by what they were scaled."""
    mean, variance = moments(space, value)
    mean = ops.via(mean, value.dtype)
    centred = ops.sub(value, mean)
    scale = ops.via(ops.rsqrt(ops.add(variance, number_of(eps, variance.dtype))), value.dtype)
    return ops.mul(centred, scale), mean, scale


def layer_normalised(
    ctx: Context, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any
) -> tuple[Space, Expr, Expr, Expr]:
    """The space of the rows, the result, and each row's mean and scale."""
    compute = computed_in(input)
    space = space_of_last(ctx, input, normalized_shape)
    value, mean, scale = standardised(space, ops.via(ctx.read(input), compute), eps)
    weights = [along(ctx, w, space.axes, space.shape, compute) for w in (weight, bias)]
    return space, affine(value, *weights), mean, scale


def space_of_last(ctx: Context, input: Tensor, normalized_shape: Any) -> Space:
    """The space in which the last axes are reduced."""
    shape = input.meta.shape
    return Space(ctx, shape, tuple(range(len(shape) - len(normalized_shape), len(shape))), input.meta.device)


def group_normalised(
    ctx: Context, input: Any, groups: int, weight: Any, bias: Any, eps: Any
) -> tuple[Space, Expr, Expr, Expr]:
    """The space over (N, groups, members, ...), the result there, and each group's mean and scale."""
    compute = computed_in(input)
    space, value = read_in_groups(ctx, input, groups)
    value, mean, scale = standardised(space, ops.via(value, compute), eps)
    return space, affine(value, *(by_channel(ctx, w, space.shape, compute) for w in (weight, bias))), mean, scale


def read_in_groups(ctx: Context, tensor: Tensor, groups: int) -> tuple[Space, Expr]:
    """The space over (N, groups, members, ...) that reduces each group, and the tensor's elements there."""
    meta = in_groups(tensor.meta, groups)
    view = Tensor(tensor.storage, meta, offset=tensor.offset, is_base=False)
    return Space(ctx, meta.shape, tuple(range(2, len(meta.shape))), meta.device), ctx.read(view)


def grouped(meta: TensorMeta, groups: int, value: Expr) -> Tensor:
    """A new tensor `meta` from a value over (N, groups, members, ...)."""
    return Tensor(Storage(in_groups(meta, groups), ops.via(value, meta.dtype)), meta, is_base=False)


def in_groups(meta: TensorMeta, groups: int) -> TensorMeta:
    """(N, C, ...) as (N, groups, C / groups, ...)."""
    batch, channels, *rest = meta.shape
    members = channels // groups
    outer, step, *steps = meta.stride
    shape, stride = (batch, groups, members, *rest), (outer, members * step, step, *steps)
    return TensorMeta(meta.dtype, shape, stride, meta.device)


def by_channel(ctx: Context, operand: Any, shape: Shape, dtype: torch.dtype) -> Expr | None:
    """A weight for each channel, over (N, groups, members, ...)."""
    if operand is None:
        return None
    if type(operand) is not Tensor or operand.meta.shape != (shape[1] * shape[2],):
        raise NoRule
    row = (0, shape[2], 1, *([0] * (len(shape) - 3)))
    return ops.via(reindex(ctx.read(operand), IndexMap((0,), (row,), len(shape))), dtype)


@rule("", "input running_mean running_var weight=None bias=None training=False momentum=0.1 eps=1e-5",
      [functional.batch_norm])  # fmt: skip
def batch_norm(
    ctx: Context, meta: Any, input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any,
    training: Any, momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    normalised = BatchNormalised(ctx, input, running_mean, running_var, weight, bias, training, eps)
    if training is True:
        normalised.move(ctx, running_mean, running_var, momentum)
    return made(ctx, meta, ops.via(normalised.value, meta.dtype))


class BatchNormalised:
    """Elements standardised in each channel, by statistics of the batch or by `running` ones.

    As in eager, every channel has one factor and one summand. `value` is the result, `mean` and `unbiased` variance those
    of the batch in the space's wide type, `inverse` the reciprocal of the standard deviation in the type that is computed
    in.
    """

    def __init__(
        self, ctx: Context, input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any, training: Any, eps: Any
    ) -> None:
        compute = self.compute = computed_in(input)
        shape = input.meta.shape
        value = ops.via(ctx.read(input) if training is True else ctx.formula(input), compute)
        self.space = Space(ctx, shape, tuple(k for k in range(len(shape)) if k != 1), input.meta.device)
        if training is True:
            self._by_batch(value, eps)
            mean = ops.via(self.mean, compute)
        else:
            centre, spread = (along(ctx, t, (1,), shape, compute) for t in (running_mean, running_var))
            if centre is None or spread is None:
                raise NoRule
            mean = centre
            self.inverse = inverse_deviation(spread, eps)
        gain, shift = (along(ctx, t, (1,), shape, compute) for t in (weight, bias))
        factor = self.inverse if gain is None else ops.mul(self.inverse, gain)
        offset = ops.mul(mean, factor)
        summand = ops.neg(offset) if shift is None else ops.sub(shift, offset)
        self.value = ops.plus_product(summand, value, factor)

    def _by_batch(self, value: Expr, eps: Any) -> None:
        space = self.space
        self.mean, variance = moments(space, value)
        self.inverse = ops.via(ops.rsqrt(ops.add(variance, number_of(eps, variance.dtype))), self.compute)
        count = space.number_of_elements(variance.dtype)
        others = ops.maximum(ops.sub(count, ops.const(1, count.dtype)), ops.const(1, count.dtype))
        self.unbiased = ops.mul(variance, ops.div(count, others))

    def move(self, ctx: Context, running_mean: Any, running_var: Any, momentum: Any) -> None:
        """Change the running statistics in place, where there are any."""
        for running, value in ((running_mean, self.mean), (running_var, self.unbiased)):
            if running is not None:
                ctx.assign(running, self.moved(ctx, running, value, momentum))

    def moved(self, ctx: Context, running: Any, value: Expr, momentum: Any) -> Expr:
        """A running statistic moved towards a new one."""
        if type(running) is not Tensor or not is_float(running.dtype):
            raise NoRule
        compute = COMPUTE[running.dtype]
        if type(momentum) is Tensor:  # a number out of a tensor
            rate = ops.via(reindex(ctx.read(momentum), IndexMap((), (), 1)), compute)
        else:
            rate = number_of(momentum, compute)
        new = ops.mul(rate, ops.via(self.space.result(value, False), compute))
        old = ops.mul(ops.sub(ops.const(1, compute), rate), ops.via(ctx.read(running), compute))
        return ops.via(ops.add(new, old), running.dtype)


def inverse_deviation(variance: Expr, eps: Any) -> Expr:
    return ops.div(ops.like(variance, 1), ops.sqrt(ops.add(variance, number_of(eps, variance.dtype))))


# --- the operators, whose gradients need the statistics ---


@rule("native_layer_norm", "input normalized_shape weight bias eps")
def layer_norm(
    ctx: Context, meta: Any, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any
) -> list[Tensor | None]:
    metas = several(meta, 3)
    space, value, mean, scale = layer_normalised(ctx, input, normalized_shape, weight, bias, eps)
    return [optional(ctx, metas[0], value), *_rows(ctx, metas[1:], [space.result(v, True) for v in (mean, scale)])]


def _rows(ctx: Context, metas: Sequence[Any], values: Sequence[Expr]) -> list[Tensor | None]:
    return [optional(ctx, meta, value) for meta, value in zip(metas, values, strict=True)]


@rule("native_group_norm", "input weight bias N C HxW group eps")
def group_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: Any, eps: Any
) -> list[Tensor | None]:
    metas = several(meta, 3)
    space, value, mean, scale = group_normalised(ctx, input, group, weight, bias, eps)
    return [grouped(metas[0], group, value), *_rows(ctx, metas[1:], [space.result(v, False) for v in (mean, scale)])]


_STATISTICS = "running_mean running_var training momentum eps"


@rule("native_batch_norm _native_batch_norm_legit", f"input weight bias {_STATISTICS}")
def native_batch_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any,
    momentum: Any, eps: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Running statistics are changed in place."""
    results = several(meta, 3)
    normalised = BatchNormalised(ctx, input, running_mean, running_var, weight, bias, training, eps)
    if training is True:
        normalised.move(ctx, running_mean, running_var, momentum)
    return _batch_norm_results(ctx, results, normalised, training)


@rule("_native_batch_norm_legit_functional", f"input weight bias {_STATISTICS}")
def functional_batch_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any,
    momentum: Any, eps: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Running statistics are two further results."""
    metas = several(meta, 5)
    normalised = BatchNormalised(ctx, input, running_mean, running_var, weight, bias, training, eps)
    results = _batch_norm_results(ctx, metas, normalised, training)
    if training is True:
        running = [
            normalised.moved(ctx, running_mean, normalised.mean, momentum),
            normalised.moved(ctx, running_var, normalised.unbiased, momentum),
        ]
    else:
        running = [ctx.read(running_mean), ctx.read(running_var)]
    return [*results, *_rows(ctx, metas[3:], running)]


def _batch_norm_results(
    ctx: Context, metas: Sequence[Any], normalised: BatchNormalised, training: Any
) -> list[Tensor | None]:
    value = optional(ctx, metas[0], normalised.value)
    if training is True:
        statistics = [normalised.space.result(v, False) for v in (normalised.mean, normalised.inverse)]
        return [value, *_rows(ctx, metas[1:3], statistics)]
    # Nothing reads these: on CPUs they have no elements, on GPUs eager leaves them as the memory was.
    return [value, *(optional(ctx, m, ops.const(0, m.dtype)) for m in metas[1:3])]
