"""Functions of the standard library about functions: what decorators ask and do when captured code runs them."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from ..errors import Unsupported
from .interpreter import Interpreter
from .native_functions import adopt
from .raising import Raised, raise_in_program
from .symbolic import ABSENT, DELETED, FromOutside, is_constant, type_of

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
    return i.read(inspect.signature, function)


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


def _bound_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """`signature.bind` and `bind_partial`, which put arguments in their places without looking at them."""

    def handler(i: Interpreter, signature: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(signature, FromOutside):
            raise Unsupported("a signature from outside")
        made = i.read(method, signature, *args, **kwargs)
        i.mark_created(made.arguments)
        return i.mark_created(made)

    return handler


def _of_bound_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    def handler(i: Interpreter, bound: Any) -> Any:
        if not i.is_created(bound):
            raise Unsupported("bound arguments from outside")
        found = i.read(function, bound)
        return i.mark_created(found) if type(found) is dict else found

    return handler


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


def _environment_item(i: Interpreter, environ: Any, key: Any) -> str:
    """`os.environ[key]`, by the entry of the dictionary in it."""
    key = i.outside.concrete(key)
    if type(key) is not str:
        raise Unsupported("the name of an environment variable that is no string")
    table = i.attribute_now(environ, "_data")
    value = table.get(i.outside, os.fsencode(key))
    if value is DELETED:
        raise_in_program(KeyError(key))
    return os.fsdecode(i.outside.concrete(value))


HANDLERS: dict[Any, Callable[..., Any]] = {
    inspect.signature: _signature,
    inspect.Signature.parameters.fget: _parameters,  # type: ignore[attr-defined]
    **{getattr(inspect.Parameter, name).fget: _of_parameter(name) for name in ("name", "kind", "default", "annotation")},
    os._Environ.__getitem__: _environment_item,
    inspect.getfullargspec: _argument_names,
    inspect.Signature.bind: _bound_arguments(inspect.Signature.bind),
    inspect.Signature.bind_partial: _bound_arguments(inspect.Signature.bind_partial),
    inspect.BoundArguments.apply_defaults: _of_bound_arguments(inspect.BoundArguments.apply_defaults),
    **{prop.fget: _of_bound_arguments(prop.fget) for prop in (inspect.BoundArguments.args, inspect.BoundArguments.kwargs)},
    sys.exc_info: _exception_information,
    sys.exception: lambda i: _exception_information(i)[1],
    inspect.isgeneratorfunction: _about_function(inspect.isgeneratorfunction),
    inspect.iscoroutinefunction: _about_function(inspect.iscoroutinefunction),
    functools.update_wrapper: _update_wrapper,
}
