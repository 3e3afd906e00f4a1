"""What only frames hold: the cells of variables that functions share, tokens of context variables, namespaces."""

from __future__ import annotations

import contextvars
import random
import types
from types import CellType
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Cell, Constant, Recipe
from ..effects import RecipeBook
from ..library.random_numbers import of_generator
from ..outside.changes import ContextToken
from ..revival import call_with, enter_filters
from .kind import Kind
from .object import ObjectKind


class CellKind(Kind):
    def rebuild(self, book: RecipeBook, value: CellType) -> Recipe:
        if not book.i.is_created(value):
            return Constant(value)  # of a function that is the same in every call
        made = book.begin(value, Cell())
        try:
            made.content = book.recipe(value.cell_contents)
        except ValueError:
            made.content = None
        return made


class TokenKind(ObjectKind):
    """What setting a context variable gives."""

    def rebuild(self, book: RecipeBook, value: ContextToken) -> Recipe:
        if value not in book.i.outside.tokens:
            raise Unsupported("a token of a context variable that outlives the captured code")
        return Call(contextvars.ContextVar.set, [Constant(value.variable), book.recipe(value.value)])


class FiltersKind(ObjectKind):
    """What `warnings.catch_warnings()` gives."""

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        scope = next((scope for scope in book.i.outside.filters if scope.manager is value), None)
        if scope is None:
            raise Unsupported("a warnings.catch_warnings that was not entered")
        return Call(enter_filters, [Constant(tuple(scope.calls))])


class RandomKind(ObjectKind):
    """`random.Random(seed)`."""

    def rebuild(self, book: RecipeBook, value: random.Random) -> Recipe:
        return of_generator(value) if book.i.is_created(value) else super().rebuild(book, value)


class NamespaceKind(ObjectKind):
    """`types.SimpleNamespace(...)`."""

    def rebuild(self, book: RecipeBook, value: types.SimpleNamespace) -> Recipe:
        if not book.i.is_created(value):
            return super().rebuild(book, value)
        keywords = book.recipe(dict(value.__dict__))
        return Call(call_with, [Constant(types.SimpleNamespace), Constant(()), keywords])
