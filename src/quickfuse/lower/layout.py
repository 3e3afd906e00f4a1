"""Index arithmetic: values under broadcasting, and values seen through views.

A value is a function of an index tuple. Changing the index means rewriting its leaves, the loads and loop variables:
loads stay affine in the index, so no view costs anything in the loop.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import torch

from quickfuse.ir.expr import Const, Expr, Index, Load, Op, Place, Scalar, walk
from quickfuse.ir.loop import Access
from quickfuse.ir.reindex import IndexMap, affine, both, reindex, rewrite_leaves, select
from quickfuse.ir.target import is_slow
from quickfuse.ir.values import TensorMeta, contiguous_stride, stride_in_order

from . import ops

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor's elements are in memory, in elements."""

    shape: Shape
    stride: Shape
    offset: int = 0


def broadcast(expr: Expr, source: Shape, target: Shape) -> Expr:
    """A value over `source` as one over `target`, by PyTorch's broadcasting rules."""
    if isinstance(expr, (Const, Scalar)):
        return expr
    new_axes = len(target) - len(source)
    if isinstance(expr, Load):  # by far the most frequent case
        access = expr.access
        strides = tuple([0 if size == 1 else s for size, s in zip(source, access.strides, strict=True)])
        return Load(Access(access.buffer, access.offset, (0,) * new_axes + strides), expr.dtype)
    ndim = len(target)
    rows = [
        tuple([int(j == k + new_axes and size != 1) for j in range(ndim)]) for k, size in enumerate(source)
    ]
    return reindex(expr, IndexMap((0,) * len(source), tuple(rows), ndim))


def relayout(expr: Expr, base: Layout, view: Layout) -> Expr | None:
    """A value over `base.shape`, stored with the strides of `base`, as seen through `view` of the same memory.

    None where the view's index is no affine function of the base's that is the same for all loads.
    """
    by_memory = _relayout_by_memory(expr, base, view)
    if by_memory is not None:
        return by_memory
    index_map = index_map_of(base, view)
    return _relayout_merged(expr, base, view) if index_map is None else reindex(expr, index_map)


def _relayout_merged(expr: Expr, base: Layout, view: Layout) -> Expr | None:
    """The relayout to a view of all elements whose axes are each several of the base's, one within the other.

    Loads may lie in memory otherwise than the base, as long as they go through each group of axes in even steps: images
    with channels last, seen as channels by pixels.
    """
    groups = _merged_axes(base, view)
    if groups is None:
        return None
    failed = False

    def leaf(node: Expr) -> Expr:
        nonlocal failed
        if isinstance(node, (Load, Place)):
            strides = node.access.strides
            merged = tuple([strides[group[-1]] if group else 0 for group in groups])
            for group in groups:
                for outer, inner in itertools.pairwise(group):
                    failed = failed or strides[outer] != strides[inner] * base.shape[inner]
            return type(node)(Access(node.access.buffer, node.access.offset, merged), node.dtype)
        failed = failed or isinstance(node, Index)
        return node

    result = rewrite_leaves(expr, leaf)
    return None if failed else result


def _merged_axes(base: Layout, view: Layout) -> list[list[int]] | None:
    """For each axis of a view of all elements the base's axes that it goes through, the outermost first."""
    left = sorted((k for k, n in enumerate(base.shape) if n > 1), key=lambda k: -base.stride[k])
    groups: list[list[int]] = [[] for _ in view.shape]
    if view.offset:
        return None
    for k in sorted((k for k, n in enumerate(view.shape) if n > 1), key=lambda k: view.stride[k]):
        step, size = view.stride[k], 1
        while size < view.shape[k]:
            if not left or base.stride[left[-1]] != step * size:
                return None
            axis = left.pop()
            groups[k].insert(0, axis)
            size *= base.shape[axis]
        if size != view.shape[k]:
            return None
    return None if left else groups


def _relayout_by_memory(expr: Expr, base: Layout, view: Layout) -> Expr | None:
    """The relayout where each load has the strides of `base` itself, or is of a single element.

    It holds for any view, merged axes included.
    """
    moving = [k for k, size in enumerate(base.shape) if size > 1]
    own = [base.stride[k] for k in moving]
    still = (0,) * len(view.shape)
    failed = False

    def leaf(node: Expr) -> Expr:
        nonlocal failed
        if isinstance(node, (Load, Place)):
            kind, access = type(node), node.access
            strides = [access.strides[k] for k in moving]
            if strides == own:
                return kind(Access(access.buffer, access.offset + view.offset, view.stride), node.dtype)
            if not any(strides):
                return kind(Access(access.buffer, access.offset, still), node.dtype)
            failed = True
        elif isinstance(node, Index):
            failed = True
        return node

    result = rewrite_leaves(expr, leaf)
    return None if failed else result


def index_map_of(base: Layout, view: Layout) -> IndexMap | None:
    """The base's index as an affine function of the view's, if it is one. The base must not overlap itself."""
    axes = [k for k, (size, stride) in enumerate(zip(base.shape, base.stride, strict=True)) if size > 1 and stride]
    order = sorted(axes, key=lambda k: -base.stride[k])
    constants = [0] * len(base.shape)
    rest = view.offset
    for k in order:
        constants[k], rest = divmod(rest, base.stride[k])
    if rest:
        return None
    coefficients = [[0] * len(view.shape) for _ in base.shape]
    reach = list(constants)  # the largest index that the view touches on each axis
    for j, (size, stride) in enumerate(zip(view.shape, view.stride, strict=True)):
        if size == 1 or stride == 0:
            continue
        axis = next((k for k in order if base.stride[k] <= stride), None)
        if axis is None or stride % base.stride[axis]:
            return None
        coefficients[axis][j] = stride // base.stride[axis]
        reach[axis] += coefficients[axis][j] * (size - 1)
    if any(r >= max(size, 1) for r, size in zip(reach, base.shape, strict=True)):
        return None
    return IndexMap(tuple(constants), tuple(map(tuple, coefficients)), len(view.shape))


def overlaps_itself(shape: Shape, stride: Shape) -> bool:
    """Whether two indices may mean one element (on the safe side for strides that interleave)."""
    end = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step < end:
            return True
        end = step * (size - 1) + end
    return False


def is_dense(shape: Shape, stride: Shape) -> bool:
    """Whether the elements fill their memory without gaps and overlaps, in any order of axes."""
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
        if step != expected:
            return False
        expected *= size
    return True


def is_contiguous(shape: Shape, stride: Shape) -> bool:
    expected = contiguous_stride(shape)
    return all(n <= 1 or s == e for n, s, e in zip(shape, stride, expected, strict=True))


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
    orders = Counter(
        _order(node.access.strides, moving)
        for node in walk(value)
        if isinstance(node, (Load, Place)) and all(node.access.strides[k] > 0 for k in moving)
    )
    own = _order(stride, moving)
    if not orders or orders[own] == max(orders.values()):
        return own
    return orders.most_common(1)[0][0]


def _order(strides: Shape, axes: list[int]) -> Shape:
    """The axes from the one with the largest steps to the one with the smallest."""
    return tuple(sorted(axes, key=lambda k: -strides[k]))
