"""Rules of the formulas for the gradients of softmax, normalisation and losses.

A gradient with respect to the elements takes two passes over each row: one for sums over it, and one for the elements.
Gradients of weights are sums the other way, over all rows, and so kernels of their own.
"""

from __future__ import annotations

from typing import Any

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, optional, rule, several
from .context import Context
from .layout import Shape
from .losses import MEAN, NONE, Classes
from .normalisation import along, by_channel, computed_in, grouped, inverse_deviation, read_in_groups, space_of_last
from .promotion import is_float
from .rules import NoRule
from .space import Space
from .symbolic import Tensor

# --- normalisation ---


class _Standardised:
    """What was standardised in each row of `space`: from the elements, their mean and their scale."""

    def __init__(self, space: Space, grad: Expr, x: Expr, mean: Expr, scale: Expr) -> None:
        self.space = space
        self.grad = grad
        self.scale = scale
        self.value = ops.mul(ops.sub(x, mean), scale)

    def gradient(self, weight: Expr | None) -> Expr:
        """With respect to the elements: what would change mean or scale has no effect."""
        grad = self.grad if weight is None else ops.mul(self.grad, weight)
        along_value = ops.via(self.space.mean(ops.mul(grad, self.value)), grad.dtype)
        rest = ops.sub(grad, ops.mul(self.value, along_value))
        rest = ops.sub(rest, ops.via(self.space.mean(grad), grad.dtype))
        return ops.mul(rest, self.scale)

    def of_weight(self, space: Space) -> Expr:
        """Summed over the reduced axes of `space`, which has the same index."""
        return space.sum(ops.mul(self.grad, self.value))

    def of_bias(self, space: Space) -> Expr:
        return space.sum(self.grad)


def _others(space: Space) -> Space:
    """The space that reduces the axes which `space` keeps."""
    axes = tuple([k for k in range(len(space.shape)) if k not in space.axes])
    return Space(space.ctx, space.shape, axes, space.device)


def _wanted(mask: Any, count: int) -> list[bool]:
    if not isinstance(mask, (list, tuple)) or len(mask) != count or any(type(m) is not bool for m in mask):
        raise NoRule
    return list(mask)


def _like(ctx: Context, grad: Any, input: Tensor) -> torch.dtype:
    """The type to compute in, for a gradient of the input's shape."""
    compute = computed_in(input)
    if type(grad) is not Tensor or grad.meta.shape != input.meta.shape or not is_float(grad.dtype):
        raise NoRule
    return compute


def _by_row(ctx: Context, statistic: Any, shape: Shape, device: torch.device, dtype: torch.dtype) -> Expr:
    if type(statistic) is not Tensor:
        raise NoRule
    return ops.via(ctx.read_as(statistic, shape, device), dtype)


@rule("native_layer_norm_backward", "grad_out input normalized_shape mean rstd weight bias output_mask")
def layer_norm(
    ctx: Context, meta: Any, grad_out: Any, input: Any, normalized_shape: Any, mean: Any, rstd: Any, weight: Any,
    bias: Any, output_mask: Any,
) -> list[Tensor | None]:  # fmt: skip
    metas, wanted = several(meta, 3), _wanted(output_mask, 3)
    compute = _like(ctx, grad_out, input)
    space = space_of_last(ctx, input, normalized_shape)
    grad, value = (ops.via(ctx.read(t), compute) for t in (grad_out, input))
    centre, scale = (_by_row(ctx, t, space.shape, space.device, compute) for t in (mean, rstd))
    x, rows = _Standardised(space, grad, value, centre, scale), _others(space)
    gain = along(ctx, weight, space.axes, space.shape, compute)
    return [
        optional(ctx, metas[0], x.gradient(gain) if wanted[0] else None),
        optional(ctx, metas[1], rows.result(x.of_weight(rows), False) if wanted[1] and weight is not None else None),
        optional(ctx, metas[2], rows.result(x.of_bias(rows), False) if wanted[2] else None),
    ]


@rule("native_group_norm_backward", "grad_out input mean rstd weight N C HxW group output_mask")
def group_norm(
    ctx: Context, meta: Any, grad_out: Any, input: Any, mean: Any, rstd: Any, weight: Any, N: Any, C: Any, HxW: Any,
    group: Any, output_mask: Any,
) -> list[Tensor | None]:  # fmt: skip
    metas, wanted = several(meta, 3), _wanted(output_mask, 3)
    compute = _like(ctx, grad_out, input)
    space, value = read_in_groups(ctx, input, group)
    _, grad = read_in_groups(ctx, grad_out, group)
    shape = space.shape
    centre, scale = (along(ctx, t, (0, 1), shape, compute) for t in (mean, rstd))
    if centre is None or scale is None:
        raise NoRule
    x = _Standardised(space, ops.via(grad, compute), ops.via(value, compute), centre, scale)
    channels = Space(ctx, shape, (0, *range(3, len(shape))), space.device)
    results: list[Tensor | None] = [None, None, None]
    if wanted[0] and metas[0] is not None:
        results[0] = grouped(metas[0], group, x.gradient(by_channel(ctx, weight, shape, compute)))
    for k, of_channel in ((1, x.of_weight), (2, x.of_bias)):
        if wanted[k] and metas[k] is not None and (k == 2 or weight is not None):
            by_group = channels.result(of_channel(channels), False)
            parts = ctx.fresh(_two_axes(metas[k], group), ops.via(by_group, metas[k].dtype))
            results[k] = Tensor(parts.storage, metas[k], is_base=False)
    return results


def _two_axes(meta: TensorMeta, groups: int) -> TensorMeta:
    """(C,) as (groups, members)."""
    members = meta.shape[0] // groups
    return TensorMeta(meta.dtype, (groups, members), (members, 1), meta.device)


@rule("native_batch_norm_backward",
      "grad_out input weight running_mean running_var save_mean save_invstd train eps output_mask")  # fmt: skip
def batch_norm(
    ctx: Context, meta: Any, grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any,
    save_mean: Any, save_invstd: Any, train: Any, eps: Any, output_mask: Any,
) -> list[Tensor | None]:  # fmt: skip
    metas, wanted = several(meta, 3), _wanted(output_mask, 3)
    compute = _like(ctx, grad_out, input)
    shape = input.meta.shape
    space = Space(ctx, shape, tuple(k for k in range(len(shape)) if k != 1), input.meta.device)
    statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
    mean, scale = (along(ctx, t, (1,), shape, compute) for t in statistics)
    if mean is None or scale is None:
        raise NoRule
    scale = scale if train else inverse_deviation(scale, eps)
    x = _Standardised(space, ops.via(ctx.read(grad_out), compute), ops.via(ctx.read(input), compute), mean, scale)
    gain = along(ctx, weight, (1,), shape, compute)
    of_input = _batch_norm_gradient(x, gain, train) if wanted[0] else None
    return [
        optional(ctx, metas[0], of_input),
        optional(ctx, metas[1], space.result(x.of_weight(space), False) if wanted[1] else None),
        optional(ctx, metas[2], space.result(x.of_bias(space), False) if wanted[2] else None),
    ]


def _batch_norm_gradient(x: _Standardised, weight: Expr | None, train: bool) -> Expr:
    """Here the weight is one number for each row, and so a factor of the whole."""
    value = x.gradient(None) if train else ops.mul(x.grad, x.scale)
    return value if weight is None else ops.mul(value, weight)


# --- losses ---


@rule("nll_loss_backward nll_loss2d_backward", "grad_output input target weight reduction ignore_index total_weight")
def nll_loss(
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
