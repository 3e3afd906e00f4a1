"""Iterators of the captured program.

They are CPython's own, over stand-ins, so that their behaviour is the language's. Those that call back into captured
code are classes of this module. Each can be taken apart, to be made anew over real values when a segment ends.
"""

from __future__ import annotations

import collections
import gc
import itertools
import operator
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import Unsupported
from ...ir.iterating import advance
from ...ir.warning_filters import silenced
from ..interpreter import Interpreter
from ..symbolic import STANDS_FOR, type_of
from ..symbolic.raising import Raised


class CallingIterator:
    """An iterator whose elements come from captured code: `parts` are what makes the real one, `kind(*parts)`."""

    kind: Callable[..., Any]

    def __init__(self, i: Interpreter, *parts: Any) -> None:
        self.i = i
        self.parts = parts

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError


class MapIterator(CallingIterator):
    """`map(function, *iterators)`."""

    kind = map

    def __next__(self) -> Any:
        function, *iterators = self.parts
        return self.i.call_now(function, tuple([next(iterator) for iterator in iterators]))


class FilterIterator(CallingIterator):
    """`filter(function, iterator)`."""

    kind = filter

    def __next__(self) -> Any:
        function, iterator = self.parts
        for element in iterator:
            if self.i.truth(element if function is None else self.i.call_now(function, (element,))):
                return element
        raise StopIteration


class StarMapIterator(CallingIterator):
    """`itertools.starmap(function, iterator)`."""

    kind = itertools.starmap

    def __next__(self) -> Any:
        function, iterator = self.parts
        return self.i.call_now(function, tuple(next(iterator)))


class TakeWhileIterator(CallingIterator):
    """`itertools.takewhile(function, iterator)`."""

    kind = itertools.takewhile

    def __next__(self) -> Any:
        function, iterator = self.parts
        element = next(iterator)
        if self.i.truth(self.i.call_now(function, (element,))):
            return element
        self.parts = (function, iter(()))
        raise StopIteration


class ObjectIterator(CallingIterator):
    """An object with a Python `__next__` as native functions see it."""

    kind = iter

    def __next__(self) -> Any:
        instance = self.parts[0]
        try:
            return self.i.call_now(type_of(instance).__next__, (instance,))
        except Raised as raised:
            if isinstance(raised.exception, StopIteration):
                raise StopIteration(raised.exception.value) from None
            raise


class AdvancedIterator(CallingIterator):
    """An iterator of the user's, or a generator of the captured code, as native functions such as `zip` see it."""

    kind = iter

    def __next__(self) -> Any:
        iterator = self.parts[0]
        found, element = self.i.kind_of(iterator).advance(self.i, iterator)
        if not found:
            raise StopIteration(element)
        return element


class ItemIterator(CallingIterator):
    """Iteration over an object that has `__getitem__` and no `__iter__`: by the indices 0, 1, ... until IndexError."""

    kind = iter

    def __init__(self, i: Interpreter, instance: Any, method: Any) -> None:
        super().__init__(i, instance)
        self.method = method
        self.position = 0
        self.ended = False

    def __next__(self) -> Any:
        if self.ended:
            raise StopIteration
        try:
            element = self.i.call_now(self.method, (self.parts[0], self.position))
        except Raised as raised:
            if isinstance(raised.exception, (IndexError, StopIteration)):
                self.ended = True
                raise StopIteration from None
            raise
        self.position += 1
        return element


class ListedIterator(CallingIterator):
    """An iterator of which all elements are known. `parts`: those that are left, and what they come from."""

    def __next__(self) -> Any:
        return next(self.parts[0])


class SetIterator(ListedIterator):
    """`iter(elements)` of a set from outside, in the order of the real one."""


class MatchIterator(ListedIterator):
    """`re.finditer(...)`."""

    def __init__(self, i: Interpreter, matches: Iterator[Any]) -> None:
        found = [*matches]
        super().__init__(i, iter(found), found)


STANDS_FOR.update({cls: cls.kind for cls in (MapIterator, FilterIterator, StarMapIterator, TakeWhileIterator)})
STANDS_FOR[ItemIterator] = type(iter(type("", (), {"__getitem__": None})()))
STANDS_FOR[MatchIterator] = type(re.finditer("", ""))
STANDS_FOR[SetIterator] = type(iter(set()))

#: What only Python 3.12 and later has.
BATCHED: tuple[type, ...] = (itertools.batched,) if sys.version_info >= (3, 12) else ()

#: Iterators that captured code makes: they run natively, and pull stand-ins out of what they iterate over.
ITERATORS: tuple[type, ...] = (
    *(type(iter(x)) for x in ([], (), {}, set(), "", "ä", b"", range(0), range(1 << 65), {}.items(), {}.values())),
    *(type(reversed(x)) for x in ([], {}, {}.items(), {}.values(), collections.deque())), type(iter(collections.deque())),
    type(iter(collections.OrderedDict())), zip, enumerate, reversed,
    CallingIterator, itertools.chain, itertools.count, itertools.repeat, itertools.islice, itertools.cycle,
    itertools.product, itertools.zip_longest, itertools.combinations, itertools.permutations, itertools.pairwise,
    itertools.compress, itertools.combinations_with_replacement, *BATCHED,
)  # fmt: skip


def take_apart(iterator: Any) -> tuple[Any, ...]:
    """(function, arguments[, state]): `function(*arguments)`, then `__setstate__(state)`, makes an equal iterator. Raises
    `TypeError` where it does not say how far it is, as those of itertools from Python 3.14 on."""
    if isinstance(iterator, ItemIterator):
        return (ended, ((),)) if iterator.ended else (iter, iterator.parts, iterator.position)
    if isinstance(iterator, MatchIterator):
        left, matches = iterator.parts
        first = matches[0] if matches else re.compile("x").search("x")
        given = len(matches) - operator.length_hint(left) if matches else 1
        return skipped_matches, (first.re, first.string, first.pos, first.endpos, given)
    if isinstance(iterator, SetIterator):
        left, elements = iterator.parts
        if iterator.i.outside.is_changed_set(elements, in_order=True):
            raise Unsupported("an iterator over a set that was changed")
        return skipped, (elements, len(elements) - operator.length_hint(left))
    if isinstance(iterator, CallingIterator):
        return type(iterator).kind, iterator.parts
    with silenced():  # of what is deprecated
        parts = iterator.__reduce__()
    if type(iterator) is STANDS_FOR[SetIterator]:
        over = next((held for held in gc.get_referents(iterator) if isinstance(held, (set, frozenset))), None)
        return (ended, (set(),)) if over is None else (skipped, (over, len(over) - operator.length_hint(iterator)))
    if len(parts) == 2 and parts[0] is iter and len(parts[1]) == 1 and not len(parts[1][0]):
        return ended, parts[1]
    return parts  # type: ignore[no-any-return]


def skipped(elements: Any, given: int) -> Any:
    """An iterator that has given so many elements."""
    iterator = iter(elements)
    advance(iterator, given)
    return iterator


def skipped_matches(pattern: Any, text: Any, begin: int, end: int, given: int) -> Any:
    """What `finditer` gives, after so many matches."""
    return skipped(pattern.finditer(text, begin, end), given)


def ended(sequence: Any) -> Any:
    """An iterator over an empty sequence that has noticed its end."""
    iterator = iter(sequence)
    next(iterator, None)
    return iterator


def put_together(function: Callable[..., Any], arguments: tuple[Any, ...], state: Any = None) -> Any:
    """The inverse of `take_apart`, which compiled code calls."""
    made = function(*arguments)
    if state is not None:
        with silenced():
            made.__setstate__(state)
    return made
