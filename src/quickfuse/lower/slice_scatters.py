"""Rules of operators that put a tensor into a larger one, or keep a part of one: scatters of slices, triangles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, source, spread
from .context import Context
from .rules import ALL_DEVICES, NoRule, evaluator
from .symbolic import Tensor
from .views import part_of

#: Operator -> its parameters, and the view of the result that `src` is stored to.
_SCATTERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "slice_scatter": ("input src dim=0 start=None end=None step=1", torch.ops.aten.slice.Tensor),
    "select_scatter": ("input src dim index", torch.select),
    "diagonal_scatter": ("input src offset=0 dim1=0 dim2=1", torch.diagonal),
}


def _placed(ctx: Context, meta: Any, before: Expr, src: Tensor, view: Callable[..., Any], **place: Any) -> Tensor:
    """`before` with `src` in place of the elements that `view(whole, **place)` shows."""
    if type(meta) is not TensorMeta or before.dtype is not meta.dtype:
        raise NoRule
    whole = ctx.fresh(meta, before)
    part = part_of(whole, view, place)
    if part.meta.shape != src.meta.shape:
        raise NoRule
    return made(ctx, meta, ctx.with_part(part, source(ctx, src, 64))) if src.meta.numel else whole


def _register(name: str, signature: str, view: Callable[..., Any]) -> None:
    @rule(name, signature)
    def scatter(ctx: Context, meta: Any, input: Any, src: Any, **place: Any) -> Tensor:
        return _placed(ctx, meta, ctx.formula(input), src, view, **place)


for _name, (_signature, _view) in _SCATTERS.items():
    _register(_name, _signature, _view)


@rule("diag_embed", "input offset=0 dim1=-2 dim2=-1")
def diag_embed(ctx: Context, meta: Any, input: Any, **place: Any) -> Tensor:
    return _placed(ctx, meta, ops.const(0, input.dtype), input, torch.diagonal, **place)


# --- parts that are kept ---


def _triangle(name: str, keep: Any) -> None:
    @evaluator(name)
    def triangle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        tensor = args[0] if args else kwargs.get("input")
        if type(tensor) is not Tensor or type(diagonal) is not int or len(meta.shape) < 2 or len(args) > 2:
            raise NoRule
        ndim = len(meta.shape)
        away = ops.sub(Index(ndim - 1), Index(ndim - 2))
        value = ctx.formula(tensor)
        return ops.where(keep(away, ops.const(diagonal, I64)), value, ops.const(0, meta.dtype))


_triangle("tril", ops.le)
_triangle("triu", ops.ge)


@rule("eye", "n m=None dtype=None layout=None device=None pin_memory=None requires_grad=False")
def eye(ctx: Context, meta: Any, **options: Any) -> Tensor:
    if type(meta) is not TensorMeta or meta.device.type not in ALL_DEVICES or options["requires_grad"]:
        raise NoRule
    return made(ctx, meta, ops.via(ops.eq(Index(0), Index(1)), meta.dtype))


@rule("one_hot", "input num_classes=-1", [functional.one_hot])
def one_hot(ctx: Context, meta: Any, input: Any, num_classes: Any) -> Tensor:
    if type(meta) is not TensorMeta or type(num_classes) is not int or num_classes < 1 or input.dtype is not I64:
        raise NoRule
    shape, value = input.meta.shape, ctx.formula(input)
    inside = ops.bit_and(ops.ge(value, ops.const(0, I64)), ops.lt(value, ops.const(num_classes, I64)))
    ctx.raise_where(ops.bit_not(inside), shape, meta.device)
    ndim = len(shape) + 1
    return made(ctx, meta, ops.via(ops.eq(spread(value, shape, range(ndim - 1), ndim), Index(ndim - 1)), meta.dtype))
