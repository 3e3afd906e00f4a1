"""What is in the cache of a function behind `functools.lru_cache`, without calling it."""

from __future__ import annotations

import functools
import gc
from typing import Any

#: Stands for a result that cannot be read.
UNKNOWN = object()


@functools.lru_cache(maxsize=2)
def _example() -> None:
    """A function whose cache shows what the entries of caches of limited size are."""


_example()
_TABLE: dict[Any, Any] = next(found for found in gc.get_referents(_example) if type(found) is dict and found)
_ENTRY: type = type(next(iter(_TABLE.values())))


def is_entry(value: Any) -> bool:
    """Whether a value in the dictionary of a cache is an entry of a cache of limited size, which has the result in it."""
    return type(value) is _ENTRY


def cached_result(wrapper: Any, table: dict[Any, Any], key: Any) -> Any:
    """The result that a cache of limited size has under a key, `UNKNOWN` where that is not known for sure.

    A cache tells the garbage collector of its entries one after the other: of the key, the result, and the entry's class.
    Then it tells of the dictionary.
    """
    referents = gc.get_referents(wrapper)
    referents = referents[: next((k for k, found in enumerate(referents) if found is table), 0)]
    ends = [k for k, found in enumerate(referents) if found is _ENTRY]
    keys = [referents[k - 2] for k in ends if k >= 2]
    if len(ends) != len(table) or {*map(id, keys)} != {*map(id, table)}:
        return UNKNOWN
    found = [referents[end - 1] for end, own in zip(ends, keys, strict=True) if own is key or _is_same(own, key)]
    return found[0] if len(found) == 1 else UNKNOWN


def _is_same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and bool(left == right)


class _Checked:
    """The entries that were found to hold what is wanted: looking again takes long."""

    __slots__ = ("entry",)

    def __init__(self) -> None:
        self.entry: Any = None


def cached_holds(table: dict[Any, Any], key: Any, wanted: Any, owner: tuple[Any, _Checked] | None) -> bool:
    """Whether a cache has nothing, or what is wanted, under a key. `owner`: the function that the cache belongs to."""
    found = table.get(key, UNKNOWN)
    if found is UNKNOWN:
        return True
    if owner is not None and is_entry(found):
        wrapper, checked = owner
        if checked.entry is found:
            return True
        entry, found = found, cached_result(wrapper, table, key)
        if _is_wanted(found, wanted):
            checked.entry = entry
    return _is_wanted(found, wanted)


def _is_wanted(found: Any, wanted: Any) -> bool:
    """Whether a result is the same object, or a constant like it; tuples are looked into."""
    if found is wanted:
        return True
    kind = type(wanted)
    if type(found) is not kind:
        return False
    if kind is tuple:
        return len(found) == len(wanted) and all(map(_is_wanted, found, wanted))
    by_identity: Any = object.__eq__
    return kind.__eq__ is not by_identity and repr(found) == repr(wanted)


def owner_of(wrapper: Any) -> tuple[Any, _Checked]:
    """What `cached_holds` needs to know of the function that a cache belongs to."""
    return wrapper, _Checked()
