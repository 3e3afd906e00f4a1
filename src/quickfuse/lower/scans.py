"""Rules of cumulative operators: along an axis, each result is what the elements up to there are combined to."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from quickfuse.ir.expr import Expr, Index, Load
from quickfuse.ir.loop import Access, Loop, Store, StoreKind
from quickfuse.ir.target import CUDA
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule, several
from .computed_indices import axis_of
from .context import Context
from .promotion import COMPUTE, is_float
from .rules import no_rule_if
from .symbolic import Tensor

I64 = torch.int64


def scan(ctx: Context, value: Expr, combine: str, meta: TensorMeta, axis: int) -> Expr:
    """What the elements of each row up to the current one are combined to. It is stored at once, at each element."""
    if meta.shape[axis] == 1:
        return value
    temp = ctx.temp(TensorMeta.dense(value.dtype, meta.shape, meta.device))
    access = Access(temp, 0, temp.meta.stride)
    ctx.program.steps.append(Loop(meta.shape, [Store(access, value, StoreKind.SCAN, combine, axis)], meta.device))
    return Load(access, value.dtype)


class _Row:
    """A tensor that is gone through along an axis."""

    def __init__(self, ctx: Context, input: Tensor, dim: int, meta: TensorMeta) -> None:
        no_rule_if(input.meta.shape != meta.shape or not meta.numel)
        self.axis = axis_of(dim, meta.ndim)
        length = meta.shape[self.axis]
        is_long = length >= CUDA.long_scan and meta.numel < CUDA.busy_scans * length
        no_rule_if(is_long and meta.device.type != "cpu")  # PyTorch shares a row among many programs
        self.meta = meta
        self.value = ctx.read(input)

    def result(self, ctx: Context, meta: TensorMeta, value: Expr) -> Tensor:
        """Stored in the kernel of the scan: there the type that it is computed in needs no memory."""
        value = ops.via(value, meta.dtype)
        dense = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        return made(ctx, meta, ctx.stored(value, dense, copy=True))


#: What sums and products of a type are formed in on the CPU: as eager does.
_WIDE = {torch.float32: torch.float64}


def _cumulated(combine: str, ctx: Context, meta: TensorMeta, input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    row = _Row(ctx, input, dim, meta)
    no_rule_if(meta.dtype not in COMPUTE)
    wide = _WIDE if meta.device.type == "cpu" else {}
    value = ops.via(row.value, meta.dtype, wide.get(meta.dtype, COMPUTE[meta.dtype]))
    return row.result(ctx, meta, scan(ctx, value, combine, meta, row.axis))


def _extremes(combine: str, ctx: Context, meta: Any, input: Tensor, dim: int) -> Any:
    metas = several(meta, 2)
    row = _Row(ctx, input, dim, metas[0])
    value = ops.via(row.value, COMPUTE[input.dtype])
    no_rule_if(value.dtype is torch.bool)
    best = scan(ctx, value, combine, metas[0], row.axis)
    taken = value >= best if combine == "maximum" else value <= best
    taken = taken | ops.isnan(value) if is_float(value.dtype) else taken
    places = scan(ctx, ops.where(taken, Index(row.axis), 0), "maximum", metas[1], row.axis)
    return [row.result(ctx, metas[0], best), row.result(ctx, metas[1], places)]


rule("cumsum")(partial(_cumulated, "add"))
rule("cumprod")(partial(_cumulated, "mul"))
rule("cummax")(partial(_extremes, "maximum"))
rule("cummin")(partial(_extremes, "minimum"))
