"""Iterators that existed before: what they give next is read by its path, and compiled code advances them afterwards.

So a loop with a break in its body goes on in the segment after the break, through its next turn. Which elements come does
not depend on how many there were before: one segment serves for many turns. Where the value of a number or text among them
matters, it is guarded; where that turns out to be another one, Python is to do what needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import Unsupported
from ...ir.iterating import advance, ahead, is_readable, read_by
from ...ir.reading import MISSING
from ...ir.segment import Call, Constant, Effect, Existing
from ...ir.source import Source
from ..interpreter import Interpreter
from ..outside.changes import Advanced
from ..symbolic import FromOutside, Unread


def next_of(i: Interpreter, iterator: FromOutside, only_moved: bool = False) -> tuple[bool, Any]:
    """What `next(iterator)` gives: (True, element) or, at the end, (False, None). An element that the next instruction puts
    into a variable (`only_moved`) is not looked at."""
    known = i.outside.iterators.get(id(iterator.real))
    if known is None:
        known = i.outside.iterators[id(iterator.real)] = _open(i, iterator)
    if any(i.outside.is_changed(part) for part, _ in known.held):  # which is seen there only when compiled code has done it
        raise Unsupported("advancing an iterator over what has changed since")
    source = iterator.source.ahead().item(known.taken)
    try:
        element = known.ahead[known.taken]
    except Exception as error:  # `zip(strict=True)`, or a dictionary that changed
        raise Unsupported(f"an iterator that fails: {error}") from None
    known.elements.append(element)
    if element is MISSING:
        i.outside.guard("is", source, MISSING)
        return False, None
    if only_moved:
        i.outside.guard("distinct", source, i.outside.roots.constant("MISSING", MISSING))
        return True, Unread(element, source)
    return True, i.outside.wrap(element, source)


def _open(i: Interpreter, iterator: FromOutside) -> Advanced:
    """Begin to read an iterator. Raises `Unsupported` where its elements come from code of the program's, or another one
    that is advanced reads it too."""
    if not is_readable(iterator.real):
        raise Unsupported("advancing an iterator from outside")
    try:
        opened = Advanced(iterator, ahead(iterator.real), [*_held(iterator.real, iterator.source)])
    except RuntimeError as error:
        raise Unsupported(f"an iterator that is no longer valid: {error}") from None
    own = {id(part) for part, _ in opened.iterators()}
    for other in i.outside.iterators.values():
        if any(id(part) in own for part, _ in other.iterators()):
            raise Unsupported("advancing two iterators of which one reads the other")
    return opened


def _held(iterator: Any, source: Source) -> Iterator[tuple[Any, Source]]:
    """The iterators and containers that an iterator reads, and those that these read."""
    for index, part in enumerate(read_by(iterator)):
        place = source.read_by().item(index)
        yield part, place
        if is_readable(part):
            yield from _held(part, place)


def effects(i: Interpreter) -> list[Effect]:
    """Advance what the captured code has advanced, before anything that is read there is changed."""
    opened = list(i.outside.iterators.values())
    begun = {id(known.stand_in.real): known.stand_in.source for known in i.outside.generators.values()}
    if len(opened) + len(begun) > 1:  # iterators of which one reads another would be advanced together
        sources = begun | {id(part): source for known in opened for part, source in known.iterators()}
        i.outside.guard("unique", None, tuple(sources.values()))
    # other ones than those that are iterated over are changed: see `Guarding.guard_unique`
    if any(shadow.is_changed for shadow in (*i.outside.containers, *i.outside.dictionaries)):
        for part, source in [held for known in opened for held in known.held]:
            i.outside.wrap(part, source)
    return [
        Effect("do", None, None, Call(function, [Existing(known.stand_in.source), Constant(rest)]))
        for known in opened
        for function, rest in [(next, None) if known.taken == 1 else (advance, known.taken)]
    ]
