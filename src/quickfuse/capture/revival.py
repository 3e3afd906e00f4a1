"""What compiled code calls to make real objects where captured code had made stand-ins for them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import torch


def make_function(
    code: CodeType, globals_: dict[str, Any], defaults: tuple[Any, ...] | None, closure: Any, extras: dict[str, Any]
) -> FunctionType:
    """A function as MAKE_FUNCTION makes it, with the attributes that it was given since."""
    function = FunctionType(code, globals_, code.co_name, defaults, closure)
    for name, value in extras.items():
        setattr(function, name, value)
    return function


def ended_generator(code: CodeType, globals_: dict[str, Any]) -> Any:
    """A generator of this code at its end."""
    closure = tuple([CellType() for _ in code.co_freevars])
    function = FunctionType(code, globals_, code.co_name, None, closure)
    keyword_only = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    generator = function(*[None] * code.co_argcount, **dict.fromkeys(keyword_only))
    generator.close()
    return generator


def make_exception(
    cls: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any], cause: BaseException | None,
    context: BaseException | None, suppress_context: bool, slots: dict[str, Any] | None = None,
) -> BaseException:  # fmt: skip
    """An exception that captured code made or that a native function raised for it."""
    try:
        exception = cls.__new__(cls, *args)
        if not exception.args:
            exception.args = args
        if isinstance(exception, (StopIteration, OSError, ImportError, SyntaxError, UnicodeError, SystemExit)):
            exception = cls(*args)
    except TypeError:
        exception = cls(*args)
    exception.__dict__.update(attributes)
    for name, value in (slots or {}).items():
        setattr(exception, name, value)
    if cause is not None:
        exception.__cause__ = cause
    exception.__context__ = context
    exception.__suppress_context__ = suppress_context
    return exception


def with_traceback_of(exception: BaseException, other: BaseException) -> BaseException:
    return exception.with_traceback(other.__traceback__)


def call_with(function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return function(*args, **keywords)


def method_of(owner: Any, name: str) -> Any:
    return getattr(owner, name)


def enter_filters(calls: tuple[tuple[Callable[..., None], tuple[Any, ...]], ...]) -> warnings.catch_warnings[Any]:
    """A `catch_warnings` that was entered, and the calls that added filters since."""
    manager = warnings.catch_warnings()
    manager.__enter__()
    for function, arguments in calls:
        function(*arguments)
    return manager


def enter_inference_mode(mode: bool, grad_around: bool) -> Any:
    """A block of inference mode that was entered, in the grad mode that is around it."""
    torch._C._set_grad_enabled(grad_around)
    block = torch._C._InferenceMode(mode)
    block.__enter__()
    return block
