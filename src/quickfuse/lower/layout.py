"""Index arithmetic: values under broadcasting, parts of values replaced, and how temporaries lie in memory.

A value is a function of an index tuple. Changing the index means rewriting its leaves, the loads and loop variables:
loads stay affine in the index, so no view costs anything in the loop.
"""

from __future__ import annotations

from collections import Counter

import torch

from quickfuse.ir.expr import Const, Expr, Index, Load, Op, Place, Scalar, walk
from quickfuse.ir.loop import Access
from quickfuse.ir.reindex import IndexMap, affine, both, reindex, select
from quickfuse.ir.target import is_slow
from quickfuse.ir.values import TensorMeta, is_dense, stride_in_order

from . import ops

Shape = tuple[int, ...]


def broadcast(expr: Expr, source: Shape, target: Shape) -> Expr:
    """A value over `source` as one over `target`, by PyTorch's broadcasting rules."""
    if isinstance(expr, (Const, Scalar)):
        return expr
    new_axes = len(target) - len(source)
    if isinstance(expr, Load):  # by far the most frequent case
        access = expr.access
        strides = tuple([0 if size == 1 else s for size, s in zip(source, access.strides, strict=True)])
        return Load(Access(access.buffer, access.offset, (0,) * new_axes + strides), expr.dtype)
    axes = [k if size != 1 else None for k, size in enumerate(source, new_axes)]
    return reindex(expr, IndexMap.along(axes, len(target)))


def costs_at_least(expr: Expr, limit: int) -> bool:
    """Whether computing a value once costs as much as `limit` additions, or more."""
    cost = 0
    seen: set[int] = set()
    stack = [expr]
    while stack and cost < limit:
        node = stack.pop()
        if isinstance(node, Op) and id(node) not in seen:
            seen.add(id(node))
            cost += 10 if is_slow(node.name) else 1
            stack.extend(node.args)
    return cost >= limit


# --- parts of tensors replaced ---

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
                inside = both(inside, ops.eq(Index(k), constant))
            continue
        axis = axes[0]
        found.add(axis)
        step = row[axis]
        end = constant + step * (part[axis] - 1) + 1
        if step == 1:
            constants[axis], rows[axis][k] = -constant, 1
        else:
            away = Index(k) - constant if constant else Index(k)
            computed[axis] = ops.trunc_div(away, step)
            inside = both(inside, ops.eq(ops.fmod(away, step), 0))
        if constant:
            inside = both(Index(k) >= constant, inside)
        if end < shape[k]:
            inside = both(Index(k) < end, inside)
    if len(found) < sum(size > 1 for size in part):
        return None
    placed = IndexMap(tuple(constants), tuple(map(tuple, rows)), len(shape))
    value = select(new, placed, computed, inside)
    return value if inside is None else ops.where(inside, value, old)


# --- how a temporary lies in memory ---

def read_order(value: Expr, meta: TensorMeta) -> TensorMeta:
    """The layout for a temporary that holds `value`: that of `meta`, or dense with the axes as most operands have them."""
    plain = type(meta) is TensorMeta and len(meta.shape) > 1 and is_dense(meta.shape, meta.stride)
    if not plain or isinstance(value, Load):
        return meta
    axes = axes_as_read(value, meta.shape, meta.stride)
    if axes == _order(meta.stride, list(axes)):
        return meta
    return TensorMeta(meta.dtype, meta.shape, stride_in_order(meta.shape, axes), meta.device)


def axes_as_read(value: Expr, shape: Shape, stride: Shape) -> Shape:
    """The axes of more than one element, in the order in which most operands of `value` have them, or else as `stride`
    has them, from the one with the largest steps to the one with the smallest."""
    moving = [k for k, size in enumerate(shape) if size > 1]
    steps = [_steps(node) for node in walk(value) if isinstance(node, (Load, Place))]
    orders = Counter(_order(strides, moving) for strides in steps if all(strides[k] > 0 for k in moving))
    own = _order(stride, moving)
    if not orders or orders[own] == max(orders.values()):
        return own
    return orders.most_common(1)[0][0]


def _steps(node: Load | Place) -> Shape:
    """The strides of an operand, also along axes on which it is read at computed indices, as images are by their windows."""
    strides, meta = node.access.strides, node.access.buffer.meta
    if isinstance(node, Load) or not isinstance(meta, TensorMeta) or len(meta.shape) != len(strides):
        return strides
    return tuple([own or computed for own, computed in zip(strides, meta.stride, strict=True)])


def _order(strides: Shape, axes: list[int]) -> Shape:
    """The axes from the one with the largest steps to the one with the smallest."""
    return tuple(sorted(axes, key=lambda k: -strides[k]))
