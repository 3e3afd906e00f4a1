"""`contextvars`: reading variables with guards, and setting them when the compiled code is done.

A variable that is set and reset within the captured code is not touched.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from ..ir.reading import MISSING
from ..ir.source import Source
from .changes import ContextToken
from .interpreter import Interpreter
from .raising import raise_in_program
from .symbolic import ABSENT, FromOutside, real_of, type_of


def _variable(i: Interpreter, value: Any) -> tuple[contextvars.ContextVar[Any], Source]:
    """A context variable, guarded to stay this one, and where it is found."""
    variable = real_of(value)
    if not isinstance(variable, contextvars.ContextVar):
        raise Unsupported(f"a context variable that is a {type_of(value).__name__}")
    if isinstance(value, FromOutside):
        i.outside.guard("is", value.source, variable)
    return variable, i.outside.roots.constant(variable.name, variable)


def _last(i: Interpreter, variable: Any) -> ContextToken | None:
    return next((token for token in reversed(i.outside.tokens) if token.variable is variable), None)


def _get(i: Interpreter, variable: Any, default: Any = ABSENT) -> Any:
    variable, source = _variable(i, variable)
    token = _last(i, variable)
    if token is not None:
        return token.value
    if variable.get(MISSING) is not MISSING:
        return i.outside.wrap(variable.get(), source.context())
    i.outside.guard("is", source.context(), MISSING)
    if default is not ABSENT:
        return default
    try:
        found = variable.get()  # what it was made with
    except LookupError as error:
        raise_in_program(error.with_traceback(None))
    return i.outside.wrap(found, source.default())


def _set(i: Interpreter, variable: Any, value: Any) -> ContextToken:
    variable, _ = _variable(i, variable)
    token = ContextToken(variable, value)
    i.outside.tokens.append(token)
    return token


def _reset(i: Interpreter, variable: Any, token: Any) -> None:
    variable, _ = _variable(i, variable)
    if type(token) is not ContextToken or token is not _last(i, variable):
        raise Unsupported("resetting a context variable that was set before, or set again")
    i.outside.tokens.remove(token)


HANDLERS: dict[Any, Callable[..., Any]] = {
    contextvars.ContextVar.get: _get, contextvars.ContextVar.set: _set, contextvars.ContextVar.reset: _reset,
}  # fmt: skip
