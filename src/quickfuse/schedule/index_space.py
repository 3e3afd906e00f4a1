"""Index spaces of fusion groups with reductions: a shape, and the axes in it that are reduced.

A value with one element a row, say a mean, has an index of its own with fewer
axes. To share the reduction's kernel it is seen as a value over the kernel's space that does not change along the reduced
axes. A view may also have merged axes that the space keeps apart.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, main_strides
from quickfuse.ir.loop import Access, Store, StoreKind
from quickfuse.ir.reindex import IndexMap
from quickfuse.ir.target import CPU

Shape = tuple[int, ...]


def reduced_axes(shape: Shape, store: Store) -> Shape | None:
    """The axes that a reduction reduces, or the one that a scan or scatter goes along; None for any other store.

    There are none for a flag, so that its kernel reduces nothing.
    """
    if store.in_order:
        return (store.along,)
    if store.kind is not StoreKind.REDUCE:
        return () if store.kind is StoreKind.FLAG else None
    return tuple([k for k, (size, stride) in enumerate(zip(shape, store.access.strides, strict=True))
                  if size > 1 and not stride])  # fmt: skip


def keeps_threads_busy(shape: Shape, reduced: Shape) -> bool:
    """Whether rows of this space are as good a way to go through it as element by element."""
    rows = math.prod(size for k, size in enumerate(shape) if k not in reduced)
    return rows >= COSTS.busy_rows or math.prod(shape) <= COSTS.one_thread


def short_run(shape: Shape, value: Expr) -> tuple[int, int] | None:
    """The axis along which neighbours in memory lie, if it is too short for vectors, and the axis that goes on from there:
    the channels of a group and the groups, in images with channels last. None for any other value."""
    strides = main_strides(len(shape), value)
    for inner, size in enumerate(shape):
        if strides[inner] == 1 and 1 < size < COSTS.short_run:
            following = [k for k, stride in enumerate(strides) if stride == size and shape[k] > 1]
            return (inner, following[0]) if following else None
    return None


def one_by_one(shape: Shape, store: Store, device: torch.device | None) -> bool:
    """Whether a kernel that goes along an axis in order handles one element at a time: on a CPU, where neighbours in memory
    lie along that axis, and not across it, where vectors would take one of several rows each."""
    if not store.in_order or device is None or device.type != "cpu" or math.prod(shape) < COSTS.least_elements_one_by_one:
        return False
    strides = main_strides(len(shape), *store.roots)
    across = [k for k, size in enumerate(shape) if k != store.along and size > 1 and strides[k]]
    nearest = min(across, key=lambda k: abs(strides[k]), default=-1)
    if nearest < 0 or not strides[store.along]:
        return bool(strides[store.along])
    if shape[store.along] < CPU.short_row and shape[nearest] >= CPU.many_rows:
        return False
    return abs(strides[nearest]) > abs(strides[store.along])


@lru_cache(maxsize=4096)
def embedding(shape: Shape, space: Shape, reduced: Shape) -> IndexMap | None:
    """Indices of `shape` as a function of those of `space`: of its rows, or of all its elements. None if there is none.

    Axes must come in the same order; an axis of `shape` may be several of `space`.
    """
    kept = [k for k, size in enumerate(space) if size > 1 and k not in reduced]
    every = [k for k, size in enumerate(space) if size > 1]
    count = math.prod(shape)
    axes = kept if count == math.prod(space[k] for k in kept) else every
    if count != math.prod(space[k] for k in axes):
        return None
    rows: list[Shape] = []
    waiting = list(axes)
    for size in shape:
        row = [0] * len(space)
        group: list[int] = []
        product = 1
        while product < size and waiting:
            group.append(waiting.pop(0))
            product *= space[group[-1]]
        if product != size:
            return None
        for axis in group:
            product //= space[axis]
            row[axis] = product
        rows.append(tuple(row))
    return IndexMap((0,) * len(shape), tuple(rows), len(space))


def same_elements(shape: Shape, one: Access, two: Access) -> bool:
    """Whether two accesses of one buffer mean the same element at every index of `shape`."""
    return not (one.loose or two.loose) and one.offset == two.offset and all(
        s == t for size, s, t in zip(shape, one.strides, two.strides, strict=True) if size > 1
    )
