"""A part of a tensor replaced: assignment to slices, and the gradients of slices."""

from __future__ import annotations

import torch

from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import IndexMap, affine, both, select

from . import ops
from .layout import Shape

I64 = torch.int64


def replace_part(old: Expr, shape: Shape, new: Expr, part: Shape, index_map: IndexMap) -> Expr | None:
    """The value `old` over `shape` with the elements of `new`, a value over `part`, in the places that `index_map` gives
    them: old indices as functions of new ones. Types must be equal.

    None where a new index does not follow from the old ones alone.
    """
    constants, rows = [0] * len(part), [[0] * len(shape) for _ in part]
    computed: dict[int, Expr] = {}
    inside: Expr | None = None
    found: set[int] = set()
    for k, (constant, row) in enumerate(zip(index_map.constants, index_map.coefficients, strict=True)):
        axes = [j for j, factor in enumerate(row) if factor and part[j] > 1]
        if len(axes) > 1 or (axes and row[axes[0]] < 0):
            return None
        if axes and axes[0] in found:  # a diagonal: two old indices follow from one new one
            if row[axes[0]] != 1 or axes[0] in computed:
                return None
            first = affine(constants[axes[0]], tuple(rows[axes[0]]))
            inside = both(inside, ops.eq(affine(-constant, tuple([int(j == k) for j in range(len(shape))])), first))
            continue
        if not axes:
            if shape[k] > 1:
                inside = both(inside, ops.eq(Index(k), ops.const(constant, I64)))
            continue
        axis = axes[0]
        found.add(axis)
        step = row[axis]
        end = constant + step * (part[axis] - 1) + 1
        if step == 1:
            constants[axis], rows[axis][k] = -constant, 1
        else:
            away = ops.sub(Index(k), ops.const(constant, I64)) if constant else Index(k)
            computed[axis] = ops.trunc_div(away, ops.const(step, I64))
            inside = both(inside, ops.eq(ops.remainder(away, ops.const(step, I64)), ops.const(0, I64)))
        if constant:
            inside = both(ops.ge(Index(k), ops.const(constant, I64)), inside)
        if end < shape[k]:
            inside = both(ops.lt(Index(k), ops.const(end, I64)), inside)
    if len(found) < sum(size > 1 for size in part):
        return None
    placed = IndexMap(tuple(constants), tuple(map(tuple, rows)), len(shape))
    value = select(new, placed, computed, inside)
    return value if inside is None else ops.where(inside, value, old)
