"""Where an instance keeps its attributes in CPython 3.13: in itself, beside its dictionary, whose version says nothing.

The dictionary has a pointer to them, at which there are four bytes (how many places there are, how many are taken, whether
they are inside of the instance, whether they are in use), then the values from the next word on, and then the order in which
they were set, a byte each. As long as the words with these and the values that are there are the same, so are the
attributes: a new one is counted, unless another one was deleted, whose place is then not the same.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

_VALUES = 40
_WORD = 8


def pointer_of(dictionary: dict[str, Any]) -> int:
    """The address at which an instance's dictionary has the address of these values; 0 where versions tell of everything."""
    return id(dictionary) + _VALUES if _needed() else 0


def places(values: int) -> list[int]:
    """The addresses of the words that tell of all attributes, for values that begin at `values`."""
    if not values:
        return []
    taken = ctypes.string_at(values, 2)
    capacity, size = taken[0], taken[1]
    first = values + _WORD
    order = first + capacity * _WORD
    slots = [at for at in range(first, order, _WORD) if _word(at)]
    return [values, *slots, *range(order, order + size, _WORD)]


@functools.cache
def _needed() -> bool:
    return sys.version_info[:2] == (3, 13)


@functools.cache
def hold() -> bool:
    """Whether instances are laid out like this, where it matters."""
    if not _needed():
        return True

    class Probe:
        def __init__(self) -> None:
            self.first, self.second = object(), object()

    probe = Probe()
    values = _word(pointer_of(probe.__dict__))
    if not id(probe) < values < id(probe) + 64:
        return False
    found = places(values)
    if [_word(at) for at in found[1:3]] != [id(probe.first), id(probe.second)] or len(found) != 4:
        return False
    return all(_tells(probe, values, change) for change in ("store", "add", "delete", "order", "replace"))


def _tells(probe: Any, values: int, change: str) -> bool:
    """Whether a word is another one after a change."""
    addresses = [pointer_of(probe.__dict__), *places(values)]
    before = [_word(at) for at in addresses]
    if change == "store":
        probe.first = object()
    elif change == "add":
        probe.third = 3
    elif change == "delete":
        del probe.third
    elif change == "order":
        first = probe.first
        del probe.first
        probe.first = first
    else:  # by something that the places cannot hold
        probe.__dict__[1] = 2
    return before != [_word(at) for at in addresses]


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value
