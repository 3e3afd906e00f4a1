"""Rules of upsampling: elements of an image at computed indices, and sums of neighbours by their distance."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index, Load
from quickfuse.ir.loop import Access
from quickfuse.ir.values import TensorMeta, channels_last_stride

from . import ops
from .calls import made, rule
from .computed_indices import I64, at, source
from .context import Context
from .promotion import COMPUTE, is_float
from .rules import no_rule_if
from .symbolic import Tensor

F32 = torch.float32


class _Image:
    """The axes of an image, and by how much each grows."""

    def __init__(self, input: Tensor, meta: TensorMeta, scales: Any, ndim: int) -> None:
        no_rule_if(input.meta.ndim != ndim + 2 or not is_float(input.dtype) or not input.meta.numel)
        self.axes = range(2, ndim + 2)
        self.old, self.new = input.meta.shape[2:], meta.shape[2:]
        given = list(scales[0]) if len(scales) == 1 and isinstance(scales[0], (list, tuple)) else list(scales)
        given = given or [None] * ndim
        no_rule_if(len(given) != ndim or any(type(s) not in (float, int, type(None)) for s in given))
        self.scales = given
        self.last_or_small = _is_last_or_small(input.meta, self.new)
        #: Whether eager computes positions of nearest elements in 64 bits.
        self.in_double = input.dtype is torch.float64 and meta.device.type == "cpu" and not self.last_or_small
        #: What positions are computed in.
        self.dtype = COMPUTE[input.dtype]

    def ratio(self, k: int) -> float:
        """How far apart neighbours are in the old image."""
        scale = self.scales[k]
        ratio = 1 / scale if scale is not None and scale > 0 else self.old[k] / self.new[k]
        return torch.tensor(ratio, dtype=self.dtype).item()


def _is_last_or_small(meta: TensorMeta, new: tuple[int, ...]) -> bool:
    """Which of eager's two kernels for the CPU copies nearest elements: the one for images with channels last, which small
    ones go through, too. It takes an axis that stays as long as it is, or gets twice as long, for one that a scale of 1 or 2
    was given for."""
    if meta.device.type != "cpu" or len(new) == 1:
        return False
    wanted = zip(meta.stride, channels_last_stride(meta.shape), meta.shape, strict=True)
    channels_last = meta.shape[1] > 3 and all(stride == last or size == 1 for stride, last, size in wanted)
    return channels_last or (len(new) == 2 and sum(new) <= 128)


def _index_before(value: Expr, size: int) -> Expr:
    """A position rounded down, inside of an axis of `size` elements."""
    return ops.minimum(ops.via(ops.floor(value), I64), size - 1)


def _between(low: float, value: Expr, high: float) -> Expr:
    return ops.minimum(ops.maximum(value, low), high)


def _place(image: _Image, k: int, align_corners: bool) -> Expr:
    """Where a new element of an axis is in the old image, in fractions of elements."""
    old, new, here = image.old[k], image.new[k], ops.via(Index(image.axes[k]), image.dtype)
    if align_corners:
        return here * ((old - 1) / (new - 1) if new > 1 else 0.0)
    return (here + 0.5) * image.ratio(k) - 0.5


def _nearest_index(image: _Image, k: int, exact: bool) -> Expr:
    axis, old, new = image.axes[k], image.old[k], image.new[k]
    scale = None if image.last_or_small and not exact and new in (old, 2 * old) else image.scales[k]
    if old == new and scale in (None, 1):
        return Index(axis)
    factor = new // old
    if new == factor * old and scale in (None, factor):
        bits = factor.bit_length() - 1
        if factor == 1 << bits:
            return ops.shr(Index(axis), bits)
        return ops.trunc_div(Index(axis), factor)
    dtype = torch.float64 if image.in_double else F32
    place = ops.via(Index(axis), dtype)
    place = (place + 0.5 if exact else place) * torch.tensor(1 / scale if scale else old / new, dtype=dtype).item()
    if exact and image.in_double:
        place = ops.maximum(place - 0.5, 0.0) + 0.5
    return _index_before(ops.via(place, F32), old)


def _nearest(
    ndim: int, exact: bool, ctx: Context, meta: TensorMeta, input: Tensor, output_size: Any, *scales: Any
) -> Tensor:
    image = _Image(input, meta, scales, ndim)
    axes: list[int | Expr] = [0, 1, *(_nearest_index(image, k, exact) for k in range(ndim))]
    return made(ctx, meta, at(source(ctx, input), axes, ndim + 2, None))


#: The elements of an axis that each new one is computed from, with their weights; None for a weight of one.
_Neighbours = list[tuple[Expr, Expr | None]]


def _weighted(name: str, ndim: int, neighbours: Callable[[_Image, int, bool], _Neighbours], *, in_tables: bool) -> None:
    """Register a resizing by sums of neighbours along the axes, the last one first. `in_tables`: which they are, and their
    weights, is computed once for each index of an axis; otherwise only of the last axis of large images."""

    @rule(name)
    def upsample(
        ctx: Context, meta: TensorMeta, input: Tensor, output_size: Any, align_corners: bool = False, *scales: Any
    ) -> Tensor:
        image = _Image(input, meta, scales, ndim)
        value = source(ctx, input, COSTS.store_before_upsampling)
        along = [neighbours(image, k, align_corners) for k in range(ndim)]
        first = 0 if in_tables else ndim - 1 if meta.numel >= COSTS.many_neighbours else ndim
        for k in range(first, ndim):
            along[k] = [(_table(ctx, i, meta, k + 2), w if w is None else _table(ctx, w, meta, k + 2)) for i, w in along[k]]

        def summed(chosen: list[Expr]) -> Expr:
            if len(chosen) == ndim:
                return ops.via(at(value, [0, 1, *chosen], ndim + 2, None), image.dtype)
            terms = [(summed([*chosen, index]), weight) for index, weight in along[len(chosen)]]
            return functools.reduce(operator.add, [x if weight is None else x * weight for x, weight in terms])

        return made(ctx, meta, ops.via(summed([]), meta.dtype))


#: The parameter of the cubic polynomials.
_CUBIC = -0.75


def _cubic_neighbours(image: _Image, k: int, align_corners: bool) -> _Neighbours:
    """The four elements of an axis around each new one, with their weights (Keys, Cubic Convolution Interpolation, 1981)."""
    place, last = _place(image, k, align_corners), image.old[k] - 1
    first = _index_before(place, image.old[k])
    behind = _between(0.0, place - ops.via(first, image.dtype), 1.0)
    ahead = 1.0 - behind
    weights = [_far(behind + 1.0), _near(behind), _near(ahead), _far(ahead + 1.0)]
    return [(_between(0, first + n, last), weight) for n, weight in enumerate(weights, -1)]


def _near(x: Expr) -> Expr:
    """The weight at a distance of at most one."""
    return ((_CUBIC + 2) * x - (_CUBIC + 3)) * x * x + 1.0


def _far(x: Expr) -> Expr:
    """The weight at a distance from one to two."""
    return ((_CUBIC * x - 5 * _CUBIC) * x + 8 * _CUBIC) * x - 4 * _CUBIC


def _table(ctx: Context, value: Expr, meta: TensorMeta, axis: int) -> Expr:
    """A value that follows from the index of one axis alone, computed once for all others."""
    if isinstance(value, Index):
        return value
    ndim, size = len(meta.shape), meta.shape[axis]
    of_axis = at(value, [0 if k == axis else ops.const(0, I64) for k in range(ndim)], 1, None)
    kept = ctx.stored(of_axis, TensorMeta(value.dtype, (size,), (1,), meta.device))
    return Load(Access(kept.access.buffer, 0, tuple([int(k == axis) for k in range(ndim)])), value.dtype)


def _neighbours(image: _Image, k: int, align_corners: bool) -> _Neighbours:
    """The two elements of an axis between which each new one is, with their weights."""
    old = image.old[k]
    if old == image.new[k]:
        return [(Index(image.axes[k]), None)]
    place = _place(image, k, align_corners)
    place = place if align_corners else ops.maximum(place, 0.0)
    first = _index_before(place, old)
    far = _between(0.0, place - ops.via(first, image.dtype), 1.0)
    return [(first, 1.0 - far), (ops.minimum(first + 1, old - 1), far)]


for _ndim, _name in enumerate(("linear", "bilinear", "trilinear"), 1):
    rule(f"upsample_nearest{_ndim}d")(partial(_nearest, _ndim, False))
    rule(f"_upsample_nearest_exact{_ndim}d")(partial(_nearest, _ndim, True))
    _weighted(f"upsample_{_name}{_ndim}d", _ndim, _neighbours, in_tables=False)
_weighted("upsample_bicubic2d", 2, _cubic_neighbours, in_tables=True)
