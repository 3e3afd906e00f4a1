"""Functions of the standard library about functions: what decorators ask and do when captured code runs them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from .values import is_constant

if TYPE_CHECKING:
    from .interpreter import Interpreter

#: Attributes that capture reads of a function without a guard.
_PLAIN = (FunctionType, type, MethodType)


def _is_class(i: Interpreter, value: Any) -> bool:
    return isinstance(value, type)


def _about_function(question: Callable[[Any], bool]) -> Callable[..., bool]:
    """A question that a function's code answers."""

    def handler(i: Interpreter, value: Any) -> bool:
        if not isinstance(value, (FunctionType, MethodType)):
            raise Unsupported(f"inspect.{question.__name__} of a {type(value).__name__}")
        return question(value)

    return handler


def _update_wrapper(
    i: Interpreter, wrapper: Any, wrapped: Any, assigned: Any = functools.WRAPPER_ASSIGNMENTS,
    updated: Any = functools.WRAPPER_UPDATES,
) -> Any:  # fmt: skip
    """Give a function that the captured code made the name and the attributes of another one."""
    known = type(wrapped) in (FunctionType, BuiltinFunctionType)
    if type(wrapper) is not FunctionType or id(wrapper) not in i.created or not known:
        raise Unsupported("functools.update_wrapper of these objects")
    if not all(is_constant(v) or isinstance(v, _PLAIN) for v in getattr(wrapped, "__dict__", {}).values()):
        raise Unsupported("functools.update_wrapper of a function with attributes")
    return i.native(functools.update_wrapper, wrapper, wrapped, tuple(assigned), tuple(updated))


HANDLERS: dict[Any, Callable[..., Any]] = {
    inspect.isclass: _is_class,
    inspect.isgeneratorfunction: _about_function(inspect.isgeneratorfunction),
    inspect.iscoroutinefunction: _about_function(inspect.iscoroutinefunction),
    functools.update_wrapper: _update_wrapper,
}
