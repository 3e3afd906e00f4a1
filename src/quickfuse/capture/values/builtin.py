"""Functions, methods and descriptors that are written in C, and properties: what they are is what they do."""

from __future__ import annotations

import collections
import operator
from types import BuiltinFunctionType, FunctionType, WrapperDescriptorType
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from .. import calls
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects.binary_operators import constant_operator, is_same
from ..objects.class_attributes import name_in_messages
from ..objects.construction import make
from ..symbolic import type_of
from ..symbolic.kinds import CODE_TYPES, NUMPY_METHOD
from ..symbolic.raising import raise_in_program
from .kind import Args, Kind, Kwargs, Then, itself
from .object import ObjectKind

_TYPE_CALL = type.__dict__["__call__"]
_OWNERS = (list, tuple, dict, set, frozenset, collections.deque)


class CodeKind(ObjectKind):
    """Objects that are what they are: compared by identity, and the same in each call of the compiled code."""

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        then(i.native(getattr, base, name))

    set_attribute, delete_attribute = Kind.set_attribute, Kind.delete_attribute

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        compared = function in (operator.eq, operator.ne)
        if compared and isinstance(left, FunctionType) and isinstance(right, FunctionType):
            then(is_same(i, left, right) ^ (function is operator.ne))
        elif compared and isinstance(left, CODE_TYPES) and isinstance(right, CODE_TYPES):
            then(i.native(function, left, right))
        else:
            constant_operator(i, function, left, right, then)

    key = itself

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return super().rebuild(book, value) if book.i.is_created(value) else Constant(value)


class BuiltinKind(CodeKind):
    """A native function, or a method of an object that captured code made."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if not calls.call_known(i, function, args, kwargs, then):
            then(calls.call_builtin(i, function, args, kwargs))

    def rebuild(self, book: RecipeBook, value: BuiltinFunctionType) -> Recipe:
        if isinstance(value.__self__, _OWNERS):
            return Call(getattr, [book.recipe(value.__self__), Constant(value.__name__)])
        return super().rebuild(book, value)


class DescriptorKind(CodeKind):
    """A method of a builtin class as its class has it: `list.append`."""

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        if calls.call_known(i, function, args, kwargs, then):
            return
        if not args:
            raise Unsupported(f"a call of {function.__name__} without an object")
        if type(function) is NUMPY_METHOD:
            raise Unsupported(f"random numbers of numpy.random.{function.__name__}()")
        if function is _TYPE_CALL and isinstance(args[0], type):
            make(i, args[0], args[1:], kwargs, then)
        else:
            _check_receiver(function, args[0])
            then(i.kind_of(args[0]).method(i, function, args[0], args[1:], kwargs))


def _check_receiver(function: Any, receiver: Any) -> None:
    """A method of a builtin class refuses objects of classes that do not derive from it."""
    owner, kind = function.__objclass__, type_of(receiver)
    if issubclass(kind, owner):
        return
    name, said = name_in_messages(owner), name_in_messages(kind)
    if type(function) is WrapperDescriptorType:
        raise_in_program(TypeError(f"descriptor '{function.__name__}' requires a '{name}' object but received a '{said}'"))
    raise_in_program(TypeError(f"descriptor '{function.__name__}' for '{name}' objects doesn't apply to a '{said}' object"))


class OperatorKind(CodeKind):
    """`torch.ops.aten.add` and its overloads."""

    attribute = ObjectKind.attribute

    def call(self, i: Interpreter, function: Any, args: Args, kwargs: Kwargs, then: Then) -> None:
        calls.call_known(i, function, args, kwargs, then)
