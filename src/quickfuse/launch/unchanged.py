"""Whether a part of the user's objects is as it was when it was last looked at: modules, their dictionaries, lists.

A guard on the parameters of a model follows thousands of dictionary entries that hardly ever change. Every change of a
dictionary gives it a number that is used once in the life of the process: CPython's own version, or one that `watched.py`
counts. While a dictionary's number is the same, so are its keys and values. So a walk that found everything in order leaves
a list of machine words behind, (address, what is there), and the next walk is a loop over these: a few nanoseconds a module.

The words stand in such an order that none is read before those in front of it have shown that the object it belongs to is
alive. The list begins at the `roots`, which the caller holds; an unchanged dictionary holds its values, and a list whose
items are what they were holds those. So nothing here keeps a model alive, and nothing that was freed is followed:

* an instance:   its type, the version of its type (a patched class has another), and where its dictionary is
* a class:       its version
* a dictionary:  its type and version; for an `OrderedDict`, also the number that CPython counts for changes of its order
* a list:        its type, length, where its items are, and each item; a tuple: its type, length and items

An item of a list may be another object than before at the same address. All that matters of it is then among the words
that follow, but for numbers and strings, whose contents are not: those are kept.

All this is tried out on real objects first; where it does not hold, nothing is ever `unchanged`.
"""

from __future__ import annotations

import collections
import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.reading import entry
from ..ir.walk import PLAIN_VALUES, Step, is_plain_attribute
from ..signals import let_through
from . import builtin, cpu, inline_values, watched
from .bulk_reads import LIST_ITEMS, TYPE
from .object_layout import (
    DICTS,
    HAS_MANAGED_DICT,
    INSTANCE_DICT,
    ORDER_STATE,
    SIZE,
    TYPE_VERSION,
    layout_holds,
    tuple_items,
    version_of_type,
    word_at,
)
from .unchanged_ir import BLOCK_WORDS, READ_WORDS, find_ir, scan_ir
from .watched import DICT_VERSION

#: How many lists there are at most for one walk, which may begin at other roots for each layer of a model.
_MOST_LISTS = 32

_SCAN = "quickfuse_unchanged"

#: After how many walks a list that was hardly of use is made again, at most.
_LONGEST_WAIT = 4096


class Changed(Exception):
    """A walk met something that no word tells about."""


@dataclass(slots=True)
class _Places:
    """Addresses of words to look at, in order. `wanted`: what must be there for the words after to be looked at."""

    addresses: list[int] = field(default_factory=list)
    wanted: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[int, bool]] = field(default_factory=set)
    kept: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class _Note:
    """A list of words that is not in use yet. `values` keeps the objects alive until then, the roots first."""

    values: list[Any]
    pairs: Any
    roots: Any
    results: Any
    kept: list[Any]
    ids: list[int]  # of the roots


class Unchanged:
    """What is known about one walk, for each of the roots at which it began.

    `scan(roots)` gives the values of the results where everything is unchanged. Where it gives None, the caller walks by
    itself, between `begin(roots)` and `finish(note)`.
    """

    def __init__(self, steps: Sequence[Step], results: Sequence[int]) -> None:
        """`results` are the steps whose values `scan` returns."""
        self._steps = list(steps)
        self._results = list(results)
        self._in_use: list[_Note] = []
        self._block = (ctypes.c_int64 * (1 + _MOST_LISTS * BLOCK_WORDS))()
        self.scan = builtin.one_argument(_SCAN, _native()[0], ctypes.addressof(self._block))
        self._wait = 1
        self._skip = 1
        self._unfinished = False
        self._holder: dict[int, object] = {}  # who changes the lists

    @property
    def block_address(self) -> int:
        """The address of the lists in use, for `find_address()`."""
        return ctypes.addressof(self._block)

    def note_of(self, roots: list[Any]) -> _Note | None:
        """The list of words that is in use for these roots."""
        ids = [*map(id, roots)]
        return next((note for note in self._in_use if note.ids == ids), None)

    def begin(self, roots: list[Any]) -> _Note | None:
        """Write down the words as they are now, unless that was of little use the last times."""
        if self._in_use:
            self._alone(self._make_room, roots)
        if self._unfinished:  # the last walk did not find everything in order: perhaps none does
            self._unfinished = False
            self._wait = self._skip = min(2 * self._wait, _LONGEST_WAIT)
        if self._skip > 0:
            self._skip -= 1
            return None
        try:
            note = self._write_down(roots)
            self._unfinished = True
            return note
        except Exception as error:  # whatever the user's objects do here, the walk itself will do as well
            let_through(error)
            self._wait = self._skip = _LONGEST_WAIT
            return None

    def _make_room(self, roots: list[Any]) -> None:
        """Forget the list of these roots, in which something changed, or else the one of least use if there are too many."""
        ids = [*map(id, roots)]
        index = next((k for k, note in enumerate(self._in_use) if note.ids == ids), None)
        if index is None:
            if len(self._in_use) < _MOST_LISTS or self._skip > 0:
                return
            index = min(range(_MOST_LISTS), key=self._hits)
        self._wait = min(2 * self._wait, _LONGEST_WAIT) if self._hits(index) <= 2 else 1
        self._skip = self._wait
        self._forget(index)

    def _hits(self, index: int) -> int:
        """How often a list was of use."""
        return self._block[1 + index * BLOCK_WORDS + 6]

    def finish(self, note: _Note | None) -> None:
        """The walk since `begin` found everything in order: if nothing was changed meanwhile, that holds for the words."""
        if note is not None:
            self._alone(self._use, note)

    def _alone(self, change: Callable[[Any], None], what: Any) -> None:
        """Change the lists, unless that is going on already: nobody waits. Of a lock that was just taken, nobody would know
        where a signal handler raises then."""
        me = object()
        try:
            if self._holder.setdefault(0, me) is me:
                change(what)
        finally:
            if 0 in self._holder and self._holder[0] is me:  # without calls, after which signals are handled
                del self._holder[0]

    def _use(self, note: _Note) -> None:
        self._unfinished = False
        roots = note.values[: len(note.roots)]
        if len(self._in_use) == _MOST_LISTS or self.scan(roots) is not None:  # another thread was faster
            return
        count = len(self._in_use)
        first = 1 + count * BLOCK_WORDS
        self._block[first : first + BLOCK_WORDS] = [
            len(note.roots), note.roots.ctypes.data, len(note.pairs), note.pairs.ctypes.data,
            len(note.results), note.results.ctypes.data, -1,
        ]  # fmt: skip
        self._in_use.append(note)
        self._block[0] = count + 1
        if self.scan(roots) is None:
            self._wait = self._skip = min(2 * self._wait, _LONGEST_WAIT)
            self._forget(count)
        note.values = []

    def _forget(self, index: int) -> None:
        """Forget one list: the last one takes its place."""
        last = len(self._in_use) - 1
        self._block[0] = 0  # no other thread's scan runs at the same time: it holds the interpreter
        begin, end = 1 + index * BLOCK_WORDS, 1 + last * BLOCK_WORDS
        self._block[begin : begin + BLOCK_WORDS] = self._block[end : end + BLOCK_WORDS]
        self._in_use[index] = self._in_use[last]
        self._in_use.pop()
        self._block[0] = last

    def _write_down(self, roots: list[Any]) -> _Note:
        """Walk, read all words at once, and walk again. Other threads may run between any two lines of this: only where
        both walks went the same way do the words belong to it, and only until the next change of one of them."""
        values, places = self._walk(roots)
        words = _read_words(places)
        again, same_places = self._walk(roots)
        if same_places.addresses != places.addresses or any(a is not b for a, b in zip(values, again, strict=True)):
            raise Changed
        pairs = np.ascontiguousarray(np.stack([np.array(places.addresses, dtype=np.int64), words], axis=1))
        results = np.array([id(values[k]) for k in self._results], dtype=np.int64)
        ids = [*map(id, roots)]
        return _Note([*roots, *values], pairs, np.array(ids, dtype=np.int64), results, places.kept, ids)

    def _walk(self, roots: list[Any]) -> tuple[list[Any], _Places]:
        """The value of each step, and the words to look at."""
        values: list[Any] = []
        places = _Places()
        for step in self._steps:
            value = roots[step.key] if step.kind == "root" else _value(step, values)
            values.append(value)
            kind = type(value)
            if step.opened:
                index = (id(value), step.ordered)
                if index not in places.seen:
                    places.seen.add(index)
                    _open(value, kind, step.ordered, places)
            elif kind in PLAIN_VALUES:
                places.kept.append(value)
            elif step.typed:
                places.addresses.append(id(value) + TYPE)
        return values, places


def _value(step: Step, values: list[Any]) -> Any:
    if step.kind == "class":
        return step.key
    base = values[step.base]
    if step.kind == "member":
        return base.__dict__[step.key]
    if step.kind == "dict":
        return base.__dict__
    if step.kind == "attr":
        return _attribute(base, step.key)
    key = values[step.key] if step.kind == "lookup" else step.key
    return base[key] if type(base) in (list, tuple) else entry(base, key)


def _attribute(instance: Any, name: str) -> Any:
    """An attribute that is in the instance's dictionary, or a plain value in a class.

    Raises:
        Changed: where the class has a say in it.
    """
    kind = type(instance)
    if not is_plain_attribute(kind, name):
        raise Changed
    own = instance.__dict__
    if name in own:
        return own[name]
    for owner in kind.__mro__:
        if name in owner.__dict__:
            return owner.__dict__[name]
    raise Changed


def _open(value: Any, kind: type, ordered: bool, places: _Places) -> None:
    """Add the addresses of what tells whether a container is as it was."""
    place, addresses = id(value), places.addresses
    if isinstance(value, type):
        if not version_of_type(value):
            raise Changed
        addresses.append(place + TYPE_VERSION)
        return
    addresses.append(place + TYPE)
    if kind in DICTS:
        watched.follow(value)
        addresses.append(place + DICT_VERSION)
        if ordered and kind is collections.OrderedDict:
            addresses.append(place + ORDER_STATE)
    elif kind is list:
        addresses += [place + SIZE, place + LIST_ITEMS]
        items = places.wanted[len(addresses) - 1] = word_at(place + LIST_ITEMS)
        addresses += range(items, items + 8 * len(value), 8)
    elif kind is tuple:
        addresses.append(place + SIZE)
        items = place + tuple_items()
        addresses += range(items, items + 8 * len(value), 8)
    else:
        _open_instance(value, kind, places)


def _open_instance(value: Any, kind: type, places: _Places) -> None:
    addresses, seen = places.addresses, places.seen
    own = value.__dict__
    if not kind.__flags__ & HAS_MANAGED_DICT or type(own) is not dict:
        raise Changed
    pointer = id(value) + INSTANCE_DICT
    if word_at(pointer) != id(own):
        raise Changed
    if (id(kind), False) not in seen:
        seen.add((id(kind), False))
        if not version_of_type(kind):
            raise Changed
        addresses.append(id(kind) + TYPE_VERSION)
    addresses.append(pointer)
    if (id(own), False) not in seen:
        seen.add((id(own), False))
        watched.follow(own)
        addresses += [id(own) + TYPE, id(own) + DICT_VERSION]
        pointer = inline_values.pointer_of(own)
        if pointer:
            values = places.wanted[len(addresses)] = word_at(pointer)
            addresses += [pointer, *inline_values.places(values)]


def _read_words(places: _Places) -> Any:
    """What is at these addresses, all read before any other thread runs.

    Raises:
        Changed: where something wanted is no longer there.
    """
    addresses = np.array(places.addresses, dtype=np.int64)
    words = np.zeros_like(addresses)
    words[list(places.wanted)] = list(places.wanted.values())
    if not _native()[1](addresses.ctypes.data, words.ctypes.data, len(addresses)):
        raise Changed
    return words


def helpers() -> dict[str, Callable[..., Any]]:
    """What generated code needs of this module, nothing where this interpreter's objects are laid out differently."""
    return {"unchanged": Unchanged} if layout_holds() else {}


def find_address() -> int:
    """The address of a native function `(items, count, block)`: from an array of roots, how many there are, and the address
    of the lists in use, to the list of which everything is unchanged (see `_Note`), or null."""
    return _native()[2]


@functools.cache
def _native() -> tuple[int, Any, int]:
    """The address of the scan, the function that reads words, and the address of the search for a list."""
    find = f"{_SCAN}_find"
    scan = [scan_ir(f"{_SCAN}_block", find), builtin.of_one_argument(_SCAN, f"{_SCAN}_block", "object")]
    ir = [find_ir(find), *scan, READ_WORDS]
    addresses = cpu.load("\n".join(ir), [_SCAN, "quickfuse_read_words", find])
    reading = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return addresses[_SCAN], reading(addresses["quickfuse_read_words"]), addresses[find]
