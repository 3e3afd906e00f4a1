"""Functions of the standard library about functions: what decorators ask and do when captured code runs them."""

from __future__ import annotations

import abc
import functools
import inspect
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

from ...errors import Unsupported
from ..interpreter import Args, Interpreter, Kwargs, Then
from ..objects.class_attributes import guard_order
from ..objects.native_functions import adopt
from ..symbolic import ABSENT, ForeignObject, is_constant, real_of, type_of

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
    if i.attribute_or(plain, "__signature__", ABSENT) is not ABSENT:
        raise Unsupported("the signature of a function that was given another one")
    if not i.is_created(plain):
        source = i.outside.source_of(plain) or i.outside.roots.constant(plain.__qualname__, plain)
        i.outside.guard_function(plain, source)
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            i.outside.guard("is", source.attr(name), getattr(plain, name))
    wrapped = i.attribute_or(plain, "__wrapped__", ABSENT)
    if follow and wrapped is not ABSENT:
        _guard_signature(i, wrapped, follow)


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
    i.outside.guard("state", None, ("sys.exc_info()", (None, None, None)))
    return None, None, None


def _itself(i: Interpreter, value: Any, cls: type) -> Any:
    """A signature or a parameter, which nobody changes: one from outside is held by its identity."""
    if type(value) is ForeignObject and type(value.real) is cls:
        i.outside.guard("is", value.source, value.real)
        return value.real
    if not isinstance(value, cls):
        raise Unsupported(f"a {type_of(value).__name__} from outside")
    return value


def _parameters(i: Interpreter, signature: Any) -> dict[str, Any]:
    """What looks like `signature.parameters`, a read-only mapping, to captured code."""
    parameters = _itself(i, signature, inspect.Signature).parameters
    known = i.outside.made_of(signature, "parameters")
    return i.outside.mark_made(dict(parameters), signature, "parameters") if known is None else known  # type: ignore[no-any-return]


def _of_parameter(name: str) -> Callable[..., Any]:
    def handler(i: Interpreter, parameter: Any) -> Any:
        found = getattr(_itself(i, parameter, inspect.Parameter), name)
        if not (is_constant(found) or isinstance(found, type)):
            raise Unsupported(f"the {name} of a parameter")
        return found

    return handler


# `singledispatch` ----------------------------------------------------------------------------------------------
#
# Which implementation a class gets is guarded by what is registered.


@functools.singledispatch
def _example(_: Any) -> None:
    """A function whose dispatcher shows what code dispatchers have."""


#: The code of `dispatch` in `functools.singledispatch`.
DISPATCH: CodeType = _example.dispatch.__code__

_get: Any = vars(functools.singledispatchmethod)["__get__"]
#: The code by which a `functools.singledispatchmethod` gives an object's method, where it keeps that in a weak dictionary.
GET_CACHED: CodeType | None = _get.__code__ if "_method_cache" in _get.__code__.co_names else None


def dispatch_to(i: Interpreter, dispatch: FunctionType, args: Args, kwargs: Kwargs) -> Any:
    """`function.dispatch(cls)`, with guards on what is registered, abstract classes among it."""
    if len(args) != 1 or kwargs or not isinstance(args[0], type):
        raise Unsupported("singledispatch of these arguments")
    cells: dict[str, CellType] = dict(zip(dispatch.__code__.co_freevars, dispatch.__closure__ or (), strict=True))
    registry = cells["registry"].cell_contents
    source = i.outside.roots.constant(f"{dispatch.__qualname__}.registry", registry)
    i.outside.guard("keys", source, tuple(registry))
    if cells["cache_token"].cell_contents is not None:
        i.outside.guard("state", None, ("functools.get_cache_token()", abc.get_cache_token()))
    guard_order(i, args[0])
    found = i.read(dispatch, *args)
    key = next((key for key, function in registry.items() if function is found), None)
    if key is None:
        raise Unsupported("singledispatch to a function that is not registered")
    return i.outside.wrap(found, source.item(key))


def method(i: Interpreter, get: FunctionType, args: Args, kwargs: Kwargs, then: Then) -> None:
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
