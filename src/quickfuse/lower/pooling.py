"""Rules of pooling: reductions over small windows of an image, written out element by element of the window.

Windows of many elements are reductions in a loop, as are those that cover the whole image.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.loop import identity
from quickfuse.ir.reindex import IndexMap, affine, both, select
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, at, source
from .context import Context
from .layout import Shape
from .promotion import COMPUTE, is_float
from .reductions import mean
from .rules import NoRule
from .symbolic import Tensor


class Windows:
    """The windows of an image (the last axes of a tensor), one for each element of the result."""

    def __init__(
        self, ctx: Context, input: Any, meta: Any, sizes: Any, strides: Any, padding: Any, dilation: Any, ndim: int
    ) -> None:
        if type(input) is not Tensor or type(meta) is not TensorMeta or not input.meta.numel or not meta.numel:
            raise NoRule
        self.shape, self.result, self.ndim = input.meta.shape, meta.shape, len(meta.shape)
        self.first = len(self.shape) - ndim  # the first axis of the image
        if self.first < 1 or self.ndim != len(self.shape):
            raise NoRule
        self.sizes = numbers_for(sizes, ndim)
        self.strides = numbers_for(strides, ndim) if strides is not None and strides != [] else self.sizes
        self.padding, self.dilation = numbers_for(padding, ndim), numbers_for(dilation, ndim)
        if math.prod(self.sizes) > COSTS.most_window_elements:
            raise NoRule
        tiles = self.strides == self.sizes
        self.value = source(ctx, input, COSTS.store_before_tiles if tiles else COSTS.store_before_windows)

    def elements(self) -> Iterator[tuple[Expr, Expr | None, tuple[int, ...]]]:
        """For each place in a window: the element, where it is inside the image (None: everywhere), and the place."""
        for place in itertools.product(*map(range, self.sizes)):
            constants, rows = [0] * self.ndim, [[int(j == k) for j in range(self.ndim)] for k in range(self.ndim)]
            inside: Expr | None = None
            for k, (axis, begin) in enumerate(self.begins(place)):
                step, last = self.strides[k], begin + self.strides[k] * (self.result[axis] - 1)
                constants[axis], rows[axis][axis] = begin, step
                index = affine(begin, tuple(rows[axis]))
                if begin < 0:
                    inside = both(inside, ops.ge(index, ops.const(0, I64)))
                if last >= self.shape[axis]:
                    inside = both(inside, ops.lt(index, ops.const(self.shape[axis], I64)))
            index_map = IndexMap(tuple(constants), tuple(map(tuple, rows)), self.ndim)
            yield select(self.value, index_map, {}, inside), inside, place

    def elements_or(self, outside: Any, dtype: torch.dtype) -> Iterator[Expr]:
        """The elements of a window, with what counts as one outside of the image."""
        for element, inside, _ in self.elements():
            element = ops.via(element, dtype)
            yield element if inside is None else ops.where(inside, element, ops.const(outside, dtype))

    def begins(self, place: tuple[int, ...]) -> list[tuple[int, int]]:
        """The image's axes, with the index of a place of the first window."""
        return [(self.first + k, n * self.dilation[k] - self.padding[k]) for k, n in enumerate(place)]

    def position(self, place: tuple[int, ...]) -> Expr:
        """The index of an element in the flat image."""
        indices = []
        for k, (axis, begin) in enumerate(self.begins(place)):
            indices.append(affine(begin, tuple([self.strides[k] * (j == axis) for j in range(self.ndim)])))
        return flat_index(indices, self.shape[self.first :])

    def first_position(self) -> Expr:
        """The index of a window's first element that is inside the image."""
        indices = []
        for k, (axis, begin) in enumerate(self.begins((0,) * len(self.sizes))):
            index = affine(begin, tuple([self.strides[k] * (j == axis) for j in range(self.ndim)]))
            if begin < 0:
                step = self.dilation[k]
                missing = ops.maximum(ops.sub(ops.const(step - 1, I64), index), ops.const(0, I64))
                skipped = ops.mul(ops.trunc_div(missing, ops.const(step, I64)), ops.const(step, I64))
                index = ops.add(index, skipped)
            indices.append(index)
        return flat_index(indices, self.shape[self.first :])


def flat_index(indices: list[Expr], sizes: Shape) -> Expr:
    """The index of an element in a flat image with axes of these sizes."""
    total = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        total = ops.add(ops.mul(total, ops.const(size, I64)), index)
    return total


def numbers_for(value: Any, ndim: int) -> tuple[int, ...]:
    """A parameter that is one number for each axis of the image, or one for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = values * ndim if len(values) == 1 else values
    if len(values) != ndim or any(type(n) is not int for n in values):
        raise NoRule
    return tuple(values)


# --- maxima ---


def _max_pool(
    ctx: Context, meta: Any, *, ndim: int, input: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, return_indices: Any = False, **others: Any,
) -> Any:  # fmt: skip
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    if bool(return_indices) != (len(metas) == 2):
        raise NoRule
    windows = Windows(ctx, input, metas[0], kernel_size, stride, padding, dilation, ndim)
    dtype = COMPUTE[input.dtype]
    if not return_indices:
        best = functools.reduce(ops.maximum, windows.elements_or(identity("maximum", dtype), dtype))
        return _kept(ctx, made(ctx, meta, ops.via(best, meta.dtype)))
    elements = ((element, inside, windows.position(place)) for element, inside, place in windows.elements())
    best, found = _best_with_index(elements, windows.first_position(), dtype)
    return [_kept(ctx, made(ctx, metas[0], ops.via(best, metas[0].dtype))), _kept(ctx, made(ctx, metas[1], found))]


def _best_with_index(
    elements: Iterable[tuple[Expr, Expr | None, Expr]], first: Expr, dtype: torch.dtype
) -> tuple[Expr, Expr]:
    """The greatest of some elements and its index: `first` if there is none that is greater than -infinity. Each comes
    with where it takes part (None: everywhere) and its index."""
    best, found = ops.const(identity("maximum", dtype), dtype), first
    for element, inside, index in elements:
        element = ops.via(element, dtype)
        better = ops.gt(element, best)
        if is_float(dtype):
            better = ops.bit_or(better, ops.isnan(element))
        better = both(inside, better)  # type: ignore[assignment]
        best, found = ops.where(better, element, best), ops.where(better, index, found)
    return best, found


def _kept(ctx: Context, result: Tensor) -> Tensor:
    """A result that is stored before it is used, for it is read from many elements: users would each read all of them."""
    ctx.materialize(result.storage)
    return result


# --- averages ---


def _avg_pool(
    ctx: Context, meta: Any, *, ndim: int, input: Any, kernel_size: Any, stride: Any, padding: Any, count_include_pad: Any,
    divisor_override: Any, **others: Any,
) -> Tensor:  # fmt: skip
    if type(input) is not Tensor or not is_float(input.dtype) or type(divisor_override) not in (int, type(None)):
        raise NoRule
    windows = Windows(ctx, input, meta, kernel_size, stride, padding, 1, ndim)
    dtype = COMPUTE[input.dtype]
    total = sum_of(windows, dtype)
    if divisor_override is not None:
        count: Expr = ops.const(divisor_override, dtype)
    else:
        count = _count(windows, dtype, bool(count_include_pad))
    return _kept(ctx, made(ctx, meta, ops.via(ops.div(total, count), meta.dtype)))


def sum_of(windows: Windows, dtype: torch.dtype) -> Expr:
    """Eager begins with 0.0: where all elements are -0.0, the sum is 0.0."""
    return functools.reduce(ops.add, windows.elements_or(0, dtype), ops.const(0, dtype))


def _count(windows: Windows, dtype: torch.dtype, with_padding: bool) -> Expr:
    """How many elements a window has: those beyond the padding never count."""
    fixed, varying = 1, None
    for k, size in enumerate(windows.sizes):
        axis, pad, step = windows.first + k, windows.padding[k], windows.strides[k]
        low, high = (-pad, windows.shape[axis] + pad) if with_padding else (0, windows.shape[axis])
        if -pad >= low and (windows.result[axis] - 1) * step - pad + size <= high:
            fixed *= size
            continue
        length = part_within(affine(-pad, tuple([step * (j == axis) for j in range(windows.ndim)])), size, low, high)
        varying = length if varying is None else ops.mul(varying, length)
    if varying is None:
        return ops.const(fixed, dtype)
    return ops.via(ops.mul(varying, ops.const(fixed, I64)), dtype)


def part_within(begin: Expr, size: int, low: int, high: int) -> Expr:
    """How many of `size` indices from `begin` on are in a range."""
    end = ops.minimum(ops.add(begin, ops.const(size, I64)), ops.const(high, I64))
    return ops.sub(end, ops.maximum(begin, ops.const(low, I64)))


def _adaptive_avg_pool(ctx: Context, meta: Any, *, ndim: int, input: Any, output_size: Any) -> Tensor:
    if type(input) is not Tensor or type(meta) is not TensorMeta or not is_float(input.dtype) or not input.meta.numel:
        raise NoRule
    shape = input.meta.shape
    first = len(shape) - ndim
    if first < 1 or len(meta.shape) != len(shape):
        raise NoRule
    pairs = list(zip(shape[first:], meta.shape[first:], strict=True))
    if all(small == 1 for _, small in pairs):
        return mean(ctx, meta, input, list(range(first, len(shape))), True, None)
    if all(large % small == 0 for large, small in pairs):
        windows = Windows(ctx, input, meta, [large // small for large, small in pairs], None, 0, 1, ndim)
        dtype = COMPUTE[input.dtype]
        total = ops.div(sum_of(windows, dtype), ops.const(math.prod(windows.sizes), dtype))
        return made(ctx, meta, ops.via(total, meta.dtype))
    return _uneven_average(ctx, meta, input, first)


class _Uneven:
    """Windows from `floor(i * large / small)` to `ceil((i + 1) * large / small)`."""

    def __init__(self, ctx: Context, input: Tensor, meta: TensorMeta, first: int) -> None:
        shape, self.ndim, self.first = input.meta.shape, len(meta.shape), first
        self.image = shape[first:]
        self.begins: list[Expr] = []
        self.lengths: list[Expr] = []
        self.most = []
        for axis in range(first, self.ndim):
            large, small = ops.const(shape[axis], I64), ops.const(meta.shape[axis], I64)
            begin = ops.trunc_div(ops.mul(Index(axis), large), small)
            end = ops.mul(ops.add(Index(axis), ops.const(1, I64)), large)
            end = ops.trunc_div(ops.add(end, ops.const(meta.shape[axis] - 1, I64)), small)
            self.begins.append(begin)
            self.lengths.append(ops.sub(end, begin))
            self.most.append(max(-(-(i + 1) * shape[axis] // meta.shape[axis]) - i * shape[axis] // meta.shape[axis]
                                 for i in range(meta.shape[axis])))  # fmt: skip
        if math.prod(self.most) > COSTS.most_window_elements:
            raise NoRule
        self.value = source(ctx, input, COSTS.store_before_windows)

    def elements(self) -> Iterator[tuple[Expr, Expr | None, list[Expr]]]:
        """For each place in a window: the element, whether the window has it (None: always), and its index in the image."""
        for place in itertools.product(*map(range, self.most)):
            indices: list[Expr] = []
            inside: Expr | None = None
            for n, begin, length in zip(place, self.begins, self.lengths, strict=True):
                indices.append(ops.add(begin, ops.const(n, I64)))
                inside = both(inside, ops.lt(ops.const(n, I64), length)) if n else inside
            yield at(self.value, [*range(self.first), *indices], self.ndim, inside), inside, indices

    def flat(self, indices: list[Expr]) -> Expr:
        """The index of an element in the flat image."""
        return flat_index(indices, self.image)


def _uneven_average(ctx: Context, meta: TensorMeta, input: Tensor, first: int) -> Tensor:
    dtype, windows = COMPUTE[input.dtype], _Uneven(ctx, input, meta, first)
    total: Expr = ops.const(0, dtype)
    for element, inside, _ in windows.elements():
        element = ops.via(element, dtype)
        total = ops.add(total, element if inside is None else ops.where(inside, element, ops.const(0, dtype)))
    for length in windows.lengths:
        total = ops.div(total, ops.via(length, dtype))
    return made(ctx, meta, ops.via(total, meta.dtype))


def _adaptive_max_pool(ctx: Context, meta: Any, *, ndim: int, input: Any, output_size: Any) -> Any:
    metas = list(meta) if isinstance(meta, (list, tuple)) else [meta]
    if type(input) is not Tensor or type(metas[0]) is not TensorMeta or not input.meta.numel or not metas[0].numel:
        raise NoRule
    shape, result = input.meta.shape, metas[0].shape
    first = len(shape) - ndim
    if first < 1 or len(result) != len(shape):
        raise NoRule
    pairs = list(zip(shape[first:], result[first:], strict=True))
    if all(large % small == 0 for large, small in pairs):
        sizes = [large // small for large, small in pairs]
        return _max_pool(ctx, meta, ndim=ndim, input=input, kernel_size=sizes, return_indices=len(metas) == 2)
    dtype, windows = COMPUTE[input.dtype], _Uneven(ctx, input, metas[0], first)
    elements = ((element, inside, windows.flat(indices)) for element, inside, indices in windows.elements())
    best, found = _best_with_index(elements, windows.flat(windows.begins), dtype)
    values = _kept(ctx, made(ctx, metas[0], ops.via(best, metas[0].dtype)))
    return values if len(metas) == 1 else [values, _kept(ctx, made(ctx, metas[1], found))]


def _register(ndim: int) -> None:
    windows = "input kernel_size stride=None padding=0 dilation=1 ceil_mode=False return_indices="
    maximum, average = (partial(function, ndim=ndim) for function in (_max_pool, _avg_pool))
    functions = [getattr(functional, name) for name in (f"max_pool{ndim}d", f"_max_pool{ndim}d")]
    rule(f"max_pool{ndim}d", f"{windows}False", functions)(maximum)
    name = f"max_pool{ndim}d_with_indices"
    rule(name, f"{windows}True", [getattr(functional, name)])(maximum)
    settings = "stride=None padding=0 ceil_mode=False count_include_pad=True divisor_override=None"
    rule(f"avg_pool{ndim}d", f"input kernel_size {settings}", [getattr(functional, f"avg_pool{ndim}d")])(average)
    names = f"_adaptive_avg_pool{ndim}d adaptive_avg_pool{ndim}d"
    rule(names, "input output_size")(partial(_adaptive_avg_pool, ndim=ndim))
    rule(f"adaptive_max_pool{ndim}d", "input output_size")(partial(_adaptive_max_pool, ndim=ndim))


for _ndim in (1, 2, 3):
    _register(_ndim)
