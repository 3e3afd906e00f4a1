"""Rules of normalisation: statistics of each row, and the elements scaled by them, in one kernel.

Statistics are rounded to the type that eager computes in (float32 for 16-bit types) and used as numbers of that type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.expr import Expr, Scalar
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .context import Context
from .layout import Shape
from .promotion import COMPUTE, is_float
from .reductions import norm_of
from .rules import NoRule
from .space import Space
from .symbolic import Storage, Tensor

F64 = torch.float64


def _computed_in(input: Any) -> torch.dtype:
    """The type of the arithmetic on a float tensor with elements."""
    if type(input) is not Tensor or not is_float(input.dtype) or not input.meta.numel:
        raise NoRule
    return COMPUTE[input.dtype]


def _number(value: Any, dtype: torch.dtype) -> Expr:
    if type(value) is Scalar:
        return ops.via(value, dtype)
    if type(value) not in (int, float):
        raise NoRule
    return ops.const(value, dtype)


def _along(ctx: Context, operand: Any, axes: Shape, shape: Shape, dtype: torch.dtype) -> Expr | None:
    """A weight over some axes of `shape`, as a value over all of it; None for no weight."""
    if operand is None:
        return None
    if type(operand) is not Tensor or operand.meta.shape != tuple(shape[k] for k in axes):
        raise NoRule
    rows = tuple([tuple([int(j == axis) for j in range(len(shape))]) for axis in axes])
    return ops.via(reindex(ctx.read(operand), IndexMap((0,) * len(axes), rows, len(shape))), dtype)


def _affine(value: Expr, weight: Expr | None, bias: Expr | None) -> Expr:
    value = value if weight is None else ops.mul(value, weight)
    return value if bias is None else ops.add(value, bias)


def _standardised(space: Space, value: Expr, eps: Any) -> Expr:
    """Mean 0 and variance 1 in each row."""
    centred = ops.sub(value, ops.via(space.mean(value), value.dtype))
    variance = space.mean(ops.mul(centred, centred))
    scale = ops.rsqrt(ops.add(variance, _number(eps, F64)))
    return ops.mul(centred, ops.via(scale, value.dtype))


@rule("layer_norm", "input normalized_shape weight=None bias=None eps=1e-5 cudnn_enable=True", [functional.layer_norm])
def layer_norm(
    ctx: Context, meta: Any, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, cudnn_enable: Any
) -> Tensor:
    compute = _computed_in(input)
    shape = input.meta.shape
    axes = tuple(range(len(shape) - len(normalized_shape), len(shape)))
    space = Space(ctx, shape, axes, input.meta.device)
    value = _standardised(space, ops.via(ctx.read(input), compute), eps)
    scaled = _affine(value, _along(ctx, weight, axes, shape, compute), _along(ctx, bias, axes, shape, compute))
    return made(ctx, meta, ops.via(scaled, meta.dtype))


@rule("rms_norm", "input normalized_shape weight=None eps=None", [functional.rms_norm])
def rms_norm(ctx: Context, meta: Any, input: Any, normalized_shape: Any, weight: Any, eps: Any) -> Tensor:
    compute = _computed_in(input)
    shape = input.meta.shape
    axes = tuple(range(len(shape) - len(normalized_shape), len(shape)))
    space = Space(ctx, shape, axes, input.meta.device)
    value = ops.via(ctx.read(input), compute)
    square = ops.via(space.mean(ops.mul(value, value)), compute)
    eps = torch.finfo(compute).eps if eps is None else eps
    scaled = ops.mul(value, ops.rsqrt(ops.add(square, _number(eps, compute))))
    return made(ctx, meta, ops.via(_affine(scaled, _along(ctx, weight, axes, shape, compute), None), meta.dtype))


@rule("group_norm", "input num_groups weight=None bias=None eps=1e-5 cudnn_enabled=True", [functional.group_norm])
def group_norm(
    ctx: Context, meta: Any, input: Any, num_groups: Any, weight: Any, bias: Any, eps: Any, cudnn_enabled: Any
) -> Tensor:
    compute = _computed_in(input)
    if type(num_groups) is not int or type(meta) is not TensorMeta:
        raise NoRule
    grouped = _in_groups(input.meta, num_groups)
    view = Tensor(input.storage, grouped, offset=input.offset, is_base=False)
    space = Space(ctx, grouped.shape, tuple(range(2, len(grouped.shape))), input.meta.device)
    value = _standardised(space, ops.via(ctx.read(view), compute), eps)
    weights = [_by_channel(ctx, w, grouped.shape, compute) for w in (weight, bias)]
    result = _in_groups(meta, num_groups)
    storage = Storage(result, ops.via(_affine(value, *weights), meta.dtype))
    return Tensor(storage, meta, is_base=False)


def _in_groups(meta: TensorMeta, groups: int) -> TensorMeta:
    """(N, C, ...) as (N, groups, C / groups, ...)."""
    batch, channels, *rest = meta.shape
    members = channels // groups
    outer, step, *steps = meta.stride
    shape, stride = (batch, groups, members, *rest), (outer, members * step, step, *steps)
    return TensorMeta(meta.dtype, shape, stride, meta.device)


def _by_channel(ctx: Context, operand: Any, shape: Shape, dtype: torch.dtype) -> Expr | None:
    """A weight for each channel, over (N, groups, members, ...)."""
    if operand is None:
        return None
    if type(operand) is not Tensor or operand.meta.shape != (shape[1] * shape[2],):
        raise NoRule
    row = (0, shape[2], 1, *([0] * (len(shape) - 3)))
    return ops.via(reindex(ctx.read(operand), IndexMap((0,), (row,), len(shape))), dtype)


@rule("", "input running_mean=None running_var=None weight=None bias=None use_input_stats=True momentum=0.1 eps=1e-5",
      [functional.instance_norm])  # fmt: skip
def instance_norm(
    ctx: Context, meta: Any, input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any,
    use_input_stats: Any, momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    compute = _computed_in(input)
    if running_mean is not None or running_var is not None or use_input_stats is not True:
        raise NoRule
    shape = input.meta.shape
    space = Space(ctx, shape, tuple(range(2, len(shape))), input.meta.device)
    value = _standardised(space, ops.via(ctx.read(input), compute), eps)
    scaled = _affine(value, _along(ctx, weight, (1,), shape, compute), _along(ctx, bias, (1,), shape, compute))
    return made(ctx, meta, ops.via(scaled, meta.dtype))


@rule("", "input running_mean running_var weight=None bias=None training=False momentum=0.1 eps=1e-5",
      [functional.batch_norm])  # fmt: skip
def batch_norm(
    ctx: Context, meta: Any, input: Any, running_mean: Any, running_var: Any, weight: Any, bias: Any,
    training: Any, momentum: Any, eps: Any,
) -> Tensor:  # fmt: skip
    """As eager: every channel has one factor and one summand."""
    compute = _computed_in(input)
    shape = input.meta.shape
    value = ops.via(ctx.read(input), compute)
    if training is True:
        space = Space(ctx, shape, tuple(k for k in range(len(shape)) if k != 1), input.meta.device)
        mean = space.mean(value)
        centred = ops.sub(value, ops.via(mean, compute))
        variance = space.mean(ops.mul(centred, centred))
        scale = ops.via(ops.rsqrt(ops.add(variance, _number(eps, F64))), compute)
        _update(ctx, running_mean, space, mean, momentum)
        count = space.number_of_elements(F64)
        others = ops.maximum(ops.sub(count, ops.const(1, F64)), ops.const(1, F64))
        unbiased = ops.mul(variance, ops.div(count, others))
        _update(ctx, running_var, space, unbiased, momentum)
        mean = ops.via(mean, compute)
    else:
        centre, spread = (_along(ctx, t, (1,), shape, compute) for t in (running_mean, running_var))
        if centre is None or spread is None:
            raise NoRule
        mean = centre
        scale = ops.div(ops.const(1, compute), ops.sqrt(ops.add(spread, _number(eps, compute))))
    gain, shift = (_along(ctx, t, (1,), shape, compute) for t in (weight, bias))
    factor = scale if gain is None else ops.mul(scale, gain)
    offset = ops.mul(mean, factor)
    summand = ops.neg(offset) if shift is None else ops.sub(shift, offset)
    return made(ctx, meta, ops.via(ops.plus_product(summand, value, factor), meta.dtype))


def _update(ctx: Context, running: Any, space: Space, value: Expr, momentum: Any) -> None:
    """Move a running statistic towards a new one, in place."""
    if running is None:
        return
    if type(running) is not Tensor or not is_float(running.dtype):
        raise NoRule
    compute = COMPUTE[running.dtype]
    rate = _number(momentum, compute)
    new = ops.mul(rate, ops.via(space.result(value, False), compute))
    old = ops.mul(ops.sub(ops.const(1, compute), rate), ops.via(ctx.read(running), compute))
    ctx.assign(running, ops.via(ops.add(new, old), running.dtype))


@rule("", "input p=2.0 dim=1 eps=1e-12 out=None", [functional.normalize])
def normalize(ctx: Context, meta: Any, input: Any, p: Any, dim: Any, eps: Any, out: Any) -> Tensor:
    compute = _computed_in(input)
    if out is not None or type(p) not in (int, float) or type(dim) is not int:
        raise NoRule
    shape = input.meta.shape
    space = Space(ctx, shape, (dim % max(len(shape), 1),) if shape else (), input.meta.device)
    value = ops.via(ctx.read(input), compute)
    size = ops.via(norm_of(space, value, float(p)), input.dtype, compute)
    least = ops.via(_number(eps, compute), input.dtype, compute)
    return made(ctx, meta, ops.via(ops.div(value, ops.maximum(size, least)), meta.dtype))
