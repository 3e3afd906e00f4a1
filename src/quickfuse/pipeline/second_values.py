"""What has a second value in a call, and need not be held by any: numbers and texts that are only computed with, handed on or
written into texts, such as the counter of steps."""

from __future__ import annotations

from collections.abc import Callable

from ..errors import Unsupported
from ..ir.segment import Segment
from .points import Point


def captured(point: Point, begin: Callable[..., Segment], volatile: frozenset[str]) -> tuple[Segment, frozenset[str]]:
    """The segment that begins at a point, and what it holds no more by value, though others at this place do.

    Where capture comes as far without a guard on a value that has just had a second one, no specialisation for that value
    is worth having: the third would come in the next call. Where it does not, as for an axis, the value may be one of few.

    Raises:
        Unsupported: as `capture` does.
    """
    names = point.second_values() - volatile
    if not names:
        return begin(volatile=volatile), names
    point.tried |= names
    try:
        general = begin(volatile=volatile | names)
    except Unsupported:
        return begin(volatile=volatile), frozenset()
    if general.pause is None and not general.only_eager:
        return general, names
    special = begin(volatile=volatile)
    if general.performed >= special.performed and (special.only_eager or not general.only_eager):
        chosen, other, found = general, special, names
    else:
        chosen, other, found = special, general, frozenset()
    chosen.prepared[:0] = other.prepared
    return chosen, found
