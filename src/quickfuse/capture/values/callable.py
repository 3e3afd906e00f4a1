"""Callables that wrap others: `functools.partial`, `operator.itemgetter` and its like; those that stand for native ones."""

from __future__ import annotations

import functools
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from .. import getters
from ..class_attributes import load_super
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..revival import call_with, call_with_keywords, make_partial
from ..symbolic import NativeHandler, SuperProxy
from .kind import Kind, Then
from .object import ObjectKind

#: From Python 3.14 on.
_PLACEHOLDER = getattr(functools, "Placeholder", object())


class PartialKind(ObjectKind):
    def call(
        self, i: Interpreter, function: functools.partial[Any], args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
    ) -> None:
        if any(argument is _PLACEHOLDER for argument in function.args):
            raise Unsupported("a functools.partial with placeholders")
        i.call(function.func, (*function.args, *args), {**function.keywords, **kwargs}, then)

    def rebuild(self, book: RecipeBook, value: functools.partial[Any]) -> Recipe:
        keywords = book.recipe(dict(value.keywords))
        return Call(make_partial, [book.recipe(value.func), book.recipe(value.args), keywords])


class GetterKind(ObjectKind):
    """`operator.itemgetter`, `attrgetter` and `methodcaller`."""

    def call(self, i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
        then(getters.call(i, function, args, kwargs))

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        maker, arguments, keywords = getters.parts(value)
        return Call(call_with, [Constant(maker), book.recipe(arguments), book.recipe(keywords)])


class HandlerKind(Kind):
    """A `NativeHandler`: what capture itself does when it is called."""

    def call(
        self, i: Interpreter, function: NativeHandler, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
    ) -> None:
        then(function.run(i, *args, **kwargs))

    def truth(self, i: Interpreter, value: NativeHandler) -> bool:
        return True

    def key(self, i: Interpreter, value: NativeHandler) -> Any:
        return value

    def rebuild(self, book: RecipeBook, value: NativeHandler) -> Recipe:
        if value.made_by is None:
            return super().rebuild(book, value)  # type: ignore[no-any-return]
        function, first, options = value.made_by
        return Call(call_with_keywords, [Constant(function), book.recipe(first), book.recipe(dict(options))])


class SuperKind(Kind):
    """`super()` inside an inlined method."""

    def attribute(self, i: Interpreter, base: SuperProxy, name: str, then: Then) -> None:
        load_super(i, base.cls, base.instance, name, then)

    def rebuild(self, book: RecipeBook, value: SuperProxy) -> Recipe:
        return Call(super, [Constant(value.cls), book.recipe(value.instance)])
