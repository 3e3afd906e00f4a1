"""Gradients of averages and maxima over windows, and of repeated elements: each element of the image looks for the windows
that it is in."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import at, source, stepping
from .context import Context
from .pooling import EvenWindows, flat_index, numbers_for, size_of
from .promotion import COMPUTE, is_float
from .rules import no_rule_if
from .symbolic import Tensor

#: What is added up for a window: from the gradient of its result, its index on each axis, and whether an element is in it.
_Term = Callable[[Expr, list[Expr], Expr | None], tuple[Expr, Expr | None]]


class _Around:
    """The windows that each element of an image may be in. The gradient of the image is a sum over them."""

    def __init__(
        self, grad: Tensor, meta: TensorMeta, ndim: int, sizes: Any, strides: Any, padding: Any, most: int
    ) -> None:
        no_rule_if(not is_float(meta.dtype) or not meta.numel)
        self.grad, self.meta, self.first = grad, meta, len(meta.shape) - ndim
        no_rule_if(self.first < 1 or len(grad.meta.shape) != len(meta.shape) or not grad.meta.numel)
        self.sizes, self.padding = numbers_for(sizes, ndim), numbers_for(padding, ndim)
        self.strides = numbers_for(strides, ndim) if strides else self.sizes
        self.most = [-(-size // step) for size, step in zip(self.sizes, self.strides, strict=True)]
        no_rule_if(math.prod(self.most) > most)

    def sum(self, ctx: Context, term: _Term) -> Tensor:
        dtype, ndim = COMPUTE[self.meta.dtype], self.meta.ndim
        value = source(ctx, self.grad, 2 if math.prod(self.most) > 1 else 32)
        total: Expr = ops.const(0, dtype)  # as in eager: where all terms are -0.0, the sum is 0.0
        for place in itertools.product(*map(range, self.most)):
            windows: list[Expr] = []
            inside: Expr | None = None
            for k, (n, size, step, pad) in enumerate(zip(place, self.sizes, self.strides, self.padding, strict=True)):
                here = stepping(self.first + k, 1, pad)
                windows.append(ops.trunc_div(here, step) - n if n else ops.trunc_div(here, step))
                inside = both(inside, _is_in(windows[-1], here, n, size, step, self.grad.meta.shape[self.first + k]))
            of_window = ops.via(at(value, [*range(self.first), *windows], ndim, inside), dtype)
            added, counts = term(of_window, windows, inside)
            total = total + (added if counts is None else ops.where(counts, added, 0))
        return made(ctx, self.meta, ops.via(total, self.meta.dtype))


def _avg_pool(
    ndim: int, ctx: Context, meta: TensorMeta, grad_output: Tensor, input: Tensor, kernel_size: Any, stride: Any = None,
    padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    around = _Around(grad_output, meta, ndim, kernel_size, stride, padding, COSTS.most_window_elements)
    dtype, geometry = COMPUTE[meta.dtype], (around.sizes, around.strides, around.padding)
    image, counts = meta.shape[around.first :], grad_output.meta.shape[around.first :]

    def term(value: Expr, windows: list[Expr], inside: Expr | None) -> tuple[Expr, Expr | None]:
        if divisor_override is not None:
            return value / divisor_override, inside
        begins = [window * step - pad for window, step, pad in zip(windows, around.strides, around.padding, strict=True)]
        return value / size_of(begins, image, counts, *geometry, count_include_pad, dtype), inside

    return around.sum(ctx, term)


def max_pool_gathered(
    ctx: Context, meta: TensorMeta, grad: Any, indices: Any, ndim: int, sizes: Any, strides: Any, padding: Any, dilation: Any
) -> Tensor:
    """The gradient of maxima: the sum over those windows whose largest element, by its index in the plane, is this one.

    Raises:
        NoRule: for windows with gaps, and for elements in many windows.
    """
    around = _Around(grad, meta, ndim, sizes, strides, padding, COSTS.most_gathered)
    no_rule_if({*numbers_for(dilation, ndim)} != {1})
    chosen, first = source(ctx, indices), around.first
    own = flat_index([Index(axis) for axis in range(first, meta.ndim)], meta.shape[first:])

    def term(value: Expr, windows: list[Expr], inside: Expr | None) -> tuple[Expr, Expr | None]:
        is_largest = ops.eq(at(chosen, [*range(first), *windows], meta.ndim, inside), own)
        return value, both(inside, is_largest)

    return around.sum(ctx, term)


def with_zeros_between(ctx: Context, meta: TensorMeta, grad: Tensor, strides: Any) -> Tensor:
    """The gradient of an image of which every other pixel was read."""
    return _Around(grad, meta, 2, 1, strides, 0, 1).sum(ctx, lambda value, windows, inside: (value, inside))


def _is_in(window: Expr, here: Expr, n: int, size: int, step: int, count: int) -> Expr:
    """Whether the window before last by `n` that begins at or before an element is one that the element is in."""
    inside = (window >= 0) & (window < count) if n else window < count
    return inside & (here - window * step < size) if (n + 1) * step > size else inside


def _adaptive_avg_pool(ndim: int, ctx: Context, meta: TensorMeta, grad_output: Tensor, input: Tensor) -> Tensor:
    _Around(grad_output, meta, ndim, 1, 1, 0, 1)  # which sees whether they are images
    return _avg_pool(ndim, ctx, meta, grad_output, input, _factors(meta, grad_output.meta, ndim))


def _nearest(
    ndim: int, ctx: Context, meta: TensorMeta, grad_output: Tensor, output_size: Any, input_size: Any, *scales: Any
) -> Tensor:
    _Around(grad_output, meta, ndim, 1, 1, 0, 1)
    factors = _factors(grad_output.meta, meta, ndim)
    no_rule_if(any(scale not in (None, factor) for factor, scale in zip(factors, scales or [None] * ndim, strict=True)))
    windows = EvenWindows(ctx, grad_output, meta, factors, None, 0, 1, ndim)
    return made(ctx, meta, ops.via(windows.sum(COMPUTE[meta.dtype]), meta.dtype))


def _factors(large: TensorMeta, small: TensorMeta, ndim: int) -> list[int]:
    """How many times as large an image is along each axis, where that is a whole number."""
    pairs = list(zip(large.shape[-ndim:], small.shape[-ndim:], strict=True))
    no_rule_if(any(one % other for one, other in pairs))
    return [one // other for one, other in pairs]


for _ndim in (1, 2, 3):
    rule(f"avg_pool{_ndim}d_backward")(partial(_avg_pool, _ndim))
    rule(f"_adaptive_avg_pool{_ndim}d_backward")(partial(_adaptive_avg_pool, _ndim))
    rule(f"upsample_nearest{_ndim}d_backward")(partial(_nearest, _ndim))
