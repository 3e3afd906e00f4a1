"""Calls of functions behind `functools.lru_cache`.

What is in a cache is read there, with a guard on its entry, and what is not is worked out here. The calls themselves come
after the graph, for the cache to count and order its entries.
"""

from __future__ import annotations

import functools
import gc
from dataclasses import dataclass
from typing import Any

from ...errors import Unsupported
from ...ir.caches import UNKNOWN, cached_result, owner_of
from ...ir.reading import HEAP_TYPE
from ..interpreter import Args, Interpreter, Kwargs
from ..objects import hashing
from ..objects.class_attributes import special_method
from ..outside.changes import CachedCall
from ..symbolic import ForeignObject, FromOutside, Symbol, is_constant, real_of
from ..symbolic.kinds import CODE_TYPES
from ..symbolic.raising import NotYet


def call_cached(i: Interpreter, function: ForeignObject, args: Args, kwargs: Kwargs) -> Any:
    """Call a function through its cache."""
    args, kwargs = _concrete(i, args), {name: _concrete(i, value) for name, value in kwargs.items()}
    wrapper = function.real
    table = _table(wrapper)
    arguments = (*args, *kwargs.values())
    by_content = [a for a in arguments if not (is_constant(a) or _is_by_identity(i, a))]
    by_name = any(value is other for value in kwargs.values() for other in by_content)
    if table is None or by_name or not all(_is_held_by_content(i, a) for a in by_content):
        raise Unsupported(f"a call of {wrapper.__qualname__} through its cache with these arguments")
    i.outside.guard("is", function.source, wrapper)
    for argument in arguments:
        if not is_constant(argument) and not any(argument is other for other in by_content):
            i.outside.guard("is", i.outside.source_of(argument), real_of(argument))
    given = tuple([_as_key(i, a) for a in args])
    named = {name: real_of(value) for name, value in kwargs.items()}
    passed = tuple([a if any(a is other for other in by_content) else real_of(a) for a in args])
    key = _key(wrapper, given, named)
    called = functools.partial(wrapper, **named) if named else wrapper
    place = i.outside.roots.constant(f"{wrapper.__qualname__}.cache", table)
    if key not in table:
        made = [call.result for call in i.outside.cached_calls if call.wrapper is wrapper and call.key == key]
        reason = f"the first call of {wrapper.__qualname__} with these arguments"
        failure = NotYet(reason, "", f"{wrapper.__qualname__}.cache", table, key)
        result = made[0] if made else _first(i, wrapper, args, kwargs, failure)
        if made or _may_be_cached(i, result):
            if not made:
                i.outside.guard("cached", place, (key, _found_again(i, result), owner_of(wrapper)))
            i.outside.cached_calls.append(CachedCall(wrapper, key, called, passed, result))
            return result
        _fill(wrapper, given, named, result, failure)
        _early[id(wrapper), key] = _Made(called, (id(wrapper), key), table[key])
    early = _early.get((id(wrapper), key))
    if early is not None and early.entry is table[key] and all(c.called is not early for c in i.outside.cached_calls):
        called = early
    i.outside.cached_calls.append(CachedCall(wrapper, key, called, passed))
    if wrapper.cache_parameters()["maxsize"] is None:
        return i.outside.wrap(table[key], place.item(key))
    found = cached_result(wrapper, table, key)
    if found is UNKNOWN:
        raise Unsupported(f"what {wrapper.__qualname__} has in its cache")
    i.outside.guard("is", place.item(key), table[key])  # the entry, which holds one result as long as it is there
    if is_constant(found):
        return found
    return i.outside.wrap(found, i.outside.roots.constant(f"{wrapper.__qualname__}()", found))


def _concrete(i: Interpreter, value: Any) -> Any:
    if type(value) is tuple:
        return tuple([_concrete(i, v) for v in value])
    return i.outside.concrete(value)


def _key(wrapper: Any, args: Args, kwargs: Kwargs) -> Any:
    """Under what a cache has the result for these arguments."""
    typed = wrapper.cache_parameters()["typed"]
    if not (typed or kwargs):
        return args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    key = args
    if kwargs:
        marks = [found for found in gc.get_referents(wrapper) if type(found) is object]
        if len(marks) != 1:
            raise Unsupported(f"what {wrapper.__qualname__} marks named arguments by in its cache")
        key += (marks[0], *[part for item in kwargs.items() for part in item])
    return key + tuple(map(type, (*args, *kwargs.values()))) if typed else key


def _first(i: Interpreter, wrapper: Any, args: Args, kwargs: Kwargs, failure: NotYet) -> Any:
    """The first call with these arguments: one that changes nothing may happen again, for the cache to be filled."""
    before, operators = i.outside.noted(), i.graph.operators
    calls = len(i.outside.cached_calls)
    try:
        result = i.call_now(wrapper.__wrapped__, args, kwargs)
    except Unsupported as reason:
        if type(reason) is not Unsupported:
            raise
        raise NotYet(reason.reason, reason.hint, *failure.until) from None
    del i.outside.cached_calls[calls:]  # which this call makes
    if i.outside.has_changed(before) or i.graph.operators != operators:
        raise failure
    return result


def _may_be_cached(i: Interpreter, value: Any) -> bool:
    """Whether a later call is sure to give what this one does: a constant, an object of the user's, or a tuple of those."""
    if type(value) is tuple:
        return all(_may_be_cached(i, v) for v in value)
    return is_constant(value) or _is_by_identity(i, value)


def _found_again(i: Interpreter, value: Any) -> Any:
    """What a cache gives for a value that may be there, with a guard on which objects those in it are."""
    if is_constant(value):
        return value
    if type(value) is tuple:
        return tuple([_found_again(i, v) for v in value])
    i.outside.guard("is", i.outside.source_of(value), real_of(value))
    return real_of(value)


def _fill(wrapper: Any, args: Args, kwargs: Kwargs, result: Any, failure: NotYet) -> None:
    """Make the first call, as its result is an object that later calls give again. It changes nothing, and computes of
    constants alone what it computed on stand-ins: what the captured code has changed so far, Python does not see yet."""
    if not _is_like(result, wrapper.__wrapped__(*args, **kwargs)):
        raise failure
    wrapper(*args, **kwargs)


def _is_like(made: Any, real: Any) -> bool:
    """Whether an object that the captured code made is one of constants, and like another."""
    if issubclass(type(made), FromOutside):
        return made.real is real  # type: ignore[no-any-return]
    made = made.hint if type(made) is Symbol else made
    kind = type(made)
    if kind is not type(real):
        return False
    if kind in (tuple, list):
        return len(made) == len(real) and all(map(_is_like, made, real))
    if kind is dict:
        return [*map(repr, made)] == [*map(repr, real)] and all(map(_is_like, made.values(), real.values()))
    if is_constant(made):
        return repr(made) == repr(real)
    plain = kind.__basicsize__ == _Plain.__basicsize__ and kind.__flags__ & HEAP_TYPE
    return bool(plain) and _is_like(vars(made), vars(real))


class _Plain:
    """A class whose objects have attributes in a dictionary, and nothing else."""


@dataclass(eq=False, slots=True)
class _Made:
    """A call that was made already, when the code with it was captured: it is left out once."""

    called: Any
    place: tuple[int, Any]
    entry: Any  # what it left in the cache

    def __call__(self, *args: Any) -> Any:
        if _early.get(self.place) is not self:
            return self.called(*args)
        del _early[self.place]
        return None


#: Those that were not left out yet: by the function with the cache, and the key there.
_early: dict[tuple[int, Any], _Made] = {}


def _is_by_identity(i: Interpreter, value: Any) -> bool:
    """Whether an argument is an object of the user's that is equal to itself alone."""
    if i.outside.source_of(value) is None or not isinstance(value, (ForeignObject, *CODE_TYPES)):
        return False
    return special_method(i, value, "__eq__") is object.__eq__ and special_method(i, value, "__hash__") is object.__hash__


def _is_held_by_content(i: Interpreter, value: Any) -> bool:
    """Whether an argument is an object that its class says in Python how to compare, by what guards hold of it."""
    if not (type(value) is ForeignObject or i.is_created(value)) or not hashing.is_by_content(i, value):
        return False
    hashing.key_by_content(i, value)
    return True


def _as_key(i: Interpreter, value: Any) -> Any:
    """An argument as a cache has it under its key."""
    is_made = not isinstance(value, CODE_TYPES) and i.is_created(value)
    return hashing.constant_key(i, value).owner if is_made else real_of(value)


def _table(wrapper: Any) -> dict[Any, Any] | None:
    """The dictionary in a cache."""
    tables = [found for found in gc.get_referents(wrapper) if type(found) is dict and found is not wrapper.__dict__]
    return tables[0] if len(tables) == 1 else None
