"""What captured code does to context variables."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..ir.segment import Call, Constant, Recipe


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
