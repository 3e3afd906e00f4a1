"""Rules of pooling: reductions over small windows of an image, written out element by element of the window.

Windows of many elements are reductions in a loop, as are those that cover the whole image.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.loop import identity
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import at, source, stepping
from .context import Context
from .layout import Shape
from .promotion import COMPUTE, is_float
from .reductions import mean
from .rules import no_rule_if
from .symbolic import Tensor


class Windows(ABC):
    """The windows of an image (the last axes of a tensor), one for each element of the result.

    A window has `sizes[k]` places along axis k of the image, some of which may not count.
    """

    sizes: tuple[int, ...]
    value: Expr

    def __init__(self, input: Tensor, meta: TensorMeta, ndim: int) -> None:
        no_rule_if(not input.meta.numel or not meta.numel)
        no_rule_if(input.meta.device.type == "cuda" and not is_float(input.dtype))  # PyTorch refuses whole numbers there
        self.shape, self.result, self.ndim = input.meta.shape, meta.shape, len(meta.shape)
        self.first = len(self.shape) - ndim  # the first axis of the image
        no_rule_if(self.first < 1 or self.ndim != len(self.shape))
        self.image = self.shape[self.first :]

    @abstractmethod
    def index(self, k: int, place: int) -> Expr:
        """Where a place of each window is on axis k of the image."""

    @abstractmethod
    def counts(self, k: int, place: int) -> Expr | None:
        """Whether that place counts; None where it always does."""

    @abstractmethod
    def first_position(self) -> Expr:
        """The index in the flat image of each window's first element."""

    def _read(self, ctx: Context, input: Tensor, limit: int) -> None:
        no_rule_if(math.prod(self.sizes) > COSTS.most_window_elements)
        self.value = source(ctx, input, limit)

    def elements(self) -> Iterator[tuple[Expr, Expr | None, list[Expr]]]:
        """For each place in a window: the element, whether it counts (None: always), and its index in the image."""
        for place in itertools.product(*map(range, self.sizes)):
            indices = [self.index(k, n) for k, n in enumerate(place)]
            inside = functools.reduce(both, [self.counts(k, n) for k, n in enumerate(place)])
            yield at(self.value, [*range(self.first), *indices], self.ndim, inside), inside, indices

    def elements_or(self, outside: Any, dtype: torch.dtype) -> Iterator[Expr]:
        """The elements of a window, with what stands for one that does not count."""
        for element, inside, _ in self.elements():
            element = ops.via(element, dtype)
            yield element if inside is None else ops.where(inside, element, outside)

    def sum(self, dtype: torch.dtype) -> Expr:
        """Eager begins with 0.0: where all elements are -0.0, the sum is 0.0."""
        return functools.reduce(operator.add, self.elements_or(0, dtype), ops.const(0, dtype))

    def flat(self, indices: Sequence[Expr]) -> Expr:
        """The index of an element in the flat image."""
        return flat_index(indices, self.image)


class EvenWindows(Windows):
    """Windows of one size, in even steps. What is beyond the image does not count."""

    def __init__(
        self, ctx: Context, input: Tensor, meta: TensorMeta, sizes: Any, strides: Any, padding: Any, dilation: Any, ndim: int
    ) -> None:
        super().__init__(input, meta, ndim)
        self.sizes = numbers_for(sizes, ndim)
        self.strides = numbers_for(strides, ndim) if strides is not None and strides != [] else self.sizes
        self.padding, self.dilation = numbers_for(padding, ndim), numbers_for(dilation, ndim)
        self._read(ctx, input, COSTS.store_before_tiles if self.strides == self.sizes else COSTS.store_before_windows)

    def _begin(self, k: int, place: int) -> int:
        return place * self.dilation[k] - self.padding[k]

    def index(self, k: int, place: int) -> Expr:
        return stepping(self.first + k, self.strides[k], self._begin(k, place))

    def counts(self, k: int, place: int) -> Expr | None:
        index, begin = self.index(k, place), self._begin(k, place)
        inside = index >= 0 if begin < 0 else None
        if begin + self.strides[k] * (self.result[self.first + k] - 1) >= self.image[k]:
            inside = both(inside, index < self.image[k])
        return inside

    def first_position(self) -> Expr:
        indices = []
        for k, step in enumerate(self.dilation):
            index = self.index(k, 0)
            if self.padding[k]:
                index = index + ops.trunc_div(ops.maximum(step - 1 - index, 0), step) * step
            indices.append(index)
        return self.flat(indices)


class UnevenWindows(Windows):
    """Windows from `floor(i * large / small)` to `ceil((i + 1) * large / small)`."""

    def __init__(self, ctx: Context, input: Tensor, meta: TensorMeta, ndim: int) -> None:
        super().__init__(input, meta, ndim)
        self.begins: list[Expr] = []
        self.lengths: list[Expr] = []
        most = []
        for axis, size in enumerate(self.image, self.first):
            count = self.result[axis]
            begin = ops.trunc_div(Index(axis) * size, count)
            end = ops.trunc_div((Index(axis) + 1) * size + (count - 1), count)
            self.begins.append(begin)
            self.lengths.append(end - begin)
            most.append(max(-(-(i + 1) * size // count) - i * size // count for i in range(count)))
        self.sizes = tuple(most)
        self._read(ctx, input, COSTS.store_before_windows)

    def index(self, k: int, place: int) -> Expr:
        return self.begins[k] + place

    def counts(self, k: int, place: int) -> Expr | None:
        return self.lengths[k] > place if place else None

    def first_position(self) -> Expr:
        return self.flat(self.begins)


def flat_index(indices: Sequence[Expr], sizes: Shape) -> Expr:
    """The index of an element in a flat image with axes of these sizes."""
    total = indices[0]
    for index, size in zip(indices[1:], sizes[1:], strict=True):
        total = total * size + index
    return total


def numbers_for(value: Any, ndim: int) -> tuple[int, ...]:
    """A parameter that is one number for each axis of the image, or one for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    values = values * ndim if len(values) == 1 else values
    no_rule_if(len(values) != ndim or any(type(n) is not int for n in values))
    return tuple(values)


def _kept(ctx: Context, meta: Any, value: Expr) -> Tensor:
    """A result that is stored before it is used, for it is read from many elements: users would each read all of them."""
    result = made(ctx, meta, ops.via(value, meta.dtype))
    ctx.materialize(result.storage)
    return result


# --- maxima ---


def _maxima(ctx: Context, meta: Any, windows: Windows, dtype: torch.dtype) -> Any:
    """The greatest elements of windows and, if there is a second result, where they are: at the first element if there is
    none that is greater than -infinity."""
    least = identity("maximum", dtype)
    if not isinstance(meta, (list, tuple)):
        return _kept(ctx, meta, functools.reduce(ops.maximum, windows.elements_or(least, dtype)))
    best, found = ops.const(least, dtype), windows.first_position()
    for element, inside, indices in windows.elements():
        element = ops.via(element, dtype)
        better: Any = (element > best) | ops.isnan(element) if is_float(dtype) else element > best
        better = both(inside, better)
        best, found = ops.where(better, element, best), ops.where(better, windows.flat(indices), found)
    return [_kept(ctx, meta[0], best), _kept(ctx, meta[1], found)]


def _max_pool(
    ndim: int, ctx: Context, meta: Any, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    with_places = isinstance(meta, (list, tuple))
    windows = EvenWindows(ctx, input, meta[0] if with_places else meta, kernel_size, stride, padding, dilation, ndim)
    return _maxima(ctx, meta, windows, COMPUTE[input.dtype])


def _adaptive_max_pool(ndim: int, ctx: Context, meta: Any, input: Tensor, output_size: Any) -> Any:
    windows = _adaptive_windows(ctx, input, meta[0] if isinstance(meta, (list, tuple)) else meta, ndim)
    return _maxima(ctx, meta, windows, COMPUTE[input.dtype])


def _adaptive_windows(ctx: Context, input: Tensor, meta: TensorMeta, ndim: int) -> Windows:
    pairs = list(zip(input.meta.shape[-ndim:], meta.shape[-ndim:], strict=False))
    if any(not small or large % small for large, small in pairs):
        return UnevenWindows(ctx, input, meta, ndim)
    return EvenWindows(ctx, input, meta, [large // small for large, small in pairs], None, 0, 1, ndim)


# --- averages ---


def _avg_pool(
    ndim: int, ctx: Context, meta: TensorMeta, input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    no_rule_if(not is_float(input.dtype))
    windows = EvenWindows(ctx, input, meta, kernel_size, stride, padding, 1, ndim)
    dtype, geometry = COMPUTE[input.dtype], (windows.sizes, windows.strides, windows.padding)
    begins = [windows.index(k, 0) for k in range(ndim)]
    count = size_of(begins, windows.image, windows.result[-ndim:], *geometry, count_include_pad, dtype)
    count = count if divisor_override is None else ops.const(divisor_override, dtype)
    return _kept(ctx, meta, windows.sum(dtype) / count)


def size_of(
    begins: Sequence[Expr], image: Shape, counts: Shape, sizes: Shape, strides: Shape, padding: Shape, with_padding: bool,
    dtype: torch.dtype,
) -> Expr:  # fmt: skip
    """How many elements a window has that begins at these indices of an image, with `counts` windows along each axis: those
    beyond the padding never count."""
    fixed, varying = 1, None
    for begin, large, count, size, step, pad in zip(begins, image, counts, sizes, strides, padding, strict=True):
        low, high = (-pad, large + pad) if with_padding else (0, large)
        if -pad >= low and (count - 1) * step - pad + size <= high:
            fixed *= size
            continue
        end = ops.minimum(begin + size, high)
        length = end - ops.maximum(begin, low)
        varying = length if varying is None else varying * length
    if varying is None:
        return ops.const(fixed, dtype)
    return ops.via(varying * fixed, dtype)


def _adaptive_avg_pool(ndim: int, ctx: Context, meta: TensorMeta, input: Tensor, output_size: Any) -> Tensor:
    no_rule_if(not is_float(input.dtype) or not input.meta.numel)
    axes = range(input.meta.ndim - ndim, input.meta.ndim)
    if axes[0] > 0 and all(size == 1 for size in meta.shape[axes[0] :]):
        return mean(ctx, meta, input, list(axes), True, None)
    dtype, windows = COMPUTE[input.dtype], _adaptive_windows(ctx, input, meta, ndim)
    total = windows.sum(dtype)
    if isinstance(windows, UnevenWindows):
        total = functools.reduce(operator.truediv, [ops.via(length, dtype) for length in windows.lengths], total)
    else:
        total = total / math.prod(windows.sizes)
    return made(ctx, meta, ops.via(total, meta.dtype))


for _ndim in (1, 2, 3):
    _names = f"max_pool{_ndim}d max_pool{_ndim}d_with_indices"
    _functions = [getattr(functional, name) for name in (*_names.split(), f"_max_pool{_ndim}d")]
    rule(_names, _functions)(partial(_max_pool, _ndim))
    rule(f"avg_pool{_ndim}d", [getattr(functional, f"avg_pool{_ndim}d")])(partial(_avg_pool, _ndim))
    rule(f"_adaptive_avg_pool{_ndim}d adaptive_avg_pool{_ndim}d")(partial(_adaptive_avg_pool, _ndim))
    rule(f"adaptive_max_pool{_ndim}d")(partial(_adaptive_max_pool, _ndim))
