"""Plain values that are fixed when they are captured: numbers that the code has written down, None, dtypes, patterns,
members of enumerations."""

from __future__ import annotations

import enum
import functools
import operator
from types import CodeType
from typing import Any

from ...errors import Unsupported
from ...ir.segment import Constant, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects import attributes
from ..objects.binary_operators import constant_operator
from ..objects.class_attributes import guard_absent, lookup_class, python_method
from ..objects.iterators import MatchIterator
from ..objects.keys import as_index, concrete_key
from ..objects.native_functions import adopt, plain_copy, run
from ..symbolic import ABSENT, STANDS_FOR, ForeignScalar, is_constant, type_of
from ..symbolic.kinds import is_trusted_class
from ..symbolic.raising import raise_in_program
from .kind import Args, Kind, Kwargs, Then, always_true, itself
from .object import ObjectKind


def _compared(i: Interpreter, value: Any) -> Any:
    """A value that native code compares with constants."""
    if type(value) is ForeignScalar and python_method(i, value, "__eq__") is not None:
        raise Unsupported(f"native code that compares a {type_of(value).__name__}")
    return i.outside.concrete(value)


#: What `finditer` gives.
_FOUND_BY_PATTERN = STANDS_FOR[MatchIterator]


class ConstantKind(ObjectKind):
    """A plain value, which native code answers for. Those that are sequences have a kind of their own."""

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        name = function.__name__
        if name in self.methods or not is_constant(value):
            return ObjectKind.method(self, i, function, value, args, kwargs)
        if type(value) is range:  # which compares its numbers
            args = tuple([_compared(i, a) for a in args])
        reader = functools.partial(plain_copy, what=f"the method {name} of a {type(value).__name__}")
        found = run(i, function, (reader,), (value, *args), kwargs, reader)
        return MatchIterator(i, found) if type(found) is _FOUND_BY_PATTERN else adopt(i, found)

    def unary(self, i: Interpreter, function: Any, value: Any, then: Then) -> None:
        if is_constant(value):
            then(i.native(function, value))
        else:
            super().unary(i, function, value, then)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        constant_operator(i, function, left, right, then)

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if not is_constant(base):
            super().attribute(i, base, name, then)
        else:
            then(i.native(getattr, base, name))

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, base, concrete_key(i, key)))

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return bool(i.native(operator.contains, container, _compared(i, element)))

    def iterate(self, i: Interpreter, value: Any) -> Any:
        raise_in_program(TypeError(f"'{type(value).__name__}' object is not iterable"))

    def truth(self, i: Interpreter, value: Any) -> bool:
        if value is NotImplemented:
            raise Unsupported("the truth of NotImplemented, of which Python warns")
        return bool(value) if is_constant(value) else super().truth(i, value)

    def key(self, i: Interpreter, value: Any) -> Any:
        return value if is_constant(value) else super().key(i, value)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return Constant(value)


class SliceKind(ConstantKind):
    """`slice(...)`, perhaps of tensors and numbers."""

    def attribute(self, i: Interpreter, base: slice, name: str, then: Then) -> None:
        if name in ("start", "stop", "step"):
            then(getattr(base, name))
        else:
            super().attribute(i, base, name, then)

    def method(self, i: Interpreter, function: Any, value: slice, args: Args, kwargs: Kwargs) -> Any:
        return super().method(i, function, concrete_key(i, value), args, kwargs)

    key = Kind.key

    def rebuild(self, book: RecipeBook, value: slice) -> Recipe:
        return book.build(slice, [value.start, value.stop, value.step])


class AliasKind(ConstantKind):
    """What annotations are made of, `list[int]` and `int | None`, and code objects."""

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if name in ("__args__", "__origin__", "__parameters__") and type(base) is not CodeType:
            then(i.native(getattr, base, name))
        else:
            super().attribute(i, base, name, then)

    truth, key = always_true, itself
    iterate, item = Kind.iterate, Kind.item


#: Classes that an enumeration may derive from, whose instances have elements.
_SEQUENCES = (str, bytes, tuple)


class EnumKind(ConstantKind):
    """A member, which is the same object in each call; its class may say in Python what is done with it."""

    def attribute(self, i: Interpreter, base: enum.Enum, name: str, then: Then) -> None:
        kind = type(base)
        i.outside.note_place(base, i.outside.roots.constant(f"{kind.__qualname__}.{base._name_}", base))
        own = {"name": "_name_", "value": "_value_"}.get(name, name)
        owner, raw = lookup_class(kind, name)
        native = own in ("_name_", "_value_") and (raw is ABSENT or owner.__module__ == "enum")
        if native and is_constant(found := base.__dict__.get(own)):
            guard_absent(i, kind.__mro__, name)
            if not is_trusted_class(kind):
                i.outside.guard("equal", i.outside.source_of(base).attr(own), found)  # type: ignore[union-attr]
            then(found)
            return
        attributes.load_object(i, base, name, then)

    def truth(self, i: Interpreter, value: enum.Enum) -> bool:
        said = any(python_method(i, value, name) is not None for name in ("__bool__", "__len__"))
        return ObjectKind.truth(self, i, value) if said else bool(value)

    def native_truth(self, i: Interpreter, value: enum.Enum) -> bool:
        return bool(value)

    def item(self, i: Interpreter, base: enum.Enum, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, base, as_index(i, concrete_key(i, key))))

    def iterate(self, i: Interpreter, value: enum.Enum) -> Any:
        return iter(value) if isinstance(value, _SEQUENCES) else super().iterate(i, value)

    def length(self, i: Interpreter, value: enum.Enum) -> int | None:
        return len(value) if isinstance(value, _SEQUENCES) else None

    call = ObjectKind.call
