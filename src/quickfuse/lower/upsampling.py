"""Rules of upsampling: elements of an image at computed indices, and sums of neighbours by their distance."""

from __future__ import annotations

from typing import Any

import torch

from quickfuse.ir.expr import Expr, Index
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
        axes = [k if isinstance(axis, Index) else axis for k, axis in enumerate(axes)]
        return made(ctx, meta, at(source(ctx, input), axes, ndim + 2, None))


for _ndim in (1, 2, 3):
    _nearest(f"upsample_nearest{_ndim}d", _ndim, exact=False)
    _nearest(f"_upsample_nearest_exact{_ndim}d", _ndim, exact=True)
