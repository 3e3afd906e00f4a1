"""Functions behind `functools.lru_cache`: what is in the cache is read there, and what is not is worked out here.

Guards are on the entries of the cache. The calls themselves come afterwards, for the cache to count and order its entries.
"""

from __future__ import annotations

import functools
import gc
from typing import Any

from ..errors import Unsupported
from ..ir.caches import UNKNOWN, cached_result, owner_of
from .class_attributes import special_method
from .interpreter import Interpreter
from .kinds import CODE_TYPES
from .symbolic import ForeignObject, contains_symbolic, is_constant, real_of

KIND: type = type(functools.lru_cache(lambda: None))


def call(i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function through its cache."""
    args = tuple([i.outside.concrete(a) for a in args])
    wrapper = function.real
    table = _table(wrapper)
    known = all(is_constant(a) or _is_by_identity(i, a) for a in args)
    if table is None or kwargs or not known or wrapper.cache_parameters()["typed"]:
        raise Unsupported(f"a call of {wrapper.__qualname__} through its cache with these arguments")
    i.outside.guard("is", function.source, wrapper)
    given = tuple([real_of(a) for a in args])
    for argument, real in zip(args, given, strict=True):
        if not is_constant(argument):
            i.outside.guard("is", i.outside.source_of(argument), real)
    i.outside.cached_calls.append((wrapper, given))
    key = given[0] if len(given) == 1 and type(given[0]) in (int, str) else given
    place = i.outside.roots.constant(f"{wrapper.__qualname__}.cache", table)
    if key not in table:
        return _fill(i, wrapper, args, place, key)
    if wrapper.cache_parameters()["maxsize"] is None:
        return i.outside.wrap(table[key], place.item(key))
    found = cached_result(wrapper, table, key)
    if found is UNKNOWN:
        raise Unsupported(f"what {wrapper.__qualname__} has in its cache")
    i.outside.guard("is", place.item(key), table[key])  # the entry, which holds one result as long as it is there
    return found if is_constant(found) else i.outside.constant_object(found, f"{wrapper.__qualname__}()")


def _fill(i: Interpreter, wrapper: Any, args: tuple[Any, ...], place: Any, key: Any) -> Any:
    """The first call with these arguments: one that changes nothing may happen again, for the cache to be filled."""
    before = i.outside.effect_count(), i.graph.operators
    result = i.call_now(wrapper.__wrapped__, args)
    if (i.outside.effect_count(), i.graph.operators) != before or contains_symbolic(result) or not is_constant(result):
        raise Unsupported(f"the first call of {wrapper.__qualname__} with these arguments")
    i.outside.guard("cached", place, (key, result, owner_of(wrapper)))
    return result


def _is_by_identity(i: Interpreter, value: Any) -> bool:
    """Whether an argument is an object of the user's that is equal to itself alone."""
    if i.outside.source_of(value) is None or not isinstance(value, (ForeignObject, *CODE_TYPES)):
        return False
    return special_method(i, value, "__eq__") is object.__eq__ and special_method(i, value, "__hash__") is object.__hash__


def _table(wrapper: Any) -> dict[Any, Any] | None:
    """The dictionary in a cache."""
    tables = [found for found in gc.get_referents(wrapper) if type(found) is dict and found is not wrapper.__dict__]
    return tables[0] if len(tables) == 1 else None
