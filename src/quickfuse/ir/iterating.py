"""What an iterator will give next, without advancing it: for those of Python's own classes, which run no code of the user's.

Capture reads the elements of an iterator that existed before, as guards do later; compiled code advances it afterwards.
"""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator
from typing import Any

from .reading import MISSING

_SEQUENCES: tuple[tuple[Any, Any], ...] = (
    (list, []), (tuple, ()), (str, ""), (str, "\u1234"), (bytes, b""), (range, range(0)), (range, range(1 << 65)),
)  # fmt: skip
#: Iterators over sequences, which say what they iterate over and how far they are: how to make another one.
_OF_SEQUENCES: dict[type, Callable[[Any], Any]] = {
    **{type(cls.__iter__(empty)): cls.__iter__ for cls, empty in _SEQUENCES}, type(reversed([])): list.__reversed__,
    type(iter(collections.deque())): collections.deque.__iter__,
}  # fmt: skip

#: Of these the ones whose `__reduce__` tells a position from the beginning.
_BY_POSITION = frozenset({type(iter([])), type(iter(())), type(iter(range(0)))})

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


def ahead(iterator: Any) -> Any:
    """What an iterator gives next: `ahead(iterator)[k]` is the element after `k` others, `MISSING` from its end on."""
    return _READERS.get(type(iterator), _Copy)(iterator)


def _of_sequence(iterator: Any) -> Any:
    _, (sequence,), *state = iterator.__reduce__()
    if type(sequence) not in (list, tuple, range):
        return _Copy(iterator)
    return _Sequence(sequence, state[0] or 0) if state else _Sequence((), 0)  # at its end it has let go of the sequence


def _of_table(iterator: Any) -> Any:
    return _Sequence(iterator.__reduce__()[1][0], 0)


def _of_enumerate(iterator: Any) -> Any:
    source, count = iterator.__reduce__()[1]
    return _Numbered(ahead(source), count)


def _of_zip(iterator: Any) -> Any:
    _, sources, *strict = iterator.__reduce__()
    if strict or not sources or len({*map(id, sources)}) < len(sources) or not _ONE_BY_ONE.issuperset(map(type, sources)):
        return _Copy(iterator)
    return _Zipped([_READERS[type(source)](source) for source in sources])


class _Sequence:
    """The elements of a sequence from a position on."""

    __slots__ = ("sequence", "start")

    def __init__(self, sequence: Any, start: int) -> None:
        self.sequence = sequence
        self.start = start

    def __getitem__(self, position: int) -> Any:
        position += self.start
        return self.sequence[position] if position < len(self.sequence) else MISSING


class _Numbered:
    """What `enumerate` gives."""

    __slots__ = ("count", "elements")

    def __init__(self, elements: Any, count: int) -> None:
        self.elements = elements
        self.count = count

    def __getitem__(self, position: int) -> Any:
        element = self.elements[position]
        return MISSING if element is MISSING else (self.count + position, element)


class _Zipped:
    """What `zip` gives for iterators that do not share what they read."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __getitem__(self, position: int) -> Any:
        elements = []
        for part in self.parts:
            element = part[position]
            if element is MISSING:
                return MISSING
            elements.append(element)
        return tuple(elements)


class _Copy:
    """The elements of an equal iterator."""

    __slots__ = ("copy", "elements")

    def __init__(self, iterator: Any) -> None:
        self.elements: list[Any] = []
        self.copy = _copied(iterator, {})

    def __getitem__(self, position: int) -> Any:
        elements = self.elements
        while len(elements) <= position:
            elements.append(next(self.copy, MISSING))
        return elements[position]


#: Iterators that read no others.
_ONE_BY_ONE = _BY_POSITION | _OF_TABLES
_READERS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys(_BY_POSITION, _of_sequence), **dict.fromkeys(_OF_TABLES, _of_table), enumerate: _of_enumerate,
    zip: _of_zip,
}  # fmt: skip


def _copied(iterator: Any, known: dict[int, Iterator[Any]]) -> Iterator[Any]:
    """An equal iterator; those that it reads are copied with it, each once.

    Raises:
        RuntimeError: where a dictionary or set has changed since.
        TypeError: for an iterator of another class.
    """
    if id(iterator) in known:
        return known[id(iterator)]
    kind = type(iterator)
    made: Any
    if kind is enumerate:
        source, count = iterator.__reduce__()[1]
        made = enumerate(_copied(source, known), count)
    elif kind is zip:
        sources, *strict = iterator.__reduce__()[1:]
        made = zip(*[_copied(source, known) for source in sources], strict=bool(strict))
    elif kind in _OF_TABLES:
        made = iter(iterator.__reduce__()[1][0])
    elif kind is type(iter(collections.deque())):
        made = kind(*iterator.__reduce__()[1])
    elif kind in _OF_SEQUENCES:
        _, (sequence,), *state = iterator.__reduce__()
        made = _OF_SEQUENCES[kind](sequence) if state else iter(())  # at its end it has let go of the sequence
        if state and state[0] is not None:
            made.__setstate__(state[0])
    else:
        raise TypeError(f"an iterator of the class {kind.__name__}")
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


def iterator_over(table: dict[Any, Any], view: str, backwards: bool, given: int) -> Iterator[Any]:
    """An iterator over a dictionary that has given so many elements."""
    cls = collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict
    elements = getattr(cls, view)(table)
    made = reversed(elements) if backwards else iter(elements)
    advance(made, given)
    return made


def advance(iterator: Iterator[Any], count: int) -> None:
    """Take so many elements, or that many attempts at its end."""
    for _ in range(count):
        next(iterator, None)
