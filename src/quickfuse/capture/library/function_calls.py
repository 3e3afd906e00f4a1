"""Functions of the standard library about functions: what decorators ask and do when captured code runs them."""

from __future__ import annotations

import abc
import functools
import gc
import inspect
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from ...errors import Unsupported
from ...ir.caches import UNKNOWN, cached_result, owner_of
from ..interpreter import Interpreter, Then
from ..objects.class_attributes import guard_order, special_method
from ..objects.native_functions import adopt
from ..outside.changes import CachedCall
from ..symbolic import ABSENT, ForeignObject, is_constant, real_of, type_of
from ..symbolic.kinds import CODE_TYPES
from ..symbolic.raising import Raised

#: Attributes that capture reads of a function without a guard.
_PLAIN = (FunctionType, type, MethodType)


def _about_function(question: Callable[[Any], bool]) -> Callable[..., bool]:
    """A question that a function's code answers."""

    def handler(i: Interpreter, value: Any) -> bool:
        if not isinstance(value, (FunctionType, MethodType)):
            raise Unsupported(f"inspect.{question.__name__} of a {type_of(value).__name__}")
        return question(value)

    return handler


def _update_wrapper(
    i: Interpreter, wrapper: Any, wrapped: Any, assigned: Any = functools.WRAPPER_ASSIGNMENTS,
    updated: Any = functools.WRAPPER_UPDATES,
) -> Any:  # fmt: skip
    """Give a function that the captured code made the name and the attributes of another one."""
    known = type(wrapped) in (FunctionType, BuiltinFunctionType)
    if type(wrapper) is not FunctionType or not i.is_created(wrapper) or not known:
        raise Unsupported("functools.update_wrapper of these objects")
    if not all(is_constant(v) or isinstance(v, _PLAIN) for v in getattr(wrapped, "__dict__", {}).values()):
        raise Unsupported("functools.update_wrapper of a function with attributes")
    return i.native(functools.update_wrapper, wrapper, wrapped, tuple(assigned), tuple(updated))


def _signature(i: Interpreter, function: Any, **options: Any) -> Any:
    """The signature of a Python function or method, or of the one that it wraps."""
    if options:
        raise Unsupported("inspect.signature with these arguments")
    _guard_signature(i, function, follow=True)
    return i.mark_created(i.read(inspect.signature, function))


def _guard_signature(i: Interpreter, function: Any, follow: bool) -> None:
    """Require that a function keeps its parameters, and those that it is said to wrap do, if `follow`."""
    plain = function.__func__ if type(function) is MethodType else function
    if type(plain) is not FunctionType:
        raise Unsupported(f"the signature of a {type_of(function).__name__}")
    if _attribute(i, plain, "__signature__") is not ABSENT:
        raise Unsupported("the signature of a function that was given another one")
    if not i.is_created(plain):
        source = i.outside.source_of(plain) or i.outside.roots.constant(plain.__qualname__, plain)
        i.outside.guard_function(plain, source)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            i.outside.guard("is", source.attr(name), getattr(plain, name))
    wrapped = _attribute(i, plain, "__wrapped__")
    if follow and wrapped is not ABSENT:
        _guard_signature(i, wrapped, follow)


def _attribute(i: Interpreter, function: Any, name: str) -> Any:
    try:
        return i.attribute_now(function, name)
    except Raised:
        return ABSENT


def _argument_names(i: Interpreter, function: Any) -> Any:
    """`inspect.getfullargspec`, which looks at the function itself."""
    _guard_signature(i, function, follow=False)
    return adopt(i, i.read(inspect.getfullargspec, function))


def _exception_information(i: Interpreter) -> tuple[Any, Any, Any]:
    """`sys.exc_info()`: the exception that is being handled."""
    for frame in reversed(i.frames):
        if frame.exceptions:
            raise Unsupported("sys.exc_info() in an exception handler")
    if sys.exc_info()[1] is not None:
        raise Unsupported("sys.exc_info() where the caller handles an exception")
    i.outside.guard("state", None, ("torch.sys.exc_info()", (None, None, None)))
    return None, None, None


def _parameters(i: Interpreter, signature: inspect.Signature) -> dict[str, Any]:
    """What looks like `signature.parameters`, a read-only mapping, to captured code."""
    if not isinstance(signature, inspect.Signature):
        raise Unsupported("a signature from outside")
    return i.outside.mark_made(dict(signature.parameters), signature, "parameters")  # type: ignore[no-any-return]


def _of_parameter(name: str) -> Callable[..., Any]:
    def handler(i: Interpreter, parameter: inspect.Parameter) -> Any:
        if not isinstance(parameter, inspect.Parameter):
            raise Unsupported("a parameter from outside")
        found = getattr(parameter, name)
        if not (is_constant(found) or isinstance(found, type)):
            raise Unsupported(f"the {name} of a parameter")
        return found

    return handler


# `singledispatch` and `lru_cache` -------------------------------------------------------------------------------
#
# Which implementation a class gets is guarded by what is registered. What is in a cache is read there, and what is not is
# worked out here: guards are on the entries of the cache. The calls themselves come afterwards, for the cache to count and
# order its entries.


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
    key = given[0] if len(given) == 1 and type(given[0]) in (int, str) else given
    place = i.outside.roots.constant(f"{wrapper.__qualname__}.cache", table)
    if key not in table:
        made = [call.result for call in i.outside.cached_calls if call.wrapper is wrapper and call.args == given]
        result = made[0] if made else _fill(i, wrapper, args, place, key)
        i.outside.cached_calls.append(CachedCall(wrapper, given, result))
        return result
    i.outside.cached_calls.append(CachedCall(wrapper, given))
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
    calls = len(i.outside.cached_calls)
    result = i.call_now(wrapper.__wrapped__, args)
    del i.outside.cached_calls[calls:]  # which this call makes
    if (i.outside.effect_count(), i.graph.operators) != before or not _may_be_cached(i, result):
        raise Unsupported(f"the first call of {wrapper.__qualname__} with these arguments")
    i.outside.guard("cached", place, (key, _found_again(i, result), owner_of(wrapper)))
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


def _is_by_identity(i: Interpreter, value: Any) -> bool:
    """Whether an argument is an object of the user's that is equal to itself alone."""
    if i.outside.source_of(value) is None or not isinstance(value, (ForeignObject, *CODE_TYPES)):
        return False
    return special_method(i, value, "__eq__") is object.__eq__ and special_method(i, value, "__hash__") is object.__hash__


def _table(wrapper: Any) -> dict[Any, Any] | None:
    """The dictionary in a cache."""
    tables = [found for found in gc.get_referents(wrapper) if type(found) is dict and found is not wrapper.__dict__]
    return tables[0] if len(tables) == 1 else None


# the table ---------------------------------------------------------------------------------------------------------

HANDLERS: dict[Any, Callable[..., Any]] = {
    inspect.signature: _signature,
    inspect.Signature.parameters.fget: _parameters,  # type: ignore[attr-defined]
    **{getattr(inspect.Parameter, name).fget: _of_parameter(name) for name in ("name", "kind", "default", "annotation")},
    inspect.getfullargspec: _argument_names,
    sys.exc_info: _exception_information,
    sys.exception: lambda i: _exception_information(i)[1],
    inspect.isgeneratorfunction: _about_function(inspect.isgeneratorfunction),
    inspect.iscoroutinefunction: _about_function(inspect.iscoroutinefunction),
    functools.update_wrapper: _update_wrapper,
}
