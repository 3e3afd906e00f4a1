"""What makes functions of functions in `functools`: `singledispatch`, and `lru_cache`.

Which implementation a class gets is guarded by what is registered. What is in a cache is read there, and what is not is
worked out here: guards are on the entries of the cache. The calls themselves come afterwards, for the cache to count and
order its entries.
"""

from __future__ import annotations

import abc
import functools
import gc
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

from ..errors import Unsupported
from ..ir.caches import UNKNOWN, cached_result, owner_of
from .class_attributes import guard_order, special_method
from .interpreter import Interpreter, Then
from .kinds import CODE_TYPES
from .symbolic import ForeignObject, contains_symbolic, is_constant, real_of, type_of


@functools.singledispatch
def _example(_: Any) -> None:
    """A function whose dispatcher shows what code dispatchers have."""


#: The code of `dispatch` in `functools.singledispatch`.
DISPATCH: CodeType = _example.dispatch.__code__

_get: Any = vars(functools.singledispatchmethod)["__get__"]
#: The code by which a `functools.singledispatchmethod` gives an object's method, where it keeps that in a weak dictionary.
GET_CACHED: CodeType | None = _get.__code__ if "_method_cache" in _get.__code__.co_names else None


def dispatch_to(i: Interpreter, dispatch: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`function.dispatch(cls)`, with guards on what is registered, abstract classes among it."""
    if len(args) != 1 or kwargs or not isinstance(args[0], type):
        raise Unsupported("singledispatch of these arguments")
    cells: dict[str, CellType] = dict(zip(dispatch.__code__.co_freevars, dispatch.__closure__ or (), strict=True))
    registry = cells["registry"].cell_contents
    source = i.outside.roots.constant(f"{dispatch.__qualname__}.registry", registry)
    i.outside.guard("keys", source, tuple(registry))
    if cells["cache_token"].cell_contents is not None:
        i.outside.guard("state", None, ("torch.functools.get_cache_token()", abc.get_cache_token()))
    guard_order(i, args[0])
    found = i.read(dispatch, *args)
    key = next((key for key, function in registry.items() if function is found), None)
    if key is None:
        raise Unsupported("singledispatch to a function that is not registered")
    return i.outside.wrap(found, source.item(key))


def method(i: Interpreter, get: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
    """`singledispatchmethod.__get__`, past its cache: that tells nothing but what was asked for before."""
    if kwargs or len(args) not in (2, 3) or not type_of(args[1]).__weakrefoffset__:
        raise Unsupported("a method by singledispatch of what takes no weak references")
    if i.attribute_now(args[0], "_method_cache") is None:  # so it is once a method of such an object, or None, was asked for
        i.inline(get, args, kwargs, then)
        return
    asked = tuple([id(real_of(arg)) for arg in args])
    if asked not in i.dispatched:
        names = ("dispatcher", "func", "register", "__isabstractmethod__")
        uncached = SimpleNamespace(_method_cache=None, **{name: i.attribute_now(args[0], name) for name in names})
        i.dispatched[asked] = i.now(i.inline, get, (i.mark_created(uncached), *args[1:]), {}), (get, *args)
    then(i.dispatched[asked][0])


# lru_cache ---------------------------------------------------------------------------------------------------------


def call_cached(i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
