"""Where CPython keeps what tells whether an object has changed: tried out on real objects, and never relied on where it does
not hold."""

from __future__ import annotations

import collections
import ctypes
import functools
from collections.abc import Callable
from typing import Any

from . import builtin, inline_values, watched
from .bulk_reads import list_layout_holds
from .watched import DICT_VERSION

SIZE = 16
ORDER_STATE = 88
TYPE_VERSION = 384
INSTANCE_DICT = -24
HAS_MANAGED_DICT = 1 << 4

DICTS = (dict, collections.OrderedDict, collections.defaultdict)


def version_of_type(kind: type) -> int:
    """The version of a class: it gets one when an attribute is looked up, and loses it when one is changed."""
    getattr(kind, "__init__", None)
    return ctypes.c_uint32.from_address(id(kind) + TYPE_VERSION).value


@functools.cache
def layout_holds() -> bool:
    if not list_layout_holds() or not builtin.layout_holds() or not watched.available():
        return False
    return _dict_versions_hold() and _orders_hold() and inline_values.hold() and _instances_hold() and tuple_items() > 0


@functools.cache
def references_are_counted() -> bool:
    """Whether objects begin with 32 bits that count the references to them."""
    probe = object()
    counter = ctypes.c_uint32.from_address(id(probe))
    before = counter.value
    more = [probe] * 3
    between = counter.value
    more.clear()
    return (between - before, counter.value) == (3, before)


def word_at(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _dict_versions_hold() -> bool:
    """Every kind of change gives a version that was not there before; looking changes nothing."""
    changes: list[Callable[[dict[str, Any]], Any]] = [
        lambda d: d.update(b=2), lambda d: d.__setitem__("a", object()), lambda d: d.pop("b"),
        lambda d: d.setdefault("c", 1), lambda d: d.__delitem__("c"), lambda d: d.popitem(), lambda d: d.clear(),
    ]  # fmt: skip
    for kind in DICTS:
        table: Any = kind()
        table["a"] = 1
        table["z"] = 2
        watched.follow(table)
        versions = [word_at(id(table) + DICT_VERSION)]
        for change in changes:
            table.get("a")
            if word_at(id(table) + DICT_VERSION) != versions[-1]:
                return False
            change(table)
            versions.append(word_at(id(table) + DICT_VERSION))
        if len(set(versions)) != len(versions):
            return False
    return True


def _orders_hold() -> bool:
    table = collections.OrderedDict(a=1, b=2, c=3)
    before, state = word_at(id(table) + DICT_VERSION), word_at(id(table) + ORDER_STATE)
    table.move_to_end("a")
    after, moved = word_at(id(table) + DICT_VERSION), word_at(id(table) + ORDER_STATE)
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
    if not Probe.__flags__ & HAS_MANAGED_DICT or word_at(id(instance) + INSTANCE_DICT) != id(own):
        return False
    versions = set()
    kept: list[Any] = []  # so that each value has another address
    for count in range(64):  # often enough for the interpreter to specialise the instruction
        store(instance, object())
        pointer = inline_values.pointer_of(own)
        words = [id(own) + DICT_VERSION, *inline_values.places(word_at(pointer) if pointer else 0)]
        versions.add(tuple([word_at(at) for at in words]))
        kept.append(instance.first)
        if len(versions) != count + 1 or own is not instance.__dict__:
            return False
    instance.__dict__ = {}
    if word_at(id(instance) + INSTANCE_DICT) != id(instance.__dict__):
        return False
    first = version_of_type(Probe)
    Probe.first = 3  # type: ignore[assignment]
    changed = ctypes.c_uint32.from_address(id(Probe) + TYPE_VERSION).value
    return 0 < first < 1 << 31 and changed == 0 and first < version_of_type(Probe) < 1 << 31


@functools.cache
def tuple_items() -> int:
    """Where a tuple has its items, 0 if not found: from Python 3.14 on after its hash."""
    probe = (object(), object())
    wanted = [id(p) for p in probe]
    places = [at for at in (24, 32) if [word_at(id(probe) + at + 8 * k) for k in range(2)] == wanted]
    return places[0] if places and word_at(id(probe) + SIZE) == 2 else 0
