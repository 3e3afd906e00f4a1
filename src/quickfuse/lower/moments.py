"""Mean and variance of rows.

They are two sums, of which the second needs the result of the first (decision 13). Where a program has a whole row in
registers or in the cache, that costs nothing more. Long rows of a GPU are read once instead: moments of parts, and from
these the moments of the whole (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983).
"""

from __future__ import annotations

import math

from quickfuse.ir.expr import Count, Expr, Load, main_strides
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.target import CUDA, costs_on
from quickfuse.ir.values import TensorMeta

from . import ops
from .layout import Shape
from .space import Space


def moments(space: Space, value: Expr, *, exactly: bool = False) -> tuple[Expr, Expr]:
    """The mean and the variance (of all elements, not of a sample) of each row, in the type of sums. `exactly`: with an
    exact mean, as it must be where rows lie far away from zero, and no variance at all where elements are equal: gradients
    of a deviation ask whether it is zero."""
    split = _split(space, value) if space.device.type == "cuda" else None
    if split is not None:
        return _by_parts(space, value, *split)
    if exactly and space.count and space.wide(value.dtype) is value.dtype:  # a sum of equal numbers is rounded, too
        first = _first(space, value)
        away = value - first
        mean_away = space.mean(away)
        centred = away - mean_away
        return first + mean_away, space.mean(centred * centred)
    mean = space.mean(value)
    dtype = mean.dtype if exactly else value.dtype
    centred = ops.via(value, dtype) - ops.via(mean, dtype)
    return mean, space.mean(centred * centred)


def _split(space: Space, value: Expr) -> tuple[Shape, int, int] | None:
    """The axes of which each index is a part of its own, the axis inside of them that is cut up, and into how many parts.
    None for rows that are short, or have no equal parts."""
    if not math.prod(space.shape) or space.count < CUDA.least_row_by_parts:
        return None
    costs, strides = costs_on(space.device), main_strides(len(space.shape), value)
    moving = [k for k, size in enumerate(space.shape) if size > 1]
    rows = math.prod(space.shape[k] for k in moving if k not in space.axes)
    inner = min(moving, key=lambda k: abs(strides[k]) or math.inf)
    if inner in space.axes:
        wanted = max(-(-space.count // CUDA.whole_row_of_many), 2)
    else:  # neighbours belong to different rows, of which a tile has many
        units = -(-rows // costs.columns_a_row)
        wanted = max(min(costs.most_parts, -(-costs.most_units // units)), 2)
    count = 1
    whole: list[int] = []
    for axis in sorted((k for k in moving if k in space.axes), key=lambda k: -abs(strides[k])):
        size = space.shape[axis]
        if count * size >= wanted:
            parts = next(d for d in range(1, size + 1) if size % d == 0 and count * d >= wanted)
            is_good = count * parts <= 4 * wanted and space.count // (count * parts) >= CUDA.least_part_for_moments
            return (tuple(whole), axis, parts) if is_good else None
        whole.append(axis)
        count *= size
    return None


def _by_parts(space: Space, value: Expr, whole: Shape, axis: int, parts: int) -> tuple[Expr, Expr]:
    """The moments of rows that are cut into equal parts.

    In a part, its first element is taken away from all, and the sums of these differences and of their squares are made
    together. Cancellation costs little: as that element is one of the part, the square of its distance from the mean is at
    most the sum of all squares.
    """
    ctx, shape = space.ctx, space.shape
    known = ctx.moments.get((id(value), shape, space.axes))
    if known is not None:
        return known[1], known[2]
    length = shape[axis] // parts
    cut = reindex(value, IndexMap.cut(len(shape), axis, length))
    of_parts = Space(
        ctx, (*shape[:axis], parts, length, *shape[axis + 1 :]),
        tuple([k + (k >= axis) for k in space.axes if k not in whole]), space.device,
    )  # fmt: skip
    whole_part = IndexMap.along([None if k == axis + 1 else k - (k > axis) for k in range(len(shape) + 1)], len(shape))
    partial = [reindex(stored, whole_part) for stored in _of_part(of_parts, cut)]
    few = tuple([
        parts if k == axis else 1 if k in space.axes and k not in whole else size for k, size in enumerate(shape)
    ])  # fmt: skip
    together = Space(ctx, few, (*whole, axis), space.device)
    mean_of_part, variance_of_part = partial
    mean = _mean(together, mean_of_part)
    away = mean_of_part - mean
    variance = _mean(together, variance_of_part + away * away)
    ctx.moments[id(value), shape, space.axes] = value, mean, variance
    return mean, variance


def _of_part(space: Space, value: Expr) -> tuple[Load, Load]:
    """The mean and the variance of each part, in memory."""
    first = _first(space, value)
    away = value - first
    mean_away, mean_square = (_mean(space, term) for term in (away, away * away))
    variance = mean_square - mean_away * mean_away
    kept = tuple([1 if k in space.axes else size for k, size in enumerate(space.shape)])
    meta = TensorMeta.dense(mean_away.dtype, kept, space.device)
    mean = ops.via(first, mean_away.dtype) + mean_away
    return space.ctx.stored(mean, meta), space.ctx.stored(ops.maximum(variance, 0), meta)


def _first(space: Space, value: Expr) -> Expr:
    """The first element of each row."""
    ndim = len(space.shape)
    return reindex(value, IndexMap.along([None if k in space.axes else k for k in range(ndim)], ndim))


def _mean(space: Space, value: Expr) -> Expr:
    wide = space.wide(value.dtype)
    return space.reduce_part(ops.via(value, wide), "add") / ops.via(Count(space.count), wide)
