"""Python functions."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from ...ir.segment import Call, Constant, Recipe
from .. import calls
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects import attributes
from ..objects.class_attributes import CODE_DATA, name_of_code
from ..revival import make_function
from ..symbolic import NativeHandler
from ..symbolic.kinds import is_trusted_module
from .builtin import CodeKind
from .kind import Args, Kwargs, Then

#: What a function is made of, read by its path. What it closes over is not among them: cells have no path of their own.
_PARTS = frozenset({"__code__", "__defaults__", "__kwdefaults__", "__annotations__", "__dict__"})


class FunctionKind(CodeKind):
    """A function of the user's, the same object at each call or known by its code, or one that captured code made."""

    def attribute(self, i: Interpreter, base: FunctionType, name: str, then: Then) -> None:
        made = i.is_created(base)
        source = i.outside.source_of(base) or i.outside.roots.constant(base.__qualname__, base)
        if name in CODE_DATA:
            then(name_of_code(i, base, name, not is_trusted_module(base.__module__)))
        elif name == "__class__":
            then(FunctionType)
        elif name == "__get__":
            then(NativeHandler(lambda i, instance, owner=None: base if instance is None else MethodType(base, instance)))
        elif name in base.__dict__ or (name in _PARTS and not (made and name == "__dict__")):
            found = base.__dict__[name] if name in base.__dict__ else getattr(base, name)
            then(found if made else i.outside.wrap(found, source.attr(name)))
        else:
            attributes.missing_from_code(i, base, name, source)

    def set_attribute(self, i: Interpreter, base: FunctionType, name: str, value: Any) -> None:
        if i.is_created(base):
            i.read(setattr, base, name, value)
        else:
            super().set_attribute(i, base, name, value)

    def call(self, i: Interpreter, function: FunctionType, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            calls.call(i, function, args, kwargs, then)

    def rebuild(self, book: RecipeBook, value: FunctionType) -> Recipe:
        if not book.i.is_created(value):
            return Constant(value)
        given = next((call for method, call in book.i.dispatched.values() if method is value), None)
        if given is not None:  # the one that is kept for that object
            return Call(given[0], [book.recipe(part) for part in given[1:]])
        closure = book.recipe(value.__closure__) if value.__closure__ else Constant(None)
        # From Python 3.14 on a function computes them, which may fail, when they are asked for.
        annotations = "__annotate__" if getattr(value, "__annotate__", None) is not None else "__annotations__"
        extras = {
            name: getattr(value, name)
            for name in ("__kwdefaults__", annotations, "__name__", "__qualname__", "__module__", "__doc__")
            if getattr(value, name)
        }
        extras.update(value.__dict__)
        parts = [Constant(value.__code__), Constant(value.__globals__), book.recipe(value.__defaults__), closure]
        return Call(make_function, [*parts, book.recipe(extras)])
