"""Rules of searches in sorted tensors: by halves, without a branch, all elements at once."""

from __future__ import annotations

from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .context import Context
from .layout import Shape
from .picking import I64, at, source
from .promotion import COMPUTE
from .rules import NoRule
from .symbolic import Tensor


@rule("bucketize", "input boundaries out_int32=False right=False")
def bucketize(ctx: Context, meta: Any, input: Any, boundaries: Any, out_int32: Any, right: Any) -> Tensor:
    if type(boundaries) is not Tensor or len(boundaries.meta.shape) != 1 or type(right) is not bool:
        raise NoRule
    return _searched(ctx, meta, boundaries, input, right)


@rule("searchsorted", "sorted_sequence input out_int32=False right=False side=None sorter=None")
def searchsorted(
    ctx: Context, meta: Any, sorted_sequence: Any, input: Any, out_int32: Any, right: Any, side: Any, sorter: Any
) -> Tensor:
    if sorter is not None or type(sorted_sequence) is not Tensor or type(right) is not bool:
        raise NoRule
    return _searched(ctx, meta, sorted_sequence, input, right or side == "right")


def _searched(ctx: Context, meta: Any, rows: Tensor, input: Any, right: bool) -> Tensor:
    """How many elements of a row are less than each value, or not greater (`right`)."""
    if type(input) is not Tensor or type(meta) is not TensorMeta or rows.dtype is not input.dtype:
        raise NoRule
    shape, ndim, length = rows.meta.shape, len(meta.shape), rows.meta.shape[-1] if rows.meta.shape else 0
    if not 0 < length <= COSTS.longest_searched or input.meta.shape != meta.shape or not meta.numel:
        raise NoRule
    if len(shape) > 1 and shape[:-1] != meta.shape[:-1]:
        raise NoRule
    compute = COMPUTE[input.dtype]
    if compute is torch.bool:
        raise NoRule
    value, row = ops.via(ctx.read(input), compute), source(ctx, rows)
    found: Expr = ops.const(0, I64)
    step = 1 << (length.bit_length() - 1)
    while step:
        reached = ops.add(found, ops.const(step, I64))
        here = ops.sub(reached, ops.const(1, I64))
        inside = ops.le(reached, ops.const(length, I64))
        element = ops.via(at(row, [*_outer(shape), here], ndim, inside), compute)
        beyond = ops.gt(element, value) if right else ops.ge(element, value)
        found = ops.where(ops.bit_and(inside, ops.bit_not(beyond)), reached, found)
        step >>= 1
    return made(ctx, meta, ops.via(found, meta.dtype))


def _outer(shape: Shape) -> list[int | Expr]:
    return [k if size != 1 else ops.const(0, I64) for k, size in enumerate(shape[:-1])]
