"""Rules of operators that put a tensor into a larger one, or keep a part of one: scatters of slices, triangles."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, source, spread, within
from .context import Context
from .rules import ALL_DEVICES, bound, no_rule_if
from .symbolic import Tensor
from .views import part_of


def _placed(
    ctx: Context, meta: TensorMeta, before: Expr, src: Tensor, view: Callable[..., Any], *place: int | None
) -> Tensor:
    """`before` with `src` in place of the elements that `view(whole, *place)` shows."""
    no_rule_if(before.dtype is not meta.dtype)
    whole = ctx.fresh(meta, before)
    part = part_of(whole, view, *place)
    no_rule_if(part.meta.shape != src.meta.shape)
    return made(ctx, meta, ctx.with_part(part, source(ctx, src, 64))) if src.meta.numel else whole


@rule("slice_scatter")
def slice_scatter(
    ctx: Context, meta: TensorMeta, input: Tensor, src: Tensor, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Tensor:  # fmt: skip
    return _placed(ctx, meta, ctx.formula(input), src, torch.ops.aten.slice.Tensor, dim, start, end, step)


@rule("select_scatter")
def select_scatter(ctx: Context, meta: TensorMeta, input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    return _placed(ctx, meta, ctx.formula(input), src, torch.select, dim, index)


@rule("diagonal_scatter")
def diagonal_scatter(
    ctx: Context, meta: TensorMeta, input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    return _placed(ctx, meta, ctx.formula(input), src, torch.diagonal, offset, dim1, dim2)


@rule("diag_embed")
def diag_embed(ctx: Context, meta: TensorMeta, input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return _placed(ctx, meta, ops.const(0, input.dtype), input, torch.diagonal, offset, dim1, dim2)


# --- parts that are kept ---


def _triangle(
    keep: Callable[[Expr, int], Expr], ctx: Context, meta: TensorMeta, input: Tensor, diagonal: int = 0
) -> Expr:
    no_rule_if(meta.ndim < 2)
    away = Index(meta.ndim - 1) - Index(meta.ndim - 2)
    return ops.where(keep(away, diagonal), ctx.formula(input), 0)


bound("tril")(partial(_triangle, operator.le))
bound("triu")(partial(_triangle, operator.ge))


#: Types that eager has no identity matrix of.
_NOT_FOR_EYE = frozenset({torch.uint16, torch.uint32, torch.uint64})


@rule("eye")
def eye(
    ctx: Context, meta: TensorMeta, n: int, m: int | None = None, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    no_rule_if(meta.device.type not in ALL_DEVICES or requires_grad or meta.dtype in _NOT_FOR_EYE)
    return made(ctx, meta, ops.via(ops.eq(Index(0), Index(1)), meta.dtype))


@rule("one_hot", [functional.one_hot])
def one_hot(ctx: Context, meta: TensorMeta, input: Tensor, num_classes: int = -1) -> Tensor:
    no_rule_if(num_classes < 1 or input.dtype is not I64)
    shape, value = input.meta.shape, ctx.formula(input)
    ctx.raise_where(~within(value, num_classes), shape, meta.device)
    ndim = len(shape) + 1
    return made(ctx, meta, ops.via(ops.eq(spread(value, shape, range(ndim - 1), ndim), Index(ndim - 1)), meta.dtype))
