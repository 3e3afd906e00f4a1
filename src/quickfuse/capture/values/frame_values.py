"""What only frames hold: the cells of variables that functions share, tokens of context variables, namespaces."""

from __future__ import annotations

import contextvars
import random
import types
import weakref
from collections.abc import Callable
from types import CellType
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Cell, Constant, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..library.random_numbers import of_generator
from ..library.weak_references import referent
from ..outside.changes import ContextToken
from ..revival import call_with, enter_filters, enter_inference_mode
from .kind import Args, Kind, Kwargs, Then
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


class InferenceKind(ObjectKind):
    """What `torch.inference_mode` makes where it is entered."""

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        if not value.active:
            return super().rebuild(book, value)
        return Call(enter_inference_mode, [Constant(value.mode), Constant(value.grad_around)])


class ReferenceKind(ObjectKind):
    """A weak reference that captured code made."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if args or kwargs:
            raise Unsupported("a call of a weak reference with arguments")
        then(referent(i, function))

    def truth(self, i: Interpreter, value: Any) -> bool:
        return True

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return Call(weakref.ref, [book.recipe(book.i.referenced[id(value)])])


class MadeKind(ObjectKind):
    """Objects of one native class. `again` says how compiled code makes what captured code made."""

    def __init__(self, again: Callable[[RecipeBook, Any], Recipe]) -> None:
        self.again = again

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return self.again(book, value) if book.i.is_created(value) else super().rebuild(book, value)


MADE_KINDS: dict[type, MadeKind] = {
    random.Random: MadeKind(lambda book, value: of_generator(value)),
    bytearray: MadeKind(lambda book, value: Call(bytearray, [Constant(bytes(value))])),
    types.SimpleNamespace: MadeKind(lambda book, value: Call(
        call_with, [Constant(types.SimpleNamespace), Constant(()), book.recipe(dict(value.__dict__))])),
}  # fmt: skip
