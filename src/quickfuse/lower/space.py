"""The index space of a reduction: how a value over a tensor's index becomes one number for each row.

Reduced values are loads from temporaries, over the same index but unchanging along the reduced axes, so that formulas can
use them beside the elements:

    rows = Space(ctx, shape, axes)
    centred = ops.sub(x, rows.mean(x))

Whether a temporary is real memory is decided when loops are fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from quickfuse.ir.expr import Const, Count, Expr, Index, Load, Op, Place, conjuncts, walk
from quickfuse.ir.loop import Access, Loop, Store, StoreKind, identity
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta, contiguous_stride

from . import ops
from .context import Context
from .layout import Shape
from .promotion import is_float


class Space:
    """An index space of `shape` whose `axes` are reduced."""

    def __init__(self, ctx: Context, shape: Shape, axes: Shape, device: torch.device) -> None:
        self.ctx = ctx
        self.shape = shape
        self.axes = axes
        self.device = device
        self.costs = costs_on(device)
        self.count = math.prod(shape[k] for k in axes)

    # --- reductions ---

    def wide(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which floats of a type are added up: float64 on the CPU, and as in eager on a GPU, where many partial
        sums make the error small."""
        return torch.float64 if self.device.type == "cpu" or dtype is torch.float64 else torch.float32

    def sum(self, value: Expr) -> Expr:
        """In `wide` floats and int64. In float64 a sum is about as good as its rounding at the end. Only a few float32
        values at a time are added up as such, which makes the kernels quicker and the error no larger than eager's."""
        key = (id(value), "sum", self.shape, self.axes)
        if key not in self.ctx.reduced:
            wide = ops.via(value, self.wide(value.dtype) if is_float(value.dtype) else torch.int64)
            term = self._only_term(wide)
            if term is not None:
                self.ctx.reduced[key] = (value, term)
                return term
            combine = "add" if wide.dtype is value.dtype and is_float(value.dtype) else "sum"
            self.ctx.reduced[key] = (value, self.reduce(wide, combine))
        return self.ctx.reduced[key][1]

    def _only_term(self, value: Expr) -> Expr | None:
        """The sum of values that are zero but for one element of a row at most, which is at a computed index, as in the
        gradient of a loss of classes: `where(index == target, x, 0)`. None where it does not have that form."""
        casts = []
        value = self.ctx.formula_behind(value, self.shape)
        while isinstance(value, Op) and value.name == "cast" and is_float(value.dtype):
            casts.append(value.dtype)
            value = self.ctx.formula_behind(value.args[0], self.shape)
        if len(self.axes) != 1 or not (isinstance(value, Op) and value.name == "where"):
            return None
        condition, there, elsewhere = value.args
        place, others = self._place_in(condition)
        if place is None or self._moves(there) or not (isinstance(elsewhere, Const) and elsewhere.value == 0):
            return None
        size = self.shape[self.axes[0]]
        inside = ops.bit_and(ops.ge(place, ops.const(0, torch.int64)), ops.lt(place, ops.const(size, torch.int64)))
        for other in others:
            inside = ops.bit_and(inside, other)
        term = ops.where(inside, there, elsewhere)
        for dtype in reversed(casts):
            term = ops.via(term, dtype)
        return ops.add(term, ops.like(term, 0))  # sums begin with 0.0: -0.0 becomes 0.0

    def _place_in(self, condition: Expr) -> tuple[Expr | None, list[Expr]]:
        """The index on the reduced axis that a condition asks for, if it asks for one, and the rest of the condition."""
        place, others = None, []
        for part in conjuncts(condition):
            pair = part.args if isinstance(part, Op) and part.name == "eq" else ()
            wanted = [y for x, y in (pair, pair[::-1]) if x == Index(self.axes[0]) and not self._moves(y)] if pair else []
            if wanted and place is None and wanted[0].dtype is torch.int64:
                place = wanted[0]
            elif self._moves(part):
                return None, []
            else:
                others.append(part)
        return place, others

    def _moves(self, value: Expr) -> bool:
        """Whether a value changes along the reduced axes."""
        for node in walk(value):
            if isinstance(node, (Load, Place)) and any(node.access.strides[axis] for axis in self.axes):
                return True
            if isinstance(node, Index) and node.axis in self.axes:
                return True
        return False

    def mean(self, value: Expr) -> Expr:
        """In the type of the sum."""
        return ops.div(self.sum(value), self.number_of_elements(self.wide(value.dtype)))

    def number_of_elements(self, dtype: torch.dtype) -> Expr:
        """The number of elements of a row, as a number of type `dtype`."""
        return ops.via(Count(self.count), dtype)

    def largest(self, value: Expr) -> Expr:
        return self.reduce(value, "or" if value.dtype is torch.bool else "maximum")

    def least(self, value: Expr) -> Expr:
        return self.reduce(value, "and" if value.dtype is torch.bool else "minimum")

    def reduce(self, value: Expr, combine: str) -> Expr:
        """The values of each row, combined by an operation: see `Store.combine`."""
        if not self.count or not math.prod(self.shape):
            return ops.const(identity(combine, value.dtype), value.dtype)
        if self.count == 1:
            is_sum = combine in ("add", "sum") and is_float(value.dtype)  # which begins with 0.0: -0.0 alone becomes 0.0
            return ops.add(value, ops.like(value, 0)) if is_sum else value
        return self._in_two_stages(value, combine) or self._stored(value, combine, self.shape, self.axes)

    def in_one_stage(self, value: Expr, combine: str) -> Expr:
        """The same in one loop, however long the rows are."""
        return self._stored(value, combine, self.shape, self.axes)

    def _stored(self, value: Expr, combine: str, shape: Shape, axes: Shape) -> Expr:
        key = (id(value), combine, shape, axes)
        known = self.ctx.reduced.get(key)
        if known is None:
            kept = tuple([1 if k in axes else size for k, size in enumerate(shape)])
            stride = tuple([0 if n == 1 else s for n, s in zip(kept, contiguous_stride(kept), strict=True)])
            temp = self.ctx.temp(TensorMeta(value.dtype, kept, contiguous_stride(kept), self.device))
            access = Access(temp, 0, stride)
            self.ctx.program.steps.append(Loop(shape, [Store(access, value, StoreKind.REDUCE, combine)], self.device))
            known = self.ctx.reduced[key] = (value, Load(access, value.dtype))
        return known[1]

    def _in_two_stages(self, value: Expr, combine: str) -> Expr | None:
        """Parts of rows first, where whole rows would leave threads idle; None where they would not."""
        if math.prod(self.shape) < self.costs.long_reduction:
            return None
        strides = main_strides(value, len(self.shape))
        moving = [k for k, size in enumerate(self.shape) if size > 1]
        rows = math.prod(self.shape[k] for k in moving if k not in self.axes)
        inner = min(moving, key=lambda k: abs(strides[k]) or math.inf)
        if inner not in self.axes:
            rows = -(-rows // self.costs.columns_a_row)
        if rows >= self.costs.few_rows:
            return None
        whole, axis = self._split_axes(sorted((k for k in moving if k in self.axes), key=lambda k: -abs(strides[k])))
        if axis is None:
            return None
        size, times = self.shape[axis], math.prod(self.shape[k] for k in whole)
        most = max(min(self.costs.most_parts, math.prod(self.shape) // self.costs.least_part), self.costs.least_parts)
        most = min(most, -(-self.costs.most_units // max(rows, 1))) if self.costs.most_units else most
        divisors = [d for d in range(1, max(most // times, 1) + 1) if size % d == 0]
        parts = divisors[-1] if divisors[-1] * times >= self.costs.least_parts else self.costs.parts // times
        total = self._parts(value, combine, whole, axis, parts)
        if rest := size % parts:
            left = reindex(value, self._shifted(axis, size - rest))
            shape = (*self.shape[:axis], rest, *self.shape[axis + 1 :])
            total = ops.binary("add" if combine == "sum" else combine, total, self._stored(left, combine, shape, self.axes))
        return total

    def _split_axes(self, axes: Sequence[int]) -> tuple[Sequence[int], int | None]:
        """The outermost axes, each of whose indices is a part of its own, and the axis inside of them that is cut up.

        So each part is as much in one place as can be: parts that lie all over the memory get in each other's way in caches.
        """
        count = 1
        for number, axis in enumerate(axes):
            if count * self.shape[axis] >= self.costs.parts:
                return axes[:number], axis
            count *= self.shape[axis]
        return (), None

    def _parts(self, value: Expr, combine: str, whole: Sequence[int], axis: int, parts: int) -> Expr:
        """The reduction by parts: those of equal length of an axis, for each index of the axes `whole`."""
        length = self.shape[axis] // parts
        ndim = len(self.shape) + 1  # the axis becomes two: the part, and the place in it
        rows = [[int(j == k + (k > axis)) for j in range(ndim)] for k in range(len(self.shape))]
        rows[axis][axis], rows[axis][axis + 1] = length, 1
        split = reindex(value, IndexMap((0,) * len(self.shape), tuple(map(tuple, rows)), ndim))
        shape = (*self.shape[:axis], parts, length, *self.shape[axis + 1 :])
        axes = tuple([k + (k >= axis) for k in self.axes if k not in whole])
        partial = self._stored(split, combine, shape, axes)
        assert isinstance(partial, Load)
        access = partial.access
        strides = access.strides[: axis + 1] + access.strides[axis + 2 :]
        of_part = Load(Access(access.buffer, access.offset, strides), partial.dtype)
        few = tuple([
            parts if k == axis else 1 if k in self.axes and k not in whole else size for k, size in enumerate(self.shape)
        ])  # fmt: skip
        return self._stored(of_part, combine, few, (*whole, axis))

    def _shifted(self, axis: int, distance: int) -> IndexMap:
        ndim = len(self.shape)
        rows = tuple([tuple([int(j == k) for j in range(ndim)]) for k in range(ndim)])
        return IndexMap(tuple([distance if k == axis else 0 for k in range(ndim)]), rows, ndim)

    # --- results ---

    def result(self, value: Expr, keepdim: bool) -> Expr:
        """A value that does not change along the reduced axes, over the index of the reduction's result."""
        ndim = len(self.shape)
        kept = [k for k in range(ndim) if keepdim or k not in self.axes]
        rows = [[int(j == k and k not in self.axes) for j in kept] for k in range(ndim)]
        return reindex(value, IndexMap((0,) * ndim, tuple(map(tuple, rows)), len(kept)))

    def position(self) -> Expr:
        """The place of an element in its row, in row-major order, as an int64."""
        total: Expr | None = None
        for axis in self.axes:
            size = ops.const(self.shape[axis], torch.int64)
            total = Index(axis) if total is None else ops.add(ops.mul(total, size), Index(axis))
        return ops.const(0, torch.int64) if total is None else total


def main_strides(value: Expr, ndim: int) -> Shape:
    """The strides of the load that moves along the most axes."""
    loads = [node.access.strides for node in walk(value) if isinstance(node, Load)]
    return max(loads, key=lambda strides: sum(s != 0 for s in strides), default=(0,) * ndim)
