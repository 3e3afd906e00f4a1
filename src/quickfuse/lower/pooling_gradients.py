"""Gradients of averages and maxima over windows, and of repeated elements: each element of the image looks for the windows
that it is in."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import affine, both
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, at, source
from .context import Context
from .pooling import Windows, numbers_for, part_within, sum_of
from .promotion import COMPUTE, is_float
from .rules import NoRule
from .symbolic import Tensor


def _image(grad: Any, meta: Any, ndim: int) -> int:
    """The first axis of the image."""
    if type(grad) is not Tensor or type(meta) is not TensorMeta or not is_float(meta.dtype) or not meta.numel:
        raise NoRule
    first = len(meta.shape) - ndim
    if first < 1 or len(grad.meta.shape) != len(meta.shape) or not grad.meta.numel:
        raise NoRule
    return first


def _avg_pool(
    ctx: Context, meta: Any, *, ndim: int, grad_output: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    count_include_pad: Any = True, divisor_override: Any = None, **others: Any,
) -> Tensor:  # fmt: skip
    grad, divisor = grad_output, divisor_override
    first = _image(grad, meta, ndim)
    sizes, padding = numbers_for(kernel_size, ndim), numbers_for(padding, ndim)
    strides = numbers_for(stride, ndim) if stride else sizes
    most = [-(-size // step) for size, step in zip(sizes, strides, strict=True)]
    if math.prod(most) > COSTS.most_window_elements or type(divisor) not in (int, type(None)):
        raise NoRule
    dtype, shape = COMPUTE[meta.dtype], grad.meta.shape
    value = source(ctx, grad, 2 if math.prod(most) > 1 else 32)
    total: Expr = ops.const(0, dtype)  # as in eager: where all terms are -0.0, the sum is 0.0
    for place in itertools.product(*map(range, most)):
        axes: list[int | Expr] = list(range(first))
        inside, fixed, varying = None, 1, None
        for k, n in enumerate(place):
            axis, size, step, pad = first + k, sizes[k], strides[k], padding[k]
            here = affine(pad, tuple([int(j == axis) for j in range(len(shape))]))
            window = ops.trunc_div(here, ops.const(step, I64))
            window = ops.sub(window, ops.const(n, I64)) if n else window
            axes.append(window)
            inside = both(inside, _is_in(window, here, n, size, step, shape[axis]))
            low, high = (-pad, meta.shape[axis] + pad) if count_include_pad else (0, meta.shape[axis])
            if -pad >= low and (shape[axis] - 1) * step - pad + size <= high:
                fixed *= size
                continue
            length = part_within(ops.sub(ops.mul(window, ops.const(step, I64)), ops.const(pad, I64)), size, low, high)
            varying = length if varying is None else ops.mul(varying, length)
        count = ops.const(fixed if divisor is None else divisor, dtype)
        if varying is not None and divisor is None:
            count = ops.mul(count, ops.via(varying, dtype))
        term = ops.div(ops.via(at(value, axes, len(shape), inside), dtype), count)
        term = ops.where(inside, term, ops.const(0, dtype)) if inside is not None else term
        total = ops.add(total, term)
    return made(ctx, meta, ops.via(total, meta.dtype))


def max_pool_gathered(
    ctx: Context, meta: TensorMeta, grad: Any, indices: Any, ndim: int, sizes: Any, strides: Any, padding: Any, dilation: Any
) -> Tensor:
    """The gradient of maxima: the sum over those windows whose largest element, by its index in the plane, is this one.

    Raises:
        NoRule: for windows with gaps, and for elements in many windows.
    """
    first = _image(grad, meta, ndim)
    sizes, padding = numbers_for(sizes, ndim), numbers_for(padding, ndim)
    strides = numbers_for(strides, ndim) if strides else sizes
    most = [-(-size // step) for size, step in zip(sizes, strides, strict=True)]
    if math.prod(most) > COSTS.most_gathered or {*numbers_for(dilation, ndim)} != {1}:
        raise NoRule
    dtype, shape, axes_of_image = COMPUTE[meta.dtype], grad.meta.shape, range(first, len(meta.shape))
    value, chosen = source(ctx, grad, 2 if math.prod(most) > 1 else 32), source(ctx, indices)
    own: Expr = ops.const(0, I64)
    for axis in axes_of_image:
        own = ops.add(ops.mul(own, ops.const(meta.shape[axis], I64)), Index(axis))
    total: Expr = ops.const(0, dtype)
    for place in itertools.product(*map(range, most)):
        axes: list[int | Expr] = list(range(first))
        inside: Expr | None = None
        for axis, n, size, step, pad in zip(axes_of_image, place, sizes, strides, padding, strict=True):
            here = affine(pad, tuple([int(j == axis) for j in range(len(shape))]))
            window = ops.trunc_div(here, ops.const(step, I64))
            window = ops.sub(window, ops.const(n, I64)) if n else window
            axes.append(window)
            inside = both(inside, _is_in(window, here, n, size, step, shape[axis]))
        is_largest = ops.eq(at(chosen, axes, len(shape), inside), own)
        term = ops.via(at(value, axes, len(shape), inside), dtype)
        total = ops.add(total, ops.where(both(inside, is_largest), term, ops.const(0, dtype)))
    return made(ctx, meta, ops.via(total, meta.dtype))


def _is_in(window: Expr, here: Expr, n: int, size: int, step: int, count: int) -> Expr:
    """Whether the window before last by `n` that begins at or before an element is one that the element is in."""
    inside = ops.lt(window, ops.const(count, I64))
    if n:
        inside = ops.bit_and(ops.ge(window, ops.const(0, I64)), inside)
    if (n + 1) * step > size:
        away = ops.sub(here, ops.mul(window, ops.const(step, I64)))
        inside = ops.bit_and(inside, ops.lt(away, ops.const(size, I64)))
    return inside


def _adaptive_avg_pool(ctx: Context, meta: Any, *, ndim: int, grad_output: Any, input: Any) -> Tensor:
    first = _image(grad_output, meta, ndim)
    pairs = list(zip(meta.shape[first:], grad_output.meta.shape[first:], strict=True))
    if all(small == 1 for _, small in pairs):
        axes: list[int | Expr] = [k if k < first else ops.const(0, I64) for k in range(len(meta.shape))]
        dtype = COMPUTE[meta.dtype]
        value = ops.via(at(source(ctx, grad_output), axes, len(meta.shape), None), dtype)
        count = ops.const(math.prod(large for large, _ in pairs), dtype)
        return made(ctx, meta, ops.via(ops.div(value, count), meta.dtype))
    if any(large % small for large, small in pairs):
        raise NoRule
    return _avg_pool(ctx, meta, ndim=ndim, grad_output=grad_output, kernel_size=[large // small for large, small in pairs])


def _nearest(ctx: Context, meta: Any, *, ndim: int, grad_output: Any, scales: Any, **others: Any) -> Tensor:
    first = _image(grad_output, meta, ndim)
    pairs = list(zip(grad_output.meta.shape[first:], meta.shape[first:], strict=True))
    factors = [large // small for large, small in pairs]
    given = list(scales) or [None] * ndim
    for (large, small), factor, scale in zip(pairs, factors, given, strict=True):
        if large != small * factor or scale not in (None, factor):
            raise NoRule
    windows = Windows(ctx, grad_output, meta, factors, None, 0, 1, ndim)
    return made(ctx, meta, ops.via(sum_of(windows, COMPUTE[meta.dtype]), meta.dtype))


for _ndim in (1, 2, 3):
    rule(f"avg_pool{_ndim}d_backward",
         "grad_output input kernel_size stride padding ceil_mode count_include_pad divisor_override")(
        partial(_avg_pool, ndim=_ndim))  # fmt: skip
    rule(f"_adaptive_avg_pool{_ndim}d_backward", "grad_output input")(partial(_adaptive_avg_pool, ndim=_ndim))
    rule(f"upsample_nearest{_ndim}d_backward", "grad_output output_size input_size *scales")(partial(_nearest, ndim=_ndim))
