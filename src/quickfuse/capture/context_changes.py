"""What captured code does to context variables, and to the filters of warnings."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ir.segment import Call, Constant, Recipe
from .revival import enter_filters


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


@dataclass(eq=False, slots=True)
class FilterScope:
    """What is between entering `warnings.catch_warnings` and leaving it: the filters, and the calls that added some."""

    manager: Any
    filters: list[Any]
    calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)


def filters_recipe(scope: FilterScope) -> Recipe:
    """How compiled code enters what captured code did not leave."""
    return Call(enter_filters, [Constant(tuple(scope.calls))])
