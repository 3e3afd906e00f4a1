"""Short lengths for the axes of an operator's operands, by which `probes` runs it, and what its results' axes are long."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch

from ...ir.values import TensorMeta, contiguous_stride
from .results import Result, SameTensor, View, map_structure, tensors_in
from .stand_ins import whole

#: Which axes of an operand with `ndim` axes are shortened.
Axes = Callable[[int], Collection[int]]

_LARGEST_NUMBER = 64  # of the arguments that may limit an axis, as in topk(k)


def no_axis(ndim: int) -> Collection[int]:
    return ()


class Lengths:
    """Short lengths for the axes of some operands, and the way back."""

    def __init__(
        self, args: Any, kwargs: Any, metas: list[TensorMeta], axes: Axes, place: torch.device | None = None
    ) -> None:
        """`axes` are shortened, and none where a layout does not allow it. `place`: the device of the small tensors, if not
        the operands' own."""
        self.place = place
        if not all(_is_regular(meta) for meta in metas):
            axes = no_axis
        self._axes = axes
        numbers = set(_integers((args, kwargs)))
        kept = {n for meta in metas for axis, n in enumerate(meta.shape) if axis not in axes(meta.ndim)}
        self._known = {0, 1, *numbers, *kept}
        self._short: dict[int, int] = {}
        free = 1 + max([3, *(n for n in numbers if n <= _LARGEST_NUMBER)])
        for length in sorted({meta.shape[axis] for meta in metas for axis in axes(meta.ndim)}):
            while free in self._known:
                free += 1
            self._short[length] = min(length, free)
            free += length >= free
        self._long = {short: length for length, short in self._short.items()}
        self.first_index = 0

    def shorten(self, shape: Any) -> tuple[int, ...]:
        axes = self._axes(len(shape))
        return tuple([self._short.get(n, n) if axis in axes else n for axis, n in enumerate(shape)])

    def make(self, meta: TensorMeta) -> torch.Tensor:
        """A small tensor laid out like one of the operands: ones, unit matrices, and where they may be indices the first."""
        shape = self.shorten(meta.shape)
        stride = restride(meta.shape, meta.stride, shape, gaps=True)
        assert stride is not None
        if self.place is not None:
            made = torch.empty_strided(shape, stride, dtype=meta.dtype, device=self.place)
            (whole(made) if 0 in stride else made).fill_(1)
            return made
        made = torch.empty_strided(shape, stride, dtype=meta.dtype, device=meta.device)
        if made.numel():
            is_square = len(shape) >= 2 and shape[-1] == shape[-2] and 0 not in stride
            is_number = meta.dtype.is_floating_point or meta.dtype.is_complex
            whole(made).fill_(not is_square if is_number else self.first_index)
            if is_number and is_square:
                made.diagonal(dim1=-2, dim2=-1).fill_(1)
        return made

    def original(self, result: Result) -> Result | None:
        """A result with its axes as long as they would be."""
        if all(length == short for length, short in self._short.items()):
            return result
        leaves = list(tensors_in(result.structure))
        long = [None if isinstance(leaf, View) else self._lengthen(leaf) for leaf in leaves]
        if result.changed or None in long:
            return None
        following = iter(long)

        def lengthen(leaf: Any, _: int = 0) -> Any:
            if isinstance(leaf, (list, tuple)) and type(leaf) is not torch.Size:
                return map_structure(lengthen, leaf)
            return next(following) if isinstance(leaf, (TensorMeta, SameTensor)) else leaf

        return replace(result, structure=lengthen(result.structure))

    def _lengthen(self, leaf: Any) -> Any:
        if isinstance(leaf, SameTensor):
            return leaf
        axes = self._axes(leaf.ndim)
        if any(n not in self._long and n not in self._known for axis, n in enumerate(leaf.shape) if axis in axes):
            return None
        shape = tuple([self._long.get(n, n) if axis in axes else n for axis, n in enumerate(leaf.shape)])
        stride = restride(leaf.shape, leaf.stride, shape)
        return None if stride is None else replace(leaf, shape=shape, stride=stride)


def restride(
    shape: tuple[int, ...], stride: tuple[int, ...], new_shape: tuple[int, ...], gaps: bool = False
) -> tuple[int, ...] | None:
    """The strides of the same layout at another shape, None where it is not dense (but for expanded axes). With `gaps`, also
    those of a part of a tensor: some elements are left out at the other shape, too. None is where elements overlap then."""
    if shape == new_shape:
        return stride
    if stride == contiguous_stride(shape):
        return contiguous_stride(new_shape)
    if 0 in shape and not gaps:
        return None
    steps = {0: 0, 1: 1}
    old = new = 1
    for s, n, m in sorted((s, n, m) for s, n, m in zip(stride, shape, new_shape, strict=True) if n > 1 and s != 0):
        if s < old or (s > old and not gaps):
            return None
        steps[s] = new if s == old else 2 * new
        old, new = s * n, steps[s] * m
        steps[old] = new  # that of an axis of one element, perhaps
    return tuple([steps.get(s, new) for s in stride]) if gaps or all(s in steps for s in stride) else None


def _is_regular(meta: TensorMeta) -> bool:
    return restride(meta.shape, meta.stride, tuple([n + 1 if n > 1 else n for n in meta.shape]), gaps=True) is not None


def _integers(value: Any) -> Iterator[int]:
    if type(value) is int:
        yield value
    elif type(value) in (list, tuple):
        yield len(value)
        for element in value:
            yield from _integers(element)
    elif type(value) is dict:
        yield from _integers(list(value.values()))
