"""Iterators that existed before: what they give next is read by its path, and compiled code advances them afterwards.

So a loop with a break in its body goes on in the segment after the break, through its next turn. Which elements come does
not depend on how many there were before: one segment serves for many turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Unsupported
from ..ir.iterating import Ahead, advance, is_readable, read_by
from ..ir.reading import MISSING
from ..ir.segment import Call, Constant, Effect, Existing
from ..ir.source import Source
from .changes import Advanced
from .interpreter import Interpreter
from .symbolic import FromOutside, Unread


def next_of(i: Interpreter, iterator: FromOutside, only_moved: bool = False) -> tuple[bool, Any]:
    """What `next(iterator)` gives: (True, element) or, at the end, (False, None). An element that the next instruction puts
    into a variable (`only_moved`) is not looked at."""
    known = i.outside.iterators.get(id(iterator.real))
    if known is None:
        known = i.outside.iterators[id(iterator.real)] = _open(i, iterator)
    if any(map(i.outside.is_changed, known.held)):  # which is seen there only when compiled code has done it
        raise Unsupported("advancing an iterator over what has changed since")
    source = iterator.source.ahead().item(known.taken)
    try:
        element = known.ahead[known.taken]
    except Exception as error:  # `zip(strict=True)`, or a dictionary that changed
        raise Unsupported(f"an iterator that fails: {error}") from None
    known.performed.append(i.performed)
    if element is MISSING:
        i.outside.guard("is", source, MISSING)
        return False, None
    if only_moved:
        i.outside.guard("distinct", source, i.outside.roots.constant("MISSING", MISSING))
        return True, Unread(element, source)
    return True, i.outside.wrap(element, source)


def _open(i: Interpreter, iterator: FromOutside) -> Advanced:
    """Begin to read an iterator.

    Raises:
        Unsupported: where its elements come from code of the program's, or another one that is advanced reads it too.
    """
    if not is_readable(iterator.real):
        raise Unsupported("advancing an iterator from outside")
    try:
        opened = Advanced(iterator, Ahead(iterator.real), list(_held(i, iterator.real, iterator.source)))
    except RuntimeError as error:
        raise Unsupported(f"an iterator that is no longer valid: {error}") from None
    own = {id(part.real) for part in opened.iterators()}
    for other in i.outside.iterators.values():
        if any(id(part.real) in own for part in other.iterators()):
            raise Unsupported("advancing two iterators of which one reads the other")
    return opened


def _held(i: Interpreter, iterator: Any, source: Source) -> Iterator[FromOutside]:
    """The iterators and containers that an iterator reads, and those that these read."""
    for index, part in enumerate(read_by(iterator)):
        place = source.read_by().item(index)
        yield i.outside.wrap(part, place)
        if is_readable(part):
            yield from _held(i, part, place)


def effects(i: Interpreter) -> list[Effect]:
    """Advance what the captured code has advanced, before anything that is read there is changed."""
    opened = list(i.outside.iterators.values())
    if len(opened) > 1:  # iterators of which one reads another would be advanced together
        sources = [part.source for known in opened for part in known.iterators()]
        i.outside.guard("unique", None, tuple(dict.fromkeys(sources)))
    calls = [Call(advance, [Existing(known.stand_in.source), Constant(known.taken)]) for known in opened]
    return [Effect("do", None, None, call) for call in calls]
