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
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ir.reading import entry
from ..ir.walk import PLAIN_VALUES, Step, is_plain_attribute
from ..signals import let_through
from . import builtin, cpu, inline_values, watched
from .bulk_reads import list_layout_holds
from .watched import DICT_VERSION

_TYPE = 8
_SIZE = 16
_LIST_ITEMS = 24
_ORDER_STATE = 88
_TYPE_VERSION = 384
_INSTANCE_DICT = -24
_HAS_MANAGED_DICT = 1 << 4

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)

#: Words of the block that the native function reads for each list: how many roots, where they are, the same for words and
#: results, and how often it found everything unchanged.
_BLOCK_WORDS = 7
#: Which of these words is where the results are, another place for each list.
RESULTS_WORD = 5
#: How many lists there are at most for one walk, which may begin at other roots for each layer of a model.
_MOST_LISTS = 32

_SCAN = "quickfuse_unchanged"

#: After how many walks a list that was hardly of use is made again, at most.
_LONGEST_WAIT = 4096


class Changed(Exception):
    """A walk met something that no word tells about."""


@dataclass(slots=True)
class _Places:
    """Addresses of words to look at, in order. `wanted`: what must be there for the words behind to be looked at."""

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
        self._block = (ctypes.c_int64 * (1 + _MOST_LISTS * _BLOCK_WORDS))()
        self.scan = builtin.one_argument(_SCAN, _native()[0], ctypes.addressof(self._block))
        self._wait = 1
        self._skip = 1
        self._unfinished = False
        self._lock = threading.Lock()

    @property
    def block_address(self) -> int:
        """The address of the lists in use, for `find_address()`."""
        return ctypes.addressof(self._block)

    def note_of(self, roots: list[Any]) -> _Note | None:
        """The list of words that is in use for these roots."""
        ids = [*map(id, roots)]
        return next((note for note in self._in_use if note.roots.tolist() == ids), None)

    def begin(self, roots: list[Any]) -> _Note | None:
        """Write down the words as they are now, unless that was of little use the last times."""
        if self._in_use and self._lock.acquire(blocking=False):
            self._make_room(roots)
            self._lock.release()
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
        known = [note.roots[0] == id(roots[0]) and note.roots.tolist() == [*map(id, roots)] for note in self._in_use]
        hits = [self._block[1 + k * _BLOCK_WORDS + 6] for k in range(len(known))]
        if True in known:
            index = known.index(True)
        elif len(known) == _MOST_LISTS and self._skip <= 0:
            index = hits.index(min(hits))
        else:
            return
        self._wait = min(2 * self._wait, _LONGEST_WAIT) if hits[index] <= 2 else 1
        self._skip = self._wait
        self._forget(index)

    def finish(self, note: _Note | None) -> None:
        """The walk since `begin` found everything in order: if nothing was changed meanwhile, that holds for the words."""
        if note is None or not self._lock.acquire(blocking=False):
            return
        self._unfinished = False
        try:
            self._use(note)
        finally:
            self._lock.release()

    def _use(self, note: _Note) -> None:
        roots = note.values[: len(note.roots)]
        if len(self._in_use) == _MOST_LISTS or self.scan(roots) is not None:  # another thread was faster
            return
        count = len(self._in_use)
        first = 1 + count * _BLOCK_WORDS
        self._block[first : first + _BLOCK_WORDS] = [
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
        begin, end = 1 + index * _BLOCK_WORDS, 1 + last * _BLOCK_WORDS
        self._block[begin : begin + _BLOCK_WORDS] = self._block[end : end + _BLOCK_WORDS]
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
        return _Note([*roots, *values], pairs, np.array([id(r) for r in roots], dtype=np.int64), results, places.kept)

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
                places.addresses.append(id(value) + _TYPE)
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
        if not _type_version(value):
            raise Changed
        addresses.append(place + _TYPE_VERSION)
        return
    addresses.append(place + _TYPE)
    if kind in _DICTS:
        watched.follow(value)
        addresses.append(place + DICT_VERSION)
        if ordered and kind is collections.OrderedDict:
            addresses.append(place + _ORDER_STATE)
    elif kind is list:
        addresses += [place + _SIZE, place + _LIST_ITEMS]
        items = places.wanted[len(addresses) - 1] = _word(place + _LIST_ITEMS)
        addresses += range(items, items + 8 * len(value), 8)
    elif kind is tuple:
        addresses.append(place + _SIZE)
        items = place + _tuple_items()
        addresses += range(items, items + 8 * len(value), 8)
    else:
        _open_instance(value, kind, places)


def _open_instance(value: Any, kind: type, places: _Places) -> None:
    addresses, seen = places.addresses, places.seen
    own = value.__dict__
    if not kind.__flags__ & _HAS_MANAGED_DICT or type(own) is not dict:
        raise Changed
    pointer = id(value) + _INSTANCE_DICT
    if _word(pointer) != id(own):
        raise Changed
    if (id(kind), False) not in seen:
        seen.add((id(kind), False))
        if not _type_version(kind):
            raise Changed
        addresses.append(id(kind) + _TYPE_VERSION)
    addresses.append(pointer)
    if (id(own), False) not in seen:
        seen.add((id(own), False))
        watched.follow(own)
        addresses += [id(own) + _TYPE, id(own) + DICT_VERSION]
        pointer = inline_values.pointer_of(own)
        if pointer:
            values = places.wanted[len(addresses)] = _word(pointer)
            addresses += [pointer, *inline_values.places(values)]


def _type_version(kind: type) -> int:
    """The version of a class: it gets one when an attribute is looked up, and loses it when one is changed."""
    getattr(kind, "__init__", None)
    return ctypes.c_uint32.from_address(id(kind) + _TYPE_VERSION).value


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
    return {"unchanged": Unchanged} if _layout_holds() else {}


def find_address() -> int:
    """The address of a native function `(items, count, block)`: from an array of roots, how many there are, and the address
    of the lists in use, to the list of which everything is unchanged (see `_Note`), or null."""
    return _native()[2]


@functools.cache
def _native() -> tuple[int, Any, int]:
    """The address of the scan, the function that reads words, and the address of the search for a list."""
    find = f"{_SCAN}_find"
    scan = [_scan_ir(f"{_SCAN}_block", find), builtin.of_one_argument(_SCAN, f"{_SCAN}_block", "object")]
    ir = [_find_ir(find), *scan, _READ_WORDS]
    addresses = cpu.load("\n".join(ir), [_SCAN, "quickfuse_read_words", find])
    reading = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return addresses[_SCAN], reading(addresses["quickfuse_read_words"]), addresses[find]


@functools.cache
def _layout_holds() -> bool:
    if not list_layout_holds() or not builtin.layout_holds() or not watched.available():
        return False
    return _dict_versions_hold() and _orders_hold() and inline_values.hold() and _instances_hold() and _tuple_items() > 0


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _dict_versions_hold() -> bool:
    """Every kind of change gives a version that was not there before; looking changes nothing."""
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda d: d.update(b=2), lambda d: d.__setitem__("a", object()), lambda d: d.pop("b"),
        lambda d: d.setdefault("c", 1), lambda d: d.__delitem__("c"), lambda d: d.popitem(), lambda d: d.clear(),
    ]  # fmt: skip
    for kind in _DICTS:
        table: Any = kind()
        table["a"] = 1
        table["z"] = 2
        watched.follow(table)
        versions = [_word(id(table) + DICT_VERSION)]
        for change in changes:
            table.get("a")
            if _word(id(table) + DICT_VERSION) != versions[-1]:
                return False
            change(table)
            versions.append(_word(id(table) + DICT_VERSION))
        if len(set(versions)) != len(versions):
            return False
    return True


def _orders_hold() -> bool:
    table = collections.OrderedDict(a=1, b=2, c=3)
    before, state = _word(id(table) + DICT_VERSION), _word(id(table) + _ORDER_STATE)
    table.move_to_end("a")
    after, moved = _word(id(table) + DICT_VERSION), _word(id(table) + _ORDER_STATE)
    return (before, state) != (after, moved) and 0 < state < moved < 1 << 20


def _instances_hold() -> bool:
    class Probe:
        def __init__(self) -> None:
            self.first = 1

    def store(probe: Any, value: Any) -> None:
        probe.first = value

    instance = Probe()
    own = instance.__dict__
    watched.follow(own)
    if not Probe.__flags__ & _HAS_MANAGED_DICT or _word(id(instance) + _INSTANCE_DICT) != id(own):
        return False
    versions = set()
    kept: list[Any] = []  # so that each value has another address
    for count in range(64):  # often enough for the interpreter to specialise the instruction
        store(instance, object())
        pointer = inline_values.pointer_of(own)
        words = [id(own) + DICT_VERSION, *inline_values.places(_word(pointer) if pointer else 0)]
        versions.add(tuple([_word(at) for at in words]))
        kept.append(instance.first)
        if len(versions) != count + 1 or own is not instance.__dict__:
            return False
    instance.__dict__ = {}
    if _word(id(instance) + _INSTANCE_DICT) != id(instance.__dict__):
        return False
    first = _type_version(Probe)
    Probe.first = 3  # type: ignore[assignment]
    changed = ctypes.c_uint32.from_address(id(Probe) + _TYPE_VERSION).value
    return 0 < first < 1 << 31 and changed == 0 and first < _type_version(Probe) < 1 << 31


@functools.cache
def _tuple_items() -> int:
    """Where a tuple has its items, 0 if not found: from Python 3.14 on behind its hash."""
    probe = (object(), object())
    wanted = [id(p) for p in probe]
    places = [at for at in (24, 32) if [_word(id(probe) + at + 8 * k) for k in range(2)] == wanted]
    return places[0] if places and _word(id(probe) + _SIZE) == 2 else 0


def returned_list_ir(objects: str, count: str) -> str:
    """LLVM IR that returns a new Python list of the objects in an array, or null where there is no memory for it."""
    return f"""  %made = call ptr {builtin.api("PyList_New")}(i64 {count})
  %failed = icmp eq ptr %made, null
  br i1 %failed, label %fail, label %fill
fill:
  %slots.p = getelementptr i8, ptr %made, i64 {_LIST_ITEMS}
  %slots = load ptr, ptr %slots.p
  br label %out.head
out.head:
  %o = phi i64 [ 0, %fill ], [ %o.next, %out.body ]
  %out.done = icmp sge i64 %o, {count}
  br i1 %out.done, label %exit, label %out.body
out.body:
  %value.p = getelementptr ptr, ptr {objects}, i64 %o
  %value = load ptr, ptr %value.p
  call void {builtin.api("Py_IncRef")}(ptr %value)
  %slot = getelementptr ptr, ptr %slots, i64 %o
  store ptr %value, ptr %slot
  %o.next = add i64 %o, 1
  br label %out.head
exit:
  ret ptr %made
fail:
  ret ptr null"""


#: LLVM IR that returns None.
RETURNED_NONE = f"""  call void {builtin.api("Py_IncRef")}(ptr inttoptr (i64 {id(None)} to ptr))
  ret ptr inttoptr (i64 {id(None)} to ptr)"""


def pairs_ir(before: str, count: str, after: str) -> str:
    """LLVM IR of the block `pair.head`, which comes after the block `before`: it compares the words at addresses with those
    wanted, by the pairs at %pairs, in their order, and goes to the block `after`, or to `changed`."""
    return f"""pair.head:
  %k = phi i64 [ 0, {before} ], [ %k.next, %pair.next ]
  %pairs.done = icmp sge i64 %k, {count}
  br i1 %pairs.done, label %{after}, label %pair.body
pair.body:
  %pair = getelementptr {{ i64, i64 }}, ptr %pairs, i64 %k
  %address = load ptr, ptr %pair
  %want.p = getelementptr i64, ptr %pair, i64 1
  %want = load i64, ptr %want.p
  %word = load i64, ptr %address
  %same = icmp eq i64 %word, %want
  br i1 %same, label %pair.next, label %changed
pair.next:
  %k.next = add i64 %k, 1
  br label %pair.head"""


def _find_ir(name: str) -> str:
    """LLVM IR that finds the block with the roots in an array, and compares all its words."""
    fields = "\n".join(
        f"  %f{k}.p = getelementptr i64, ptr %block, i64 {k}\n  %f{k} = load i64, ptr %f{k}.p" for k in range(_BLOCK_WORDS)
    )
    return f"""
define ptr @{name}(ptr %items, i64 %size, i64 %block.i) {{
entry:
  %blocks = inttoptr i64 %block.i to ptr
  %count = load i64, ptr %blocks
  br label %block.head
block.head:
  %b = phi i64 [ 0, %entry ], [ %b.next, %block.next ]
  %blocks.done = icmp sge i64 %b, %count
  br i1 %blocks.done, label %changed, label %block.body
block.next:
  %b.next = add i64 %b, 1
  br label %block.head
block.body:
  %block.at = mul i64 %b, {_BLOCK_WORDS}
  %block.word = add i64 %block.at, 1
  %block = getelementptr i64, ptr %blocks, i64 %block.word
{fields}
  %as.many = icmp eq i64 %size, %f0
  br i1 %as.many, label %start, label %block.next
start:
  %roots = inttoptr i64 %f1 to ptr
  %pairs = inttoptr i64 %f3 to ptr
  br label %root.head
root.head:
  %r = phi i64 [ 0, %start ], [ %r.next, %root.next ]
  %roots.done = icmp sge i64 %r, %f0
  br i1 %roots.done, label %pair.head, label %root.body
root.body:
  %root.now.p = getelementptr i64, ptr %items, i64 %r
  %root.now = load i64, ptr %root.now.p
  %root.then.p = getelementptr i64, ptr %roots, i64 %r
  %root.then = load i64, ptr %root.then.p
  %root.same = icmp eq i64 %root.now, %root.then
  br i1 %root.same, label %root.next, label %block.next
root.next:
  %r.next = add i64 %r, 1
  br label %root.head
{pairs_ir("%root.head", "%f2", "found")}
found:
  %hits = add i64 %f6, 1
  store i64 %hits, ptr %f6.p
  ret ptr %block
changed:
  ret ptr null
}}
"""


def _scan_ir(name: str, find: str) -> str:
    """LLVM IR of the scan of the roots in a Python list, which makes the list of results where all is unchanged."""
    return f"""
define ptr @{name}(ptr %list, i64 %block.i) {{
entry:
  %size.p = getelementptr i8, ptr %list, i64 {_SIZE}
  %size = load i64, ptr %size.p
  %items.p = getelementptr i8, ptr %list, i64 {_LIST_ITEMS}
  %items = load ptr, ptr %items.p
  %block = call ptr @{find}(ptr %items, i64 %size, i64 %block.i)
  %none = icmp eq ptr %block, null
  br i1 %none, label %changed, label %collect
collect:
  %count.p = getelementptr i64, ptr %block, i64 4
  %count = load i64, ptr %count.p
  %results.p = getelementptr i64, ptr %block, i64 {RESULTS_WORD}
  %results = load ptr, ptr %results.p
{returned_list_ir("%results", "%count")}
changed:
{RETURNED_NONE}
}}
"""


#: IR that puts what is at `places` into `words`. A word that is not 0 there before is what must be found: 0 is returned
#: where it is not, and nothing behind it is read.
_READ_WORDS = """
define i64 @quickfuse_read_words(i64 %places.i, i64 %words.i, i64 %count) {
entry:
  %places = inttoptr i64 %places.i to ptr
  %words = inttoptr i64 %words.i to ptr
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %keep ]
  %done = icmp sge i64 %k, %count
  br i1 %done, label %exit, label %body
body:
  %place.p = getelementptr ptr, ptr %places, i64 %k
  %place = load ptr, ptr %place.p
  %word = load i64, ptr %place
  %word.p = getelementptr i64, ptr %words, i64 %k
  %wanted = load i64, ptr %word.p
  %any = icmp eq i64 %wanted, 0
  %as.wanted = icmp eq i64 %wanted, %word
  %good = or i1 %any, %as.wanted
  br i1 %good, label %keep, label %changed
keep:
  store i64 %word, ptr %word.p
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 1
changed:
  ret i64 0
}
"""
