"""Calls of what is written in C: functions, methods of builtin classes, and PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable
from types import ClassMethodDescriptorType
from typing import Any

from ..errors import Unsupported
from ..ir.marks import others_marked
from . import builtin_calls, library, torch_calls
from .class_attributes import lookup_class
from .interpreter import Interpreter, Then
from .mutation import name_of
from .python_calls import call_marked
from .raising import call_handler


def call_known(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> bool:
    """Call a function that capture has a rule for, or a Python function in place of, or that becomes a node of the graph;
    False where it is none of these."""
    if (handler := handler_of(function)) is not None:
        then(call_handler(i, handler, name_of(function), args, kwargs))
    elif (equivalent := _equivalent_of(function)) is not None:
        i.call(equivalent, args, kwargs, then)
    elif torch_calls.is_operator(function):
        then(torch_calls.call_operator(i, function, args, kwargs))
    else:
        return False
    return True


def handler_of(function: Any) -> Callable[..., Any] | None:
    try:
        return builtin_calls.HANDLERS.get(function) or torch_calls.HANDLERS.get(function)
    except TypeError:
        return None


def _equivalent_of(function: Any) -> Any:
    """The Python function that stands in for a native one, if there is one."""
    try:
        return library.EQUIVALENTS.get(function)
    except TypeError:
        return None


def call_builtin(i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if mark := others_marked().get(function):
        return call_marked(i, mark, function, args, kwargs)
    owner = function.__self__
    if isinstance(owner, type):  # a class method in C
        unbound = lookup_class(owner, function.__name__)[1]
        handler = handler_of(unbound) if type(unbound) is ClassMethodDescriptorType else None
        if handler is not None:
            return call_handler(i, handler, name_of(unbound), (owner, *args), kwargs)
    elif owner is not None and type(owner).__name__ != "module":
        unbound = getattr(type(owner), function.__name__, None)
        if unbound is None:
            raise Unsupported(f"the native function {name_of(function)}")
        return i.kind_of(owner).method(i, unbound, owner, args, kwargs)
    raise Unsupported(f"the native function {getattr(function, '__module__', '')}.{name_of(function)}")
