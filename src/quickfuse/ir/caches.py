"""What is in the cache of a function behind `functools.lru_cache`, without calling it."""

from __future__ import annotations

import ctypes
import functools
import gc
from typing import Any

#: Where an entry of a cache of limited size has its key and its result.
_KEY, _RESULT = 40, 48

#: Stands for a result that cannot be read.
UNKNOWN = object()


def cached_result(entry: Any) -> Any:
    """The result in an entry of a cache of limited size, `UNKNOWN` if this CPython lays entries out in another way."""
    return ctypes.py_object.from_address(id(entry) + _RESULT).value if _layout_holds() else UNKNOWN


def cached_holds(table: dict[Any, Any], key: Any, wanted: Any) -> bool:
    """Whether a cache has nothing, or a constant, under a key."""
    if key not in table:
        return True
    entry = table[key]
    found = cached_result(entry) if type(entry).__name__ == "_lru_list_elem" else entry
    return type(found) is type(wanted) and repr(found) == repr(wanted)


@functools.cache
def _layout_holds() -> bool:
    key, result = (object(), object()), object()

    @functools.lru_cache(maxsize=2)
    def example(*_: Any) -> Any:
        return result

    example(*key)
    tables = [found for found in gc.get_referents(example) if type(found) is dict and key in found]
    entry = tables[0][key] if tables else None
    if type(entry).__name__ != "_lru_list_elem" or entry.__sizeof__() < _RESULT + 8:
        return False
    at_result = ctypes.c_void_p.from_address(id(entry) + _RESULT).value
    return at_result == id(result) and ctypes.py_object.from_address(id(entry) + _KEY).value == key
