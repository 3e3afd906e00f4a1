"""Values as functions of the index of another tensor on the same memory: what a view sees."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from .expr import Expr, Index
from .loop import Access
from .reindex import IndexMap, reindex, rewrite_accesses

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor's elements are in memory, in elements."""

    shape: Shape
    stride: Shape
    offset: int = 0


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

    def merged(access: Access) -> Access:
        strides = access.strides
        pairs = [pair for group in groups for pair in itertools.pairwise(group)]
        if any(strides[outer] != strides[inner] * base.shape[inner] for outer, inner in pairs):
            raise _NotSeen
        return Access(access.buffer, access.offset, tuple([strides[group[-1]] if group else 0 for group in groups]))

    return _with_accesses(expr, merged)


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

    def seen(access: Access) -> Access:
        strides = [access.strides[k] for k in moving]
        if strides == own:
            return Access(access.buffer, access.offset + view.offset, view.stride)
        if any(strides):
            raise _NotSeen
        return Access(access.buffer, access.offset, still)

    return _with_accesses(expr, seen)


class _NotSeen(Exception):
    """A value cannot be seen through a view in this way."""


def _with_accesses(expr: Expr, access: Callable[[Access], Access]) -> Expr | None:
    """A value with other accesses, none of whose parts depends on an index in another way; None where there is no such."""
    try:
        return rewrite_accesses(expr, access, _refuse)
    except _NotSeen:
        return None


def _refuse(index: Index) -> Expr:
    raise _NotSeen


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
        if stride < 0:
            return None
        for axis in order:  # several for a diagonal
            coefficients[axis][j], stride = divmod(stride, base.stride[axis])
            reach[axis] += coefficients[axis][j] * (size - 1)
        if stride:
            return None
    if any(r >= max(size, 1) for r, size in zip(reach, base.shape, strict=True)):
        return None
    return IndexMap(tuple(constants), tuple(map(tuple, coefficients)), len(view.shape))
