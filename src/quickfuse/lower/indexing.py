"""Rules of operators that select elements by tensors of indices: gathers, embeddings, `x[index]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Op
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta

from . import ops, views
from .calls import made, rule
from .computed_indices import I64, Checked, at, axis_of, shape_together, source
from .context import Context
from .layout import Shape, costs_at_least
from .promotion import COMPUTE, SUPPORTED
from .rules import ALL_DEVICES, NoRule, no_rule_if
from .symbolic import Tensor


def flattened(ctx: Context, tensor: Tensor) -> Tensor:
    """All elements in row-major order."""
    meta = TensorMeta(tensor.dtype, (tensor.meta.numel,), (1,), tensor.meta.device)
    flat: Tensor = views.view(ctx, torch.Tensor.reshape, (tensor, (-1,)), {}, meta)
    return flat


# --- one axis by one tensor ---


@rule("gather")
def gather(ctx: Context, meta: TensorMeta, input: Tensor, dim: int, index: Tensor, sparse_grad: bool = False) -> Tensor:
    return _gathered(ctx, meta, input, dim, index, negative=False)


@rule("take_along_dim")
def take_along_dim(ctx: Context, meta: TensorMeta, input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        return _gathered(ctx, meta, flattened(ctx, input), 0, flattened(ctx, indices), negative=True)
    return _gathered(ctx, meta, input, dim, indices, negative=True)


def _gathered(ctx: Context, meta: TensorMeta, input: Tensor, dim: int, index: Tensor, *, negative: bool) -> Tensor:
    old, ndim = input.meta.shape, len(meta.shape)
    dim = axis_of(dim, len(old))
    no_rule_if(len(old) != ndim or len(index.meta.shape) != ndim)
    place, inside = Checked(ctx, index, old[dim], meta.shape, negative=negative).spread(range(ndim), ndim)
    axes: list[int | Expr] = [k if old[k] != 1 or meta.shape[k] == 1 else ops.const(0, I64) for k in range(ndim)]
    axes[dim] = place
    if 2 * index.meta.numel <= input.meta.numel:  # few elements are computed, rather than asked for in memory
        value = ctx.formula_behind(ctx.read(input), old)
        if isinstance(value, Op) and not costs_at_least(value, COSTS.compute_once_more):
            axes[dim] = ops.where(inside, place, 0)
            return made(ctx, meta, at(value, axes, ndim, None))
    return made(ctx, meta, at(source(ctx, input), axes, ndim, inside))


@rule("take")
def take(ctx: Context, meta: TensorMeta, input: Tensor, index: Tensor) -> Tensor:
    return _indexed(ctx, meta, flattened(ctx, input), [index])


@rule("index_select")
def index_select(ctx: Context, meta: TensorMeta, input: Tensor, dim: int, index: Tensor) -> Tensor:
    before = [None] * axis_of(dim, input.meta.ndim)
    return _indexed(ctx, meta, input, [*before, vector(ctx, index)], negative=False)


def vector(ctx: Context, index: Tensor) -> Tensor:
    """An index tensor of no more than one axis as one with that axis."""
    no_rule_if(index.meta.ndim > 1)
    return index if index.meta.shape else flattened(ctx, index)


@rule("embedding")
def embedding(
    ctx: Context, meta: TensorMeta, weight: Tensor, indices: Tensor, padding_idx: Any = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    no_rule_if(weight.meta.ndim != 2)
    return _indexed(ctx, meta, weight, [indices], negative=False)


# --- several axes by several tensors ---


@rule("index")
def index(ctx: Context, meta: TensorMeta, input: Tensor, indices: Any) -> Tensor:
    """ATen's form of `input[indices]`: a tensor or None for each of the first axes."""
    return _indexed(ctx, meta, input, list(indices))


def getitem(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    """`x[index]`: an element of a tuple, a view of a tensor, or its elements at indices that tensors hold."""
    try:
        return views.getitem(ctx, args, kwargs, meta)
    except NoRule:
        tensor, tensors = basic_part(ctx, *args)
        if type(meta) is not TensorMeta:
            raise
        return _indexed(ctx, meta, tensor, tensors)


def basic_part(ctx: Context, tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The view that the integers and slices of an index make, and the tensors that index its axes, as ATen has them.

    Raises:
        NoRule: for masks, lists, and tensors without dimensions, which select like integers.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    tensors: list[Tensor | None] = []
    no_rule_if(tensor.meta.dtype not in SUPPORTED or tensor.meta.device.type not in ALL_DEVICES)
    for k, part in enumerate(parts):
        if type(part) is Tensor:
            no_rule_if(not part.meta.shape or part.is_number)
            tensors.append(part)
            parts[k] = slice(None)
        elif type(part) is type(Ellipsis):
            used = sum(p is not None and type(p) is not type(Ellipsis) for p in parts)
            tensors += [None] * (len(tensor.meta.shape) - used)
        elif part is None or type(part) is slice:
            tensors.append(None)
        elif type(part) is not int:
            raise NoRule
    return views.element_view(tensor, tuple(parts)), tensors


def _indexed(
    ctx: Context, meta: TensorMeta, input: Tensor, tensors: list[Tensor | None], *, negative: bool = True
) -> Tensor:
    """The elements at the indices that `tensors` hold: one, or None, for each axis."""
    selection = Selection(input.meta.shape, tensors)
    axes, inside = selection.axes(ctx, negative=negative)
    no_rule_if(len(selection.result) != len(meta.shape))
    return made(ctx, meta, at(source(ctx, input), axes, len(meta.shape), inside))


class Selection:
    """The elements at the indices that `tensors` hold, one or None for each axis of `shape`, or of the first ones.

    `result`: their shape. The axes of the index tensors, broadcast to the shape `together`, begin with `first`: where the
    indexed axes are if these are neighbours, or else they are the first ones.
    """

    def __init__(self, shape: Shape, tensors: Sequence[Tensor | None]) -> None:
        self.shape = shape
        self.tensors = [*tensors, *[None] * (len(shape) - len(tensors))]
        used = [k for k, tensor in enumerate(self.tensors) if tensor is not None]
        no_rule_if(not used or len(self.tensors) != len(shape))
        self.together = shape_together([tensor for tensor in self.tensors if tensor is not None])
        self.first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
        others = [size for k, size in enumerate(shape) if k not in used]
        self.result = (*others[: self.first], *self.together, *others[self.first :])

    def axes(self, ctx: Context, *, negative: bool = True) -> tuple[list[int | Expr], Expr | None]:
        """For each axis of `shape` the axis of the result that it is there, or the index on it, as a value over the result;
        and where all indices are in range."""
        ndim, past = len(self.result), self.first + len(self.together)
        others = iter([*range(self.first), *range(past, ndim)])
        axes: list[int | Expr] = []
        inside: Expr | None = None
        for size, tensor in zip(self.shape, self.tensors, strict=True):
            if tensor is None:
                axes.append(next(others))
                continue
            checked = Checked(ctx, tensor, size, self.result, negative=negative)
            value, within = checked.spread(range(past - tensor.meta.ndim, past), ndim)
            axes.append(value)
            inside = both(inside, within)
        return axes, inside


# --- searches in sorted tensors ---

@rule("bucketize")
def bucketize(
    ctx: Context, meta: TensorMeta, input: Tensor, boundaries: Tensor, out_int32: bool = False, right: bool = False
) -> Tensor:
    no_rule_if(boundaries.meta.ndim != 1)
    return _searched(ctx, meta, boundaries, input, right)


@rule("searchsorted")
def searchsorted(
    ctx: Context, meta: TensorMeta, sorted_sequence: Tensor, input: Tensor, out_int32: bool = False, right: bool = False,
    side: Any = None, sorter: None = None,
) -> Tensor:  # fmt: skip
    return _searched(ctx, meta, sorted_sequence, input, right or side == "right")


def _searched(ctx: Context, meta: TensorMeta, rows: Tensor, input: Tensor, right: bool) -> Tensor:
    """How many elements of a row are less than each value, or not greater (`right`)."""
    shape, ndim, length = rows.meta.shape, len(meta.shape), rows.meta.shape[-1] if rows.meta.shape else 0
    no_rule_if(not 0 < length <= COSTS.longest_searched or input.meta.shape != meta.shape or not meta.numel)
    compute = COMPUTE[input.dtype]
    no_rule_if((len(shape) > 1 and shape[:-1] != meta.shape[:-1]) or rows.dtype is not input.dtype or compute is torch.bool)
    value, row = ops.via(ctx.read(input), compute), source(ctx, rows)
    outer = [k if size != 1 else ops.const(0, I64) for k, size in enumerate(shape[:-1])]
    found: Expr = ops.const(0, I64)
    step = 1 << (length.bit_length() - 1)
    while step:
        reached = found + step
        here = reached - 1
        inside = reached <= length
        element = ops.via(at(row, [*outer, here], ndim, inside), compute)
        beyond = element > value if right else element >= value
        found = ops.where(inside & ~beyond, reached, found)
        step >>= 1
    return made(ctx, meta, ops.via(found, meta.dtype))
