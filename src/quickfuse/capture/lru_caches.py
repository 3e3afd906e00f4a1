"""Functions behind `functools.lru_cache`: what is in the cache is read there, and what is not is worked out here.

Guards are on the entries of the cache. The calls themselves come afterwards, for the cache to count and order its entries.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

from ..errors import Unsupported
from ..ir.caches import UNKNOWN, cached_result
from .interpreter import Interpreter
from .values import ForeignObject, contains_symbolic, is_constant

KIND: type = type(functools.lru_cache(lambda: None))


def call(i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function through its cache."""
    args = tuple([i.outside.concrete(a) for a in args])
    wrapper = function.real
    table = _table(wrapper)
    if table is None or kwargs or not all(map(is_constant, args)) or wrapper.cache_parameters()["typed"]:
        raise Unsupported(f"a call of {wrapper.__qualname__} through its cache with these arguments")
    i.outside.guard("is", function.source, wrapper)
    i.outside.cached_calls.append((wrapper, args))
    key = args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    place = i.outside.roots.constant(f"{wrapper.__qualname__}.cache", table)
    if key not in table:
        return _fill(i, wrapper, args, place, key)
    if wrapper.cache_parameters()["maxsize"] is None:
        return i.outside.wrap(table[key], place.item(key))
    found = cached_result(table[key])
    if found is UNKNOWN or not is_constant(found):
        raise Unsupported(f"what {wrapper.__qualname__} has in its cache")
    i.outside.guard("is", place.item(key), table[key])  # the entry, which holds one result as long as it is there
    return found


def _fill(i: Interpreter, wrapper: Any, args: tuple[Any, ...], place: Any, key: Any) -> Any:
    """The first call with these arguments: one that changes nothing may happen again, for the cache to be filled."""
    before = i.outside.effect_count(), i.graph.operators
    result = i.call_now(wrapper.__wrapped__, args)
    if (i.outside.effect_count(), i.graph.operators) != before or contains_symbolic(result) or not is_constant(result):
        raise Unsupported(f"the first call of {wrapper.__qualname__} with these arguments")
    i.outside.guard("cached", place, (key, result))
    return result


def _table(wrapper: Any) -> dict[Any, Any] | None:
    """The dictionary in a cache."""
    tables = [found for found in gc.get_referents(wrapper) if type(found) is dict and found is not wrapper.__dict__]
    return tables[0] if len(tables) == 1 else None
