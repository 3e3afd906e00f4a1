"""The index space of a reduction: how a value over a tensor's index becomes one number for each row.

Reduced values are loads from temporaries, over the same index but unchanging along the reduced axes, so that formulas can
use them beside the elements:

    rows = Space(ctx, shape, axes)
    centred = x - rows.mean(x)

Whether a temporary is real memory is decided when loops are fused.
"""

from __future__ import annotations

import math

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
            value = value.args[0]
        if len(self.axes) != 1 or not (isinstance(value, Op) and value.name == "where"):
            return None
        condition, there, elsewhere = value.args
        place, others = self._place_in(condition)
        if place is None or self._moves(there) or not (isinstance(elsewhere, Const) and elsewhere.value == 0):
            return None
        inside = (place >= 0) & (place < self.shape[self.axes[0]])
        for other in others:
            inside = inside & other
        term = ops.where(inside, there, elsewhere)
        for dtype in reversed(casts):
            term = ops.via(term, dtype)
        return term + 0  # sums begin with 0.0: -0.0 becomes 0.0

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
        return self.sum(value) / self.number_of_elements(self.wide(value.dtype))

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
            return value + 0 if is_sum else value
        key = (id(value), combine, self.shape, self.axes)
        known = self.ctx.reduced.get(key)
        if known is None:
            shape = self._without_repeats(value)
            kept = tuple([1 if k in self.axes else size for k, size in enumerate(shape)])
            stride = tuple([0 if n == 1 else s for n, s in zip(kept, contiguous_stride(kept), strict=True)])
            temp = self.ctx.temp(TensorMeta.dense(value.dtype, kept, self.device))
            access = Access(temp, 0, stride)
            self.ctx.program.steps.append(Loop(shape, [Store(access, value, StoreKind.REDUCE, combine)], self.device))
            known = self.ctx.reduced[key] = (value, Load(access, value.dtype))
        return known[1]

    def _without_repeats(self, value: Expr) -> Shape:
        """The shape with one of equal rows: norms of `x[:, None]` and `y[None]` over all pairs are those of x and of y."""
        if len(self.shape) < 2 or math.prod(self.shape) < costs_on(self.device).least_hoisted_from:
            return self.shape
        changing = set(self.axes)
        for node in walk(value):
            if isinstance(node, Index):
                changing.add(node.axis)
            elif isinstance(node, (Load, Place)):
                changing.update([k for k, stride in enumerate(node.access.strides) if stride])
        return tuple([size if k in changing else 1 for k, size in enumerate(self.shape)])

    def reduce_part(self, value: Expr, combine: str) -> Expr:
        """As `reduce`, for what is a part of longer rows: it is not cut once more."""
        load = self.reduce(value, combine)
        if isinstance(load, Load) and load.access.buffer.kind == "temp":
            self.ctx.program.parts.add(load.access.buffer)
        return load

    # --- results ---

    def result(self, value: Expr, keepdim: bool) -> Expr:
        """A value that does not change along the reduced axes, over the index of the reduction's result."""
        ndim = len(self.shape)
        kept = [k for k in range(ndim) if keepdim or k not in self.axes]
        axes = [None if k in self.axes else kept.index(k) for k in range(ndim)]
        return reindex(value, IndexMap.along(axes, len(kept)))

    def position(self) -> Expr:
        """The place of an element in its row, in row-major order, as an int64."""
        total: Expr | None = None
        for axis in self.axes:
            total = Index(axis) if total is None else total * self.shape[axis] + Index(axis)
        return ops.const(0, torch.int64) if total is None else total
