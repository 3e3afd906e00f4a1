"""Functions, methods and descriptors that are written in C, and properties: what they are is what they do."""

from __future__ import annotations

import collections
from types import BuiltinFunctionType
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from .. import native_calls
from ..class_attributes import CODE_DATA, name_of_code
from ..effects import RecipeBook
from ..interpreter import Interpreter
from .kind import Then
from .object import ObjectKind

_OWNERS = (list, tuple, dict, set, frozenset, collections.deque)


class CodeKind(ObjectKind):
    """Objects that are what they are: compared by identity, and the same in each call of the compiled code."""

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if name in CODE_DATA:
            then(name_of_code(i, base, name, False))
        elif name == "__class__":
            then(type(base))
        elif name == "__func__" and isinstance(base, (classmethod, staticmethod)):
            then(base.__func__)
        else:
            then(i.native(getattr, base, name))

    def set_attribute(self, i: Interpreter, base: Any, name: str, value: Any) -> None:
        raise Unsupported(f"setting an attribute of a {type(base).__name__}")

    def delete_attribute(self, i: Interpreter, base: Any, name: str) -> None:
        raise Unsupported(f"deleting an attribute of a {type(base).__name__}")

    def key(self, i: Interpreter, value: Any) -> Any:
        return value

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return super().rebuild(book, value) if book.i.is_created(value) else Constant(value)


class BuiltinKind(CodeKind):
    """A native function, or a method of an object that captured code made."""

    def call(self, i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
        if not native_calls.call_known(i, function, args, kwargs, then):
            then(native_calls.call_builtin(i, function, args, kwargs))

    def rebuild(self, book: RecipeBook, value: BuiltinFunctionType) -> Recipe:
        if isinstance(value.__self__, _OWNERS):
            return Call(getattr, [book.recipe(value.__self__), Constant(value.__name__)])
        return super().rebuild(book, value)


class DescriptorKind(CodeKind):
    """A method of a builtin class as its class has it: `list.append`."""

    def call(self, i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
        if native_calls.call_known(i, function, args, kwargs, then):
            return
        if not args:
            raise Unsupported(f"a call of {function.__name__} without an object")
        then(native_calls.call_descriptor(i, function, args, kwargs))


class OperatorKind(CodeKind):
    """`torch.ops.aten.add` and its overloads."""

    attribute = ObjectKind.attribute

    def call(self, i: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then) -> None:
        native_calls.call_known(i, function, args, kwargs, then)
