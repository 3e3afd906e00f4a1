"""Fewer axes: sizes of one vanish, and axes that all operands walk through as through one become one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from quickfuse.ir.kernel import Axis
from quickfuse.ir.target import CPU, CUDA

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A loop with fewer axes: its sizes, each operand's strides, the old axes in each new one, innermost first, what each
    new axis is, and the one along which vectors are to lie; -1 for none."""

    sizes: tuple[int, ...]
    strides: tuple[Strides, ...]
    groups: tuple[tuple[int, ...], ...]
    axes: tuple[Axis, ...]
    vector: int

    def axis(self, old: int) -> int | None:
        """The new axis that an old one has become; None where that has vanished."""
        return next((k for k, group in enumerate(self.groups) if old in group), None)


@lru_cache(maxsize=4096)
def collapse(
    shape: tuple[int, ...], operands: tuple[Strides, ...], order_by: int, indexed: tuple[int, ...], long_rows: bool = False
) -> Collapsed:
    """Collapse the axes of `shape`.

    operands: the strides of each operand over the axes.
    order_by: the operand by whose strides axes are ordered, largest first: the one that is stored to.
    indexed: axes whose loop variable is used as a number. They are never merged.
    long_rows: whether a longer axis than by that order may be the innermost, as vectors along a short one are mostly empty.
    """
    axes = [k for k, size in enumerate(shape) if size != 1]
    if not axes:
        return _single_element(shape, operands)
    collapsed = _collapsed(shape, operands, _merged(shape, operands, axes, order_by, indexed))
    return _in_blocks(_with_long_rows(collapsed), indexed) if long_rows else collapsed


def _in_blocks(loop: Collapsed, indexed: tuple[int, ...]) -> Collapsed:
    """Where some operand lies along another axis than what is stored: a block of vectors at a time, gone through along that
    axis. So the lines of memory that a vector's elements are in are still in the cache for the next ones. The axis is cut
    where it can be, so that threads have enough blocks to share."""
    sizes, last = loop.sizes, len(loop.sizes) - 1
    along = _lying_along(loop)
    if along < 0:
        return loop
    size = sizes[along]
    parts = range(CPU.most_turned, CPU.short_row - 1, -1) if set(indexed).isdisjoint(loop.groups[along]) else ()
    part = next((n for n in parts if size % n == 0), size)
    order = [*(k for k in range(last) if k != along), *([along] if part < size else []), last]

    def turned(strides: Strides) -> Strides:
        return (*(strides[k] * (part if k == along else 1) for k in order), strides[along])

    return Collapsed(
        (*(size // part if k == along else sizes[k] for k in order), part),
        tuple([turned(strides) for strides in loop.strides]),
        (*(() if k == along else loop.groups[k] for k in order), loop.groups[along]),
        (Axis.PARALLEL,) * len(order) + (Axis.SCAN,),
        len(order) - 1,
    )


def _lying_along(loop: Collapsed) -> int:
    """The axis before the last along which the most operands lie in memory that do not lie along the last one; or -1."""
    last = len(loop.sizes) - 1
    if last < 1 or loop.sizes[last] < CPU.short_row or any(stride < 0 for strides in loop.strides for stride in strides):
        return -1
    turned = [strides for strides in loop.strides if strides[last] > 1]
    lying = [sum(strides[k] == 1 for strides in turned) if size >= CPU.short_row else 0
             for k, size in enumerate(loop.sizes[:last])]  # fmt: skip
    return lying.index(max(lying)) if any(lying) else -1


def _with_long_rows(loop: Collapsed) -> Collapsed:
    """Not the short axis innermost along which values are stored, but a long one along which others lie in memory."""
    sizes, strides = loop.sizes, loop.strides
    if len(sizes) < 2 or sizes[-1] >= CPU.short_row:
        return loop
    long = [k for k, size in enumerate(sizes[:-1]) if size >= CPU.short_row and any(s[k] == 1 for s in strides)]
    if not long:
        return loop
    order = [*(k for k in range(len(sizes)) if k != long[-1]), long[-1]]
    turned = tuple([tuple([s[k] for k in order]) for s in strides])
    groups = tuple([loop.groups[k] for k in order])
    return replace(loop, sizes=tuple([sizes[k] for k in order]), strides=turned, groups=groups)


def with_tiles(loop: Collapsed) -> Collapsed:
    """Where some operand lies along another axis than the last: that one for vectors, so that tiles of both are handled."""
    sizes, last = loop.sizes, len(loop.sizes) - 1
    if last < 1 or sizes[last] < CUDA.least_tiled:
        return loop
    for strides in loop.strides:
        along = next((k for k in range(last) if strides[k] == 1 and strides[last] != 0), -1)
        if along >= 0 and sizes[along] >= CUDA.least_tiled:
            return replace(loop, vector=along)
    return loop


@lru_cache(maxsize=4096)
def collapse_rows(
    shape: tuple[int, ...], operands: tuple[Strides, ...], indexed: tuple[int, ...], inner: tuple[int, ...], kind: Axis,
    tiles: bool = False,
) -> Collapsed:  # fmt: skip
    """Collapse the axes of a loop, of which those of `inner` are of a `kind` that is not parallel. These come last.

    An axis that is gone through in order is left as it is. With `tiles`, kernels handle several rows and several elements
    of each at a time, so that no vectors lie across rows.
    """
    order_by = _main_operand(shape, operands)
    moving = [k for k, size in enumerate(shape) if size != 1]
    rows = _merged(shape, operands, [k for k in moving if k not in inner], order_by, indexed)
    along = list(inner) if kind is Axis.SCAN else [k for k in moving if k in inner]
    within = _merged(shape, operands, along, order_by, indexed)
    collapsed = _collapsed(shape, operands, rows + within)
    axes = (Axis.PARALLEL,) * len(rows) + (kind,) * len(within)
    vector = len(axes) - 1 if kind is Axis.REDUCE else -1
    if rows and not tiles and _lies_across(collapsed, len(within), collapsed.strides[order_by]):
        vector = len(rows) - 1
    return replace(collapsed, axes=axes, vector=vector)


def _lies_across(collapsed: Collapsed, inner: int, strides: Strides) -> bool:
    """Whether neighbours in memory belong to different rows, or rows are too short for vectors."""
    sizes = collapsed.sizes
    if math.prod(sizes[-inner:]) < CPU.short_row and sizes[-inner - 1] >= CPU.many_rows:
        return True
    across, along = abs(strides[-inner - 1]), abs(strides[-1])
    if 0 < across < along or not along:
        return True
    # What lies along rows is in the cache while a block of them is gone through; what does not would be a line an element.
    both = sizes[-inner - 1] >= CPU.many_rows and sizes[-1] >= CPU.short_row
    return both and any(operand[-inner - 1] == 1 and operand[-1] > 1 for operand in collapsed.strides)


def _main_operand(shape: tuple[int, ...], operands: tuple[Strides, ...]) -> int:
    """The operand with the most elements, whose order in memory decides how a kernel goes through the axes."""
    elements = [math.prod(n for n, s in zip(shape, strides, strict=True) if s) for strides in operands]
    return elements.index(max(elements, default=1)) if elements else 0


def _merged(
    shape: tuple[int, ...], operands: tuple[Strides, ...], axes: list[int], order_by: int, indexed: tuple[int, ...]
) -> list[list[int]]:
    """The axes in their new order, those together that become one, each group's innermost axis first."""
    order = operands[order_by] if operands else (0,) * len(shape)
    groups: list[list[int]] = []
    size = 1
    for axis in sorted(axes, key=lambda k: -abs(order[k]))[::-1]:
        if groups and _walks_on(axis, groups[-1][0], size, operands, indexed):
            groups[-1].append(axis)
            size *= shape[axis]
        else:
            groups.append([axis])
            size = shape[axis]
    return groups[::-1]


def _collapsed(shape: tuple[int, ...], operands: tuple[Strides, ...], groups: list[list[int]]) -> Collapsed:
    sizes = tuple([math.prod(shape[axis] for axis in group) for group in groups])
    strides = tuple([tuple([operand[group[0]] for group in groups]) for operand in operands])
    return Collapsed(sizes, strides, tuple(map(tuple, groups)), (Axis.PARALLEL,) * len(sizes), len(sizes) - 1)


def _walks_on(axis: int, inner: int, size: int, operands: tuple[Strides, ...], indexed: tuple[int, ...]) -> bool:
    """Whether a step along `axis` is `size` steps along `inner`, for all operands."""
    if axis in indexed or inner in indexed:
        return False
    return all(operand[axis] == operand[inner] * size for operand in operands)


def _single_element(shape: tuple[int, ...], operands: tuple[Strides, ...]) -> Collapsed:
    """A tensor of one element keeps an axis, so that it can be a member among tensors of many; a 0-dim one has none."""
    if not shape:
        return Collapsed((), tuple([() for _ in operands]), (), (), -1)
    return Collapsed((1,), tuple([(int(any(operand)),) for operand in operands]), ((),), (Axis.PARALLEL,), 0)
