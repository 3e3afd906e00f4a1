"""Rules of operators that select elements by tensors of indices: gathers, embeddings, `x[index]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta

from . import ops, views
from .calls import made, rule
from .computed_indices import I64, Checked, at, axis_of, shape_together, source, spread
from .context import Context
from .layout import Shape
from .promotion import COMPUTE, SUPPORTED
from .rules import ALL_DEVICES, NoRule
from .symbolic import Tensor


def flattened(ctx: Context, tensor: Tensor) -> Tensor:
    """All elements in row-major order."""
    meta = TensorMeta(tensor.dtype, (tensor.meta.numel,), (1,), tensor.meta.device)
    flat: Tensor = views.view(ctx, torch.Tensor.reshape, (tensor, (-1,)), {}, meta)
    return flat


# --- one axis by one tensor ---


@rule("gather", "input dim index sparse_grad=False")
def gather(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, sparse_grad: Any) -> Tensor:
    return _gathered(ctx, meta, input, dim, index, negative=False)


@rule("take_along_dim", "input indices dim=None")
def take_along_dim(ctx: Context, meta: Any, input: Any, indices: Any, dim: Any) -> Tensor:
    if dim is None:
        return _gathered(ctx, meta, flattened(ctx, input), 0, flattened(ctx, indices), negative=True)
    return _gathered(ctx, meta, input, dim, indices, negative=True)


def _gathered(ctx: Context, meta: Any, input: Tensor, dim: Any, index: Any, *, negative: bool) -> Tensor:
    if type(meta) is not TensorMeta or type(index) is not Tensor:
        raise NoRule
    old, ndim = input.meta.shape, len(meta.shape)
    dim = axis_of(dim, len(old))
    if len(old) != ndim or len(index.meta.shape) != ndim:
        raise NoRule
    place, inside = Checked(ctx, index, old[dim], negative=negative).spread(range(ndim), ndim)
    axes: list[int | Expr] = [k if old[k] != 1 or meta.shape[k] == 1 else ops.const(0, I64) for k in range(ndim)]
    axes[dim] = place
    return made(ctx, meta, at(source(ctx, input), axes, ndim, inside))


@rule("take", "input index")
def take(ctx: Context, meta: Any, input: Any, index: Any) -> Tensor:
    flat, ndim = flattened(ctx, input), len(index.meta.shape)
    place, inside = Checked(ctx, index, flat.meta.numel, negative=True).spread(range(ndim), ndim)
    return made(ctx, meta, at(source(ctx, flat), [place], ndim, inside))


@rule("index_select", "input dim index")
def index_select(ctx: Context, meta: Any, input: Any, dim: Any, index: Any) -> Tensor:
    shape = input.meta.shape
    if not shape or len(index.meta.shape) > 1:
        raise NoRule
    ndim, dim = len(shape), axis_of(dim, len(shape))
    place, inside = Checked(ctx, index, shape[dim], negative=False).spread([dim][: len(index.meta.shape)], ndim)
    axes: list[int | Expr] = [place if k == dim else k for k in range(ndim)]
    return made(ctx, meta, at(source(ctx, input), axes, ndim, inside))


@rule("embedding", "weight indices padding_idx=-1 scale_grad_by_freq=False sparse=False")
def embedding(
    ctx: Context, meta: Any, weight: Any, indices: Any, padding_idx: Any, scale_grad_by_freq: Any, sparse: Any
) -> Tensor:
    if len(weight.meta.shape) != 2:
        raise NoRule
    ndim = len(indices.meta.shape) + 1
    place, inside = Checked(ctx, indices, weight.meta.shape[0], negative=False).spread(range(ndim - 1), ndim)
    return made(ctx, meta, at(source(ctx, weight), [place, ndim - 1], ndim, inside))


# --- several axes by several tensors ---


@rule("index", "input indices")
def index(ctx: Context, meta: Any, input: Any, indices: Any) -> Tensor:
    """ATen's form of `input[indices]`: a tensor or None for each of the first axes."""
    return _indexed(ctx, meta, input, list(indices))


@rule("_unsafe_index", "input indices")
def unsafe_index(ctx: Context, meta: Any, input: Any, indices: Any) -> Tensor:
    """As `index`, with indices that are known to be in range: those of a decomposition, of the new image's pixels."""
    return _indexed(ctx, meta, input, list(indices), checked=False)


def getitem(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    """`x[index]`: an element of a tuple, a view of a tensor, or its elements at indices that tensors hold."""
    try:
        return views.getitem(ctx, args, kwargs, meta)
    except NoRule:
        tensor, tensors = basic_part(ctx, *args)
        return _indexed(ctx, meta, tensor, tensors)


def basic_part(ctx: Context, tensor: Tensor, index: Any) -> tuple[Tensor, list[Tensor | None]]:
    """The view that the integers and slices of an index make, and the tensors that index its axes, as ATen has them.

    Raises:
        NoRule: for masks, lists, and tensors without dimensions, which select like integers.
    """
    parts = list(index) if isinstance(index, tuple) else [index]
    tensors: list[Tensor | None] = []
    if tensor.meta.dtype not in SUPPORTED or tensor.meta.device.type not in ALL_DEVICES:
        raise NoRule
    for k, part in enumerate(parts):
        if type(part) is Tensor:
            if not part.meta.shape or part.is_number:
                raise NoRule
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
    ctx: Context, meta: Any, input: Tensor, tensors: list[Tensor | None], *, checked: bool = True
) -> Tensor:
    shape = input.meta.shape
    tensors += [None] * (len(shape) - len(tensors))
    used = [k for k, tensor in enumerate(tensors) if tensor is not None]
    if not used or type(meta) is not TensorMeta:
        raise NoRule
    together = shape_together([tensors[k] for k in used])
    adjacent = used == list(range(used[0], used[-1] + 1))
    first = used[0] if adjacent else 0  # where the axes of the index tensors are in the result
    ndim = len(shape) - len(used) + len(together)
    axes: list[int | Expr] = []
    inside: Expr | None = None
    place = 0
    for k, tensor in enumerate(tensors):
        if tensor is None:
            if place == first:
                place += len(together)
            axes.append(place)
            place += 1
            continue
        its_axes = range(first + len(together) - len(tensor.meta.shape), first + len(together))
        if not checked:
            axes.append(spread(ops.via(ctx.formula(tensor), I64), tensor.meta.shape, its_axes, ndim))
            continue
        value, within = Checked(ctx, tensor, shape[k], negative=True).spread(its_axes, ndim)
        axes.append(value)
        inside = both(inside, within)
    if ndim != len(meta.shape):
        raise NoRule
    return made(ctx, meta, at(source(ctx, input), axes, ndim, inside))


# --- searches in sorted tensors ---

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
