"""Values at computed indices: the index arithmetic that gathers, pads and pools have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from quickfuse.ir.choices import linear
from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Const, Expr
from quickfuse.ir.reindex import IndexMap, affine, reindex, select
from quickfuse.ir.values import TensorMeta, broadcast_shape, is_dense

from . import ops
from .context import Context
from .layout import Shape, costs_at_least, read_order
from .rules import ALL_DEVICES, no_rule_if
from .symbolic import Tensor

I64, BOOL = torch.int64, torch.bool

#: The types that indices may have.
_INDEX_TYPES = frozenset({torch.int64, torch.int32})


def axis_of(dim: Any, ndim: int) -> int:
    """The axis that a `dim` argument means, of one or more."""
    no_rule_if(type(dim) is not int or not ndim or not -ndim <= dim < ndim)
    return dim % ndim


def source(ctx: Context, tensor: Tensor, limit: int = COSTS.store_before_picking) -> Expr:
    """The value of a tensor that is read at other indices: from memory where it is expensive to compute."""
    value = ctx.read(tensor)
    if not costs_at_least(value, limit):
        return value
    meta = tensor.meta
    if tensor.whole and is_dense(meta.shape, meta.stride):
        return ctx.materialize(tensor.storage)
    dense = TensorMeta.dense(value.dtype, meta.shape, meta.device)
    return ctx.stored(value, read_order(value, dense))


def at(value: Expr, axes: Sequence[int | Expr], ndim: int, inside: Expr | None) -> Expr:
    """A value as a function of a new index of `ndim` axes: `axes[k]` is what its own index k is.

    That is a number: the new index of that axis, or a value over the new index. Where `inside` does not hold, the result
    means nothing, and no memory is read. Even steps along an axis are loads as others are, not at computed offsets.
    """
    constants, rows = [0] * len(axes), [[0] * ndim for _ in axes]
    computed: dict[int, Expr] = {}
    for k, axis in enumerate(axes):
        known = (axis, 1, 0) if isinstance(axis, int) else linear(axis)
        if known is not None:
            j, rows[k][j], constants[k] = known
        elif isinstance(axis, Const):
            constants[k] = int(axis.value)
        else:
            computed[k] = axis  # type: ignore[assignment]
    return select(value, IndexMap(tuple(constants), tuple(map(tuple, rows)), ndim), computed, inside)


def stepping(axis: int, step: int, first: int) -> Expr:
    """`step * index + first`, of the index on an axis."""
    return affine(first, (0,) * axis + (step,))


def spread(value: Expr, shape: Shape, axes: Sequence[int], ndim: int) -> Expr:
    """A value over `shape`, whose axis k becomes `axes[k]` of `ndim`. Axes of size one need not."""
    return reindex(value, IndexMap.along([k if size != 1 else None for k, size in zip(axes, shape, strict=True)], ndim))


def shape_together(indices: Sequence[Any]) -> tuple[int, ...]:
    """The shape that index tensors are broadcast to. How long a mask's is only its values tell."""
    no_rule_if(any(type(index) is not Tensor or index.dtype not in _INDEX_TYPES for index in indices))
    together = broadcast_shape(*[index.meta.shape for index in indices])
    no_rule_if(together is None)
    return together


def within(place: Expr, size: int) -> Expr:
    """Whether an index is one of an axis of `size` elements."""
    return (place >= 0) & (place < size)


class Checked:
    """An index tensor into an axis of `size` elements, and where it is in range, both over its own index.

    Eager raises an exception for an index out of range, so the graph runs in eager mode then; on a GPU its kernels fail,
    which don't run where there are no elements `over` which to run.
    """

    def __init__(self, ctx: Context, index: Tensor, size: int, over: Shape, *, negative: bool) -> None:
        no_rule_if(type(index) is not Tensor or index.dtype not in _INDEX_TYPES or index.meta.device.type not in ALL_DEVICES)
        on_gpu = index.meta.device.type == "cuda"
        no_rule_if(on_gpu and not size and 0 not in over)
        self.shape = index.meta.shape
        value = ops.via(ctx.read(index), I64)
        key = (id(value), size, negative, 0 in over)
        known = ctx.checked.get(key)
        if known is None:
            place = ops.where(value < 0, value + size, value) if negative else value
            inside = within(place, size)
            if not on_gpu or 0 not in over:
                ctx.raise_where(~inside, self.shape, index.meta.device)
            known = ctx.checked[key] = (value, place, inside)
        _, self.value, self.inside = known

    def spread(self, axes: Sequence[int], ndim: int) -> tuple[Expr, Expr]:
        return spread(self.value, self.shape, axes, ndim), spread(self.inside, self.shape, axes, ndim)
