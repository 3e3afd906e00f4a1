"""What has a second value in a call, and need not be held by any: numbers and texts that are only computed with, handed on
or written into texts, such as the counter of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..errors import Unsupported
from ..ir.guard import WHICH_ARE_ONE, Guard
from ..ir.segment import Segment
from .points import Point
from .specialise import Specialisation


def captured(
    point: Point, begin: Callable[..., Segment], volatile: frozenset[str],
    failures: Callable[[Specialisation, list[Guard]], Iterable[Guard]],
) -> tuple[Segment, frozenset[str]]:  # fmt: skip
    """The segment that begins at a point, and what it was told that keeps changing.

    Where capture comes as far without a guard on a value that has just had a second one, no specialisation for that value
    is worth having: the third would come in the next call. Where it does not, as for an axis, the value may be one of few.
    `failures` are those of some guards that do not hold.

    Raises:
        Unsupported: as `capture` does.
    """
    names = _other_values(point, failures) - volatile - point.not_held
    names = frozenset() if names in point.tried else names
    more = volatile | names | point.not_held
    if more == volatile:
        return begin(volatile=volatile), volatile
    point.tried.add(names)
    try:
        general = begin(volatile=more)
    except Unsupported:
        return begin(volatile=volatile), volatile
    if general.pause is None and not general.only_eager:
        point.not_held |= names
        return general, more
    special = begin(volatile=volatile)
    if general.performed >= special.performed and (special.only_eager or not general.only_eager):
        point.not_held |= names
        general.prepared[:0] = special.prepared
        return general, more
    special.prepared[:0] = general.prepared
    return special, volatile


def is_in_pieces(specialisation: Specialisation) -> bool:
    """Whether a graph runs operator by operator, or in parts: perhaps since a number in it changes."""
    return bool(specialisation.without_kernels) or specialisation.segment.in_parts


def less_in_pieces(
    point: Point, general: Specialisation, special: Specialisation, names: frozenset[str]
) -> Specialisation:  # fmt: skip
    """What is compiled with guards on some values, where that without them is in pieces and it is not."""
    chosen, other = (general, special) if is_in_pieces(special) else (special, general)
    if chosen is special:
        point.not_held -= names
    chosen.segment.prepared[:0] = other.segment.prepared
    return chosen


def _other_values(point: Point, failures: Callable[[Specialisation, list[Guard]], Iterable[Guard]]) -> frozenset[str]:
    """The names of what has another value now than the first specialisation holds that differs in nothing before that."""
    for specialisation, first in zip(point.asked, point.failed_guards, strict=False):
        if first is not None and _names(first):
            holding = [guard for guard in specialisation.segment.guards if _names(guard)]
            return frozenset().union(*[_names(guard) for guard in failures(specialisation, holding)])
    return frozenset()


def _names(guard: Guard) -> list[str]:
    """What a guard holds by value, as capture is told that it changes: not what one holds no number to be."""
    if guard.kind == "condition" and not guard.value[1]:
        return []
    in_lists = guard.truth_values_held() or guard.texts_held()
    return [in_lists] if in_lists else [name for name in guard.values_held() if name != WHICH_ARE_ONE]
