"""Which elements of a tensor's memory an access touches, as a box: a first and a last index on each axis."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from .loop import Access, Buffer, Extern, View, views_in

Shape = tuple[int, ...]


@lru_cache(maxsize=4096)
def box(shape: Shape, strides: Shape, offset: int, sizes: Shape, memory: Shape) -> tuple[tuple[int, int], ...] | None:
    """The box that `shape` elements, at `strides` from `offset` on, touch of memory of shape `sizes` and strides `memory`.

    None where they do not go along the memory's axes, or leave it.
    """
    steps = [(s, n) for s, n in zip(strides, shape, strict=True) if s and n > 1]
    rest = offset + sum(s * (n - 1) for s, n in steps if s < 0)
    axes = sorted((k for k, (n, s) in enumerate(zip(sizes, memory, strict=True)) if n > 1 and s), key=lambda k: -memory[k])
    first, extent = [0] * len(sizes), [0] * len(sizes)
    for k in axes:
        first[k], rest = divmod(rest, memory[k])
    for step, size in steps:
        axis = next((k for k in axes if memory[k] <= abs(step)), None)
        if axis is None or step % memory[axis]:
            return None
        extent[axis] += abs(step) // memory[axis] * (size - 1)
    if rest or any(f < 0 or f + e >= max(n, 1) for f, e, n in zip(first, extent, sizes, strict=True)):
        return None
    return tuple([(f, f + e) for f, e in zip(first, extent, strict=True)])


def disjoint(shape: Shape, one: Access, of_two: Shape, two: Access) -> bool:
    """Whether two accesses of one buffer, over `shape` and over `of_two`, surely have no element in common."""
    if one.loose or two.loose:
        return False
    meta = one.buffer.meta
    return apart(
        box(shape, one.strides, one.offset, meta.shape, meta.stride),
        box(of_two, two.strides, two.offset, meta.shape, meta.stride),
    )


def may_read(views: Iterable[View], shape: Shape, stored: Access) -> bool:
    """Whether a call of PyTorch that reads these views of a buffer may read what is stored to it, over `shape`."""
    return any(not disjoint(v.shape, Access(v.buffer, v.offset, v.stride), shape, stored) for v in views)


def views_read(call: Extern) -> dict[Buffer, list[View]]:
    """What a call of PyTorch reads of each buffer."""
    found: dict[Buffer, list[View]] = {}
    for view in views_in((call.args, call.kwargs)):
        found.setdefault(view.buffer, []).append(view)
    return found


def apart(one: tuple[tuple[int, int], ...] | None, two: tuple[tuple[int, int], ...] | None) -> bool:
    """Whether two boxes surely have no element in common."""
    return one is not None and two is not None and any(x[1] < y[0] or y[1] < x[0] for x, y in zip(one, two, strict=True))
