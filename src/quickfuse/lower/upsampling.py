"""Rules of upsampling: elements of an image at computed indices, and sums of neighbours by their distance."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index, Load
from quickfuse.ir.loop import Access
from quickfuse.ir.reindex import IndexMap, reindex
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, at, source
from .context import Context
from .promotion import COMPUTE, is_float
from .rules import NoRule
from .symbolic import Tensor

F32 = torch.float32


class _Image:
    """The axes of an image, and by how much each grows."""

    def __init__(self, input: Any, meta: Any, output_size: Any, scales: Any, ndim: int) -> None:
        if type(input) is not Tensor or type(meta) is not TensorMeta or len(input.meta.shape) != ndim + 2:
            raise NoRule
        if not is_float(input.dtype) or not input.meta.numel:
            raise NoRule
        self.axes = range(2, ndim + 2)
        self.old, self.new = input.meta.shape[2:], meta.shape[2:]
        given = list(scales[0]) if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else list(scales)
        given = given or [None] * ndim
        if len(given) != ndim or any(type(s) not in (float, int, type(None)) for s in given):
            raise NoRule
        self.scales = given
        #: What positions are computed in.
        self.dtype = COMPUTE[input.dtype]

    def ratio(self, k: int) -> float:
        """How far apart neighbours are in the old image."""
        scale = self.scales[k]
        ratio = 1 / scale if scale is not None and scale > 0 else self.old[k] / self.new[k]
        return torch.tensor(ratio, dtype=self.dtype).item()


def _index_before(value: Expr, size: int) -> Expr:
    """A position rounded down, inside of an axis of `size` elements."""
    return ops.minimum(ops.via(ops.floor(value), I64), ops.const(size - 1, I64))


def _place(image: _Image, k: int, align_corners: bool) -> Expr:
    """Where a new element of an axis is in the old image, in fractions of elements."""
    old, new, dtype = image.old[k], image.new[k], image.dtype
    here, half = ops.via(Index(image.axes[k]), dtype), ops.const(0.5, dtype)
    if align_corners:
        return ops.mul(here, ops.const((old - 1) / (new - 1) if new > 1 else 0.0, dtype))
    return ops.sub(ops.mul(ops.add(here, half), ops.const(image.ratio(k), dtype)), half)


def _nearest_index(image: _Image, k: int, exact: bool) -> Expr:
    axis, old, new = image.axes[k], image.old[k], image.new[k]
    if old == new and image.scales[k] in (None, 1):
        return Index(axis)
    factor = new // old
    if new == factor * old and image.scales[k] in (None, factor):
        halves = factor.bit_length() - 1
        if factor == 1 << halves:
            return ops.shr(Index(axis), ops.const(halves, I64))
        return ops.trunc_div(Index(axis), ops.const(factor, I64))
    place = ops.via(Index(axis), F32)
    if exact:
        place = ops.add(place, ops.const(0.5, F32))
    ratio = torch.tensor(1 / image.scales[k] if image.scales[k] else old / new, dtype=F32).item()
    return _index_before(ops.mul(place, ops.const(ratio, F32)), old)


def _nearest(name: str, ndim: int, exact: bool) -> None:
    @rule(name, "input output_size *scales")
    def upsample(ctx: Context, meta: Any, input: Any, output_size: Any, scales: Any) -> Tensor:
        image = _Image(input, meta, output_size, scales, ndim)
        axes: list[int | Expr] = [0, 1, *(_nearest_index(image, k, exact) for k in range(ndim))]
        return made(ctx, meta, at(source(ctx, input), axes, ndim + 2, None))


def _linear(name: str, ndim: int) -> None:
    @rule(name, "input output_size align_corners=False *scales")
    def upsample(ctx: Context, meta: Any, input: Any, output_size: Any, align_corners: Any, scales: Any) -> Tensor:
        if type(align_corners) is not bool:
            raise NoRule
        image = _Image(input, meta, output_size, scales, ndim)
        value = source(ctx, input, COSTS.store_before_upsampling)
        neighbours = [_neighbours(image, k, align_corners) for k in range(ndim)]
        if meta.numel >= COSTS.many_neighbours:
            neighbours[-1] = [
                (_table(ctx, index, meta, ndim + 1), None if weight is None else _table(ctx, weight, meta, ndim + 1))
                for index, weight in neighbours[-1]
            ]
        terms = []
        for chosen in itertools.product(*neighbours):
            axes: list[int | Expr] = [0, 1, *(k + 2 if isinstance(i, Index) else i for k, (i, _) in enumerate(chosen))]
            term = ops.via(at(value, axes, ndim + 2, None), image.dtype)
            for _, weight in chosen:
                term = term if weight is None else ops.mul(term, weight)
            terms.append(term)
        return made(ctx, meta, ops.via(functools.reduce(ops.add, terms), meta.dtype))


def _cubic(name: str) -> None:
    @rule(name, "input output_size align_corners=False *scales")
    def upsample(ctx: Context, meta: Any, input: Any, output_size: Any, align_corners: Any, scales: Any) -> Tensor:
        if type(align_corners) is not bool:
            raise NoRule
        image = _Image(input, meta, output_size, scales, 2)
        value = source(ctx, input, COSTS.store_before_upsampling)
        rows, columns = (
            [
                (_table(ctx, index, meta, k + 2), _table(ctx, weight, meta, k + 2))
                for index, weight in _cubic_neighbours(image, k, align_corners)
            ]
            for k in range(2)
        )  # fmt: skip
        of_rows = []
        for row, weight in rows:
            elements = [ops.via(at(value, [0, 1, row, column], 4, None), image.dtype) for column, _ in columns]
            terms = [ops.mul(element, factor) for element, (_, factor) in zip(elements, columns, strict=True)]
            of_rows.append(ops.mul(functools.reduce(ops.add, terms), weight))
        return made(ctx, meta, ops.via(functools.reduce(ops.add, of_rows), meta.dtype))


#: The parameter of the cubic polynomials.
_CUBIC = -0.75


def _cubic_neighbours(image: _Image, k: int, align_corners: bool) -> list[tuple[Expr, Expr]]:
    """The four elements of an axis around each new one, with their weights (Keys, Cubic Convolution Interpolation, 1981)."""
    old, dtype = image.old[k], image.dtype
    place = _place(image, k, align_corners)
    first = _index_before(place, old)
    zero, one = ops.const(0.0, dtype), ops.const(1.0, dtype)
    behind = ops.minimum(ops.maximum(ops.sub(place, ops.via(first, dtype)), zero), one)
    ahead = ops.sub(one, behind)
    weights = [_far(ops.add(behind, one)), _near(behind), _near(ahead), _far(ops.add(ahead, one))]
    last = ops.const(old - 1, I64)
    places = [ops.maximum(ops.minimum(ops.add(first, ops.const(n, I64)), last), ops.const(0, I64)) for n in range(-1, 3)]
    return [*zip(places, weights, strict=True)]


def _near(x: Expr) -> Expr:
    """The weight at a distance of at most one: ((A + 2) x - (A + 3)) x^2 + 1."""
    inner = ops.sub(ops.mul(ops.like(x, _CUBIC + 2), x), ops.like(x, _CUBIC + 3))
    return ops.add(ops.mul(ops.mul(inner, x), x), ops.like(x, 1.0))


def _far(x: Expr) -> Expr:
    """The weight at a distance from one to two: ((A x - 5 A) x + 8 A) x - 4 A."""
    inner = ops.sub(ops.mul(ops.like(x, _CUBIC), x), ops.like(x, 5 * _CUBIC))
    outer = ops.add(ops.mul(inner, x), ops.like(x, 8 * _CUBIC))
    return ops.sub(ops.mul(outer, x), ops.like(x, 4 * _CUBIC))


def _table(ctx: Context, value: Expr, meta: TensorMeta, axis: int) -> Expr:
    """A value that follows from the index of one axis alone, computed once for all others."""
    if isinstance(value, Index):
        return value
    ndim, size = len(meta.shape), meta.shape[axis]
    of_axis = IndexMap((0,) * ndim, tuple([(int(k == axis),) for k in range(ndim)]), 1)
    kept = ctx.stored(reindex(value, of_axis), TensorMeta(value.dtype, (size,), (1,), meta.device))
    return Load(Access(kept.access.buffer, 0, tuple([int(k == axis) for k in range(ndim)])), value.dtype)


def _neighbours(image: _Image, k: int, align_corners: bool) -> list[tuple[Expr, Expr | None]]:
    """The two elements of an axis between which each new one is, with their weights."""
    axis, old, new, dtype = image.axes[k], image.old[k], image.new[k], image.dtype
    if old == new:
        return [(Index(axis), None)]
    place = _place(image, k, align_corners)
    if not align_corners:
        place = ops.maximum(place, ops.const(0.0, dtype))
    first = _index_before(place, old)
    second = ops.minimum(ops.add(first, ops.const(1, I64)), ops.const(old - 1, I64))
    far = ops.minimum(ops.maximum(ops.sub(place, ops.via(first, dtype)), ops.const(0.0, dtype)), ops.const(1.0, dtype))
    return [(first, ops.sub(ops.const(1.0, dtype), far)), (second, far)]


for _ndim, _name in enumerate(("linear", "bilinear", "trilinear"), 1):
    _nearest(f"upsample_nearest{_ndim}d", _ndim, exact=False)
    _nearest(f"_upsample_nearest_exact{_ndim}d", _ndim, exact=True)
    _linear(f"upsample_{_name}{_ndim}d", _ndim)
_cubic("upsample_bicubic2d")
