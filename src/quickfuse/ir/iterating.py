"""What an iterator will give next, without advancing it: for those of Python's own classes, which run no code of the user's.

Capture reads the elements of an iterator that existed before, as guards do later; compiled code advances it afterwards.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from .reading import MISSING

_SEQUENCES: tuple[tuple[Any, Any], ...] = (
    (list, []), (tuple, ()), (str, ""), (str, "\u1234"), (bytes, b""), (range, range(0)), (range, range(1 << 65)),
)  # fmt: skip
_OF_DEQUE: Any = type(iter(collections.deque()))
#: Iterators over sequences, which say what they iterate over and how far they are: how to make another one.
_OF_SEQUENCES: dict[type, Callable[[Any], Any]] = {
    **{type(cls.__iter__(empty)): cls.__iter__ for cls, empty in _SEQUENCES}, type(reversed([])): list.__reversed__,
    _OF_DEQUE: collections.deque.__iter__,
}  # fmt: skip

#: Of these the ones whose `__reduce__` tells a position from the beginning.
_BY_POSITION = frozenset({type(iter([])), type(iter(())), type(iter(range(0)))})

_PLAIN_SEQUENCES = frozenset({list, tuple, range})

#: Iterators over dictionaries and sets, which give a list of what is left.
_TABLES: tuple[dict[Any, Any], ...] = ({}, collections.OrderedDict())
_OF_TABLES: frozenset[type] = frozenset(
    type(made)
    for table in _TABLES
    for view in (table, table.values(), table.items())
    for made in (iter(view), reversed(view))
) | {type(iter(set()))}

_OVER_DICTIONARIES: dict[type, tuple[str, bool]] = {
    type(turned(getattr(_TABLES[0], name)())): (name, turned is reversed)
    for name in ("keys", "values", "items")
    for turned in (iter, reversed)
}

_CHANGEABLE = (list, dict, set, collections.deque)


def is_readable(iterator: Any) -> bool:
    """Whether `ahead` knows the class of an iterator, and those of the iterators that it reads."""
    kind = type(iterator)
    if kind is enumerate or kind is zip:
        return all(map(is_readable, read_by(iterator)))
    return kind in _OF_SEQUENCES or kind in _OF_TABLES


def read_by(iterator: Any) -> tuple[Any, ...]:
    """The iterators and the containers that may change from which an iterator takes its elements."""
    kind = type(iterator)
    if kind is zip:
        return iterator.__reduce__()[1]  # type: ignore[no-any-return]
    if kind is enumerate:
        return iterator.__reduce__()[1][:1]  # type: ignore[no-any-return]
    if kind in _BY_POSITION:
        return tuple([held for held in iterator.__reduce__()[1] if isinstance(held, list)])
    return tuple([held for held in gc.get_referents(iterator) if isinstance(held, _CHANGEABLE)])


class Ahead:
    """The elements of an equal iterator."""

    __slots__ = ("copy", "elements")

    def __init__(self, copy: Iterator[Any]) -> None:
        self.copy = copy
        self.elements: list[Any] = []

    def __getitem__(self, position: int) -> Any:
        elements = self.elements
        while len(elements) <= position:
            elements.append(next(self.copy, MISSING))
        return elements[position]


def ahead(iterator: Any) -> Ahead:
    """What an iterator gives next: `ahead(iterator)[k]` is the element after `k` others, `MISSING` from its end on.

    Raises:
        RuntimeError: where a dictionary or set has changed since.
        TypeError: for an iterator that is not `is_readable`.
    """
    return Ahead(_copied(iterator, {}))


def next_of(iterator: Any) -> Any:
    """`ahead(iterator)[0]`, which most guards ask for, without an iterator that is made for it.

    Raises:
        RuntimeError, TypeError: as `ahead` does.
    """
    kind = type(iterator)
    count = None
    if kind is enumerate:
        iterator, count = iterator.__reduce__()[1]
        kind = type(iterator)
    if kind in _BY_POSITION:
        state = iterator.__reduce__()
        if len(state) == 2:  # at its end it has let go of the sequence
            return MISSING
        (sequence,), position = state[1:]
        if type(sequence) in _PLAIN_SEQUENCES:  # a subclass may have methods of its own
            if position is None:
                position = 0
            if position >= len(sequence):
                return MISSING
            return sequence[position] if count is None else (count, sequence[position])
    elif kind in _OF_TABLES and count is None:
        _, (left,) = iterator.__reduce__()
        return left[0] if left else MISSING
    element = ahead(iterator)[0]
    return element if count is None or element is MISSING else (count, element)


def _copied(iterator: Any, known: dict[int, Iterator[Any]]) -> Iterator[Any]:
    """An equal iterator; those that it reads are copied with it, each once."""
    kind = type(iterator)
    over = _OF_SEQUENCES.get(kind)
    made = known.get(id(iterator)) if known else None
    if made is not None:
        return made
    _, arguments, *state = iterator.__reduce__()
    if kind is enumerate:
        made = enumerate(_copied(arguments[0], known), arguments[1])
    elif kind is zip:
        made = zip(*[_copied(source, known) for source in arguments], strict=bool(state))
    elif kind in _OF_TABLES:
        made = iter(arguments[0])
    elif over is None:
        raise TypeError(f"an iterator of the class {kind.__name__}")
    elif kind is _OF_DEQUE:
        made = _OF_DEQUE(*arguments)
    elif state:
        made = over(arguments[0])
        if state[0] is not None:
            made.__setstate__(state[0])  # type: ignore[attr-defined]
    else:  # at its end it has let go of the sequence
        made = iter(())
    known[id(iterator)] = made
    return made


def over_dictionary(iterator: Any) -> tuple[dict[Any, Any], str, bool, int] | None:
    """What a live iterator over a dictionary iterates over: the dictionary, the name of the view ("keys", "values" or
    "items"), whether backwards, and how many elements it gave. None for others, and those over ordered dictionaries.

    Raises:
        RuntimeError: where the dictionary got another size since.
    """
    found = _OVER_DICTIONARIES.get(type(iterator))
    table = next((held for held in gc.get_referents(iterator) if isinstance(held, dict)), None) if found else None
    if found is None or table is None:
        return None
    left = iterator.__length_hint__() or len(iterator.__reduce__()[1][0])  # which fails where there is no telling
    return table, *found, len(table) - left


def view_of(table: Any, name: str) -> Any:
    """`dict.values(table)` and its like, whatever a class that derives from dict says of it; `table` may be a read-only view
    of a dictionary, such as the parameters of a signature."""
    cls = next((cls for cls in (MappingProxyType, collections.OrderedDict) if isinstance(table, cls)), dict)
    return getattr(cls, name)(table)


def iterator_over(table: Any, view: str, backwards: bool, given: int) -> Iterator[Any]:
    """An iterator over a dictionary that has given so many elements."""
    elements = view_of(table, view)
    made = reversed(elements) if backwards else iter(elements)
    advance(made, given)
    return made


def advance(iterator: Iterator[Any], count: int) -> None:
    """Take so many elements, or that many attempts at its end."""
    for _ in range(count):
        next(iterator, None)
