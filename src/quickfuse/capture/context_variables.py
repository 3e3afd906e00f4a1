"""`contextvars`: reading variables with guards, and setting them when the compiled code is done.

A variable that is set and reset within the captured code is not touched.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import Unsupported
from ..ir.reading import MISSING
from ..ir.segment import Call, Constant, Recipe
from ..ir.source import Source
from .raising import raise_in_program
from .values import ABSENT

if TYPE_CHECKING:
    from .interpreter import Interpreter


@dataclass(eq=False, slots=True)
class ContextToken:
    """What `variable.set(value)` gives in captured code."""

    variable: contextvars.ContextVar[Any]
    value: Any


@dataclass(slots=True)
class ContextChanges:
    """What captured code did to context variables and did not undo: tokens, the oldest first."""

    tokens: list[ContextToken] = field(default_factory=list)

    def last(self, variable: Any) -> ContextToken | None:
        return next((token for token in reversed(self.tokens) if token.variable is variable), None)

    def recipes(self, recipe: Callable[[Any], Recipe]) -> Iterator[Recipe]:
        """How to make the changes, in their order."""
        for token in self.tokens:
            yield recipe(token)


def token_recipe(token: ContextToken, recipe: Callable[[Any], Recipe]) -> Recipe:
    """How compiled code makes the real token: by setting the variable."""
    return Call(contextvars.ContextVar.set, [Constant(token.variable), recipe(token.value)])


def _source_of(i: Interpreter, variable: Any) -> Source:
    if not isinstance(variable, contextvars.ContextVar):
        raise Unsupported(f"a context variable that is a {type(variable).__name__}")
    found = i.outside.source_of(variable)
    if found is not None:
        i.outside.guard("is", found, variable)
    return i.outside.roots.constant(variable.name, variable)


def _get(i: Interpreter, variable: Any, default: Any = ABSENT) -> Any:
    source = _source_of(i, variable)
    token = i.outside.context.last(variable)
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
    _source_of(i, variable)
    token = ContextToken(variable, value)
    i.outside.context.tokens.append(token)
    return token


def _reset(i: Interpreter, variable: Any, token: Any) -> None:
    _source_of(i, variable)
    if type(token) is not ContextToken or token is not i.outside.context.last(variable):
        raise Unsupported("resetting a context variable that was set before, or set again")
    i.outside.context.tokens.remove(token)


HANDLERS: dict[Any, Callable[..., Any]] = {
    contextvars.ContextVar.get: _get, contextvars.ContextVar.set: _set, contextvars.ContextVar.reset: _reset,
}  # fmt: skip
