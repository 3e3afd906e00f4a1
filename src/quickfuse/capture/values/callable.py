"""Callables that wrap others: `functools.partial`, `operator.itemgetter` and its like; those that stand for native ones."""

from __future__ import annotations

import functools
import operator
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects.class_attributes import load_super
from ..revival import call_with
from ..symbolic import NativeHandler, SuperProxy
from .kind import Args, Kind, Kwargs, Then, always_true, itself
from .object import ObjectKind

#: From Python 3.14 on.
_PLACEHOLDER = getattr(functools, "Placeholder", object())
GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


class PartialKind(ObjectKind):
    def call(self, i: Interpreter, function: functools.partial[Any], args: Args, kwargs: Kwargs, then: Then) -> None:
        if any(argument is _PLACEHOLDER for argument in function.args):
            raise Unsupported("a functools.partial with placeholders")
        i.call(function.func, (*function.args, *args), {**function.keywords, **kwargs}, then)

    def set_attribute(self, i: Interpreter, base: Any, name: str, value: Any) -> None:
        if name in ("func", "args", "keywords"):
            raise Unsupported(f"setting the attribute {name} of a functools.partial")
        super().set_attribute(i, base, name, value)

    def rebuild(self, book: RecipeBook, value: functools.partial[Any]) -> Recipe:
        if value.__dict__:
            raise Unsupported("a functools.partial with attributes that outlives the captured code")
        given, keywords = book.recipe((value.func, *value.args)), book.recipe(dict(value.keywords))
        return Call(call_with, [Constant(functools.partial), given, keywords])


class GetterKind(ObjectKind):
    """`operator.itemgetter`, `attrgetter` and `methodcaller`."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if len(args) != 1 or kwargs:
            raise Unsupported(f"a call of an {type(function).__name__} with these arguments")
        _, wanted, named = _parts(function)
        if type(function) is operator.methodcaller:
            i.call(_attribute(i, args[0], wanted[0]), wanted[1:], named, then)
        else:
            of_items = type(function) is operator.itemgetter
            found = [i.now(i.item, args[0], key) if of_items else _attribute(i, args[0], key) for key in wanted]
            then(found[0] if len(found) == 1 else tuple(found))

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        maker, arguments, keywords = _parts(value)
        return Call(call_with, [Constant(maker), book.recipe(arguments), book.recipe(keywords)])


def _parts(getter: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(class, arguments, keyword arguments) of the call that makes an equal one."""
    maker, arguments = getter.__reduce__()
    if isinstance(maker, functools.partial):
        return maker.func, (*maker.args, *arguments), dict(maker.keywords)
    return maker, arguments, {}


def _attribute(i: Interpreter, value: Any, path: str) -> Any:
    return functools.reduce(i.attribute_now, path.split("."), value)


class HandlerKind(Kind):
    """A `NativeHandler`: what capture itself does when it is called."""

    def call(self, i: Interpreter, function: NativeHandler, args: Args, kwargs: Kwargs, then: Then) -> None:
        then(function.run(i, *args, **kwargs))

    truth, key = always_true, itself

    def rebuild(self, book: RecipeBook, value: NativeHandler) -> Recipe:
        if value.made_by is None:
            return super().rebuild(book, value)  # type: ignore[no-any-return]
        function, first, options = value.made_by
        return Call(call_with, [Constant(function), book.recipe((first,)), book.recipe(dict(options))])


class SuperKind(Kind):
    """`super()` inside an inlined method."""

    def attribute(self, i: Interpreter, base: SuperProxy, name: str, then: Then) -> None:
        if name in i.outside.new_in_classes:
            raise Unsupported("an attribute by super() that a class was given before")
        load_super(i, base.cls, base.instance, name, then)

    def rebuild(self, book: RecipeBook, value: SuperProxy) -> Recipe:
        return Call(super, [Constant(value.cls), book.recipe(value.instance)])
