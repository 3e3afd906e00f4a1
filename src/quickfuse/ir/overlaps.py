"""Whether views of one memory, and what loops access of it, have elements in common."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from .loop import Access, Buffer, Extern, View, views_in

Shape = tuple[int, ...]


#: What a view touches of its memory: its first element, its shape and its strides.
Place = tuple[int, Shape, Shape]

#: After so many steps, two views are taken to overlap.
_MOST_STEPS = 1000


@lru_cache(maxsize=4096)
def apart(one: Place, two: Place) -> bool:
    """Whether two views of one memory surely have no element in common, such as the even and the odd columns of a matrix.

    They have one where `two`'s offset is as far from `one`'s as an index into `one` goes, less an index into `two`. Indices
    along equal strides are counted together, from the largest stride on, as long as the smaller ones may reach the rest.
    """
    if 0 in one[1] or 0 in two[1]:
        return True
    ranges: dict[int, tuple[int, int]] = {}  # how far one may step along a stride
    for (_, shape, strides), sign in ((one, 1), (two, -1)):
        for size, stride in zip(shape, strides, strict=True):
            last = (size - 1) * (sign if stride > 0 else -sign)
            if stride and last:
                low, high = ranges.get(abs(stride), (0, 0))
                ranges[abs(stride)] = (low + min(last, 0), high + max(last, 0))
    steps = sorted(ranges, reverse=True)
    least, most = [0], [0]  # what the strides after a place may add
    for step in reversed(steps):
        least.append(least[-1] + ranges[step][0] * step)
        most.append(most[-1] + ranges[step][1] * step)
    found, count = [(0, two[0] - one[0])], 0
    while found:
        place, rest = found.pop()
        if place == len(steps):
            if not rest:
                return False
            continue
        step, behind = steps[place], len(steps) - place - 1
        first = max(ranges[step][0], -((most[behind] - rest) // step))
        last = min(ranges[step][1], (rest - least[behind]) // step)
        count += max(last - first + 1, 0)
        if count > _MOST_STEPS:
            return False
        found += [(place + 1, rest - k * step) for k in range(first, last + 1)]
    return True


def disjoint(shape: Shape, one: Access, of_two: Shape, two: Access) -> bool:
    """Whether two accesses of one buffer, over `shape` and over `of_two`, surely have no element in common."""
    if one.loose or two.loose:
        return False
    return apart((one.offset, shape, one.strides), (two.offset, of_two, two.strides))


def may_read(views: Iterable[View], shape: Shape, stored: Access) -> bool:
    """Whether a call of PyTorch that reads these views of a buffer may read what is stored to it, over `shape`."""
    return any(not disjoint(v.shape, Access(v.buffer, v.offset, v.stride), shape, stored) for v in views)


def views_read(call: Extern) -> dict[Buffer, list[View]]:
    """What a call of PyTorch reads of each buffer."""
    found: dict[Buffer, list[View]] = {}
    for view in views_in((call.args, call.kwargs)):
        found.setdefault(view.buffer, []).append(view)
    return found
