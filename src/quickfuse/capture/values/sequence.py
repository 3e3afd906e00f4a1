"""Lists, tuples, deques, strings and ranges that captured code made or wrote down: real ones, which hold stand-ins."""

from __future__ import annotations

import collections
import operator
from typing import Any, ClassVar

from ...ir.segment import Call, Constant, Recipe
from .. import containers
from ..containers import as_index, concrete_key, hashable
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..symbolic import is_constant
from .kind import Then
from .object import ObjectKind


class SequenceKind(ObjectKind):
    """What lists, tuples and deques have in common. `cls` is the builtin class, which does what those that derive from it
    leave to it."""

    cls: ClassVar[type]

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if type(base) is not self.cls:
            super().attribute(i, base, name, then)
        else:
            then(self.cls if name == "__class__" else i.native(getattr, base, name))

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        found = i.native(operator.getitem, base, as_index(i, concrete_key(i, key)))
        then(i.mark_created(found) if type(found) is list else found)

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return containers.is_among(i, container, element)

    def iterate(self, i: Interpreter, value: Any) -> Any:
        return self.cls.__iter__(value)

    def length(self, i: Interpreter, value: Any) -> int:
        return int(self.cls.__len__(value))

    def truth(self, i: Interpreter, value: Any) -> bool:
        return bool(value) if type(value) is self.cls else super().truth(i, value)


class ListKind(SequenceKind):
    cls = list

    def set_item(self, i: Interpreter, base: list[Any], key: Any, value: Any) -> None:
        if isinstance(key, slice):
            value = list(containers.iterate(i, value))
        i.read(list.__setitem__, base, as_index(i, concrete_key(i, key)), value)

    def delete_item(self, i: Interpreter, base: list[Any], key: Any) -> None:
        i.read(list.__delitem__, base, as_index(i, concrete_key(i, key)))

    def rebuild(self, book: RecipeBook, value: list[Any]) -> Recipe:
        return book.container(value) if type(value) is list else super().rebuild(book, value)


class TupleKind(SequenceKind):
    """Tuples, and those with names."""

    cls = tuple

    def key(self, i: Interpreter, value: tuple[Any, ...]) -> Any:
        return tuple([hashable(i, v) for v in value]) if type(value) is tuple else value

    def rebuild(self, book: RecipeBook, value: tuple[Any, ...]) -> Recipe:
        return book.container(value)


class DequeKind(SequenceKind):
    cls = collections.deque

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        ObjectKind.attribute(self, i, base, name, then)

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, base, as_index(i, concrete_key(i, key))))

    def set_item(self, i: Interpreter, base: Any, key: Any, value: Any) -> None:
        i.read(collections.deque.__setitem__, base, as_index(i, concrete_key(i, key)), value)

    def delete_item(self, i: Interpreter, base: Any, key: Any) -> None:
        i.read(collections.deque.__delitem__, base, as_index(i, concrete_key(i, key)))

    def rebuild(self, book: RecipeBook, value: collections.deque[Any]) -> Recipe:
        if type(value) is not collections.deque:
            return super().rebuild(book, value)
        made = book.begin(value, Call(collections.deque, [Constant(()), Constant(value.maxlen)]))
        made.items = [book.recipe(v) for v in value]
        return made


class TextKind(SequenceKind):
    """Strings, bytes and ranges: their elements are constants. `cls` is the class that the table gives."""

    def __init__(self, cls: type) -> None:
        self.cls = cls  # type: ignore[misc]

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return bool(i.native(operator.contains, container, i.outside.concrete(element)))

    def key(self, i: Interpreter, value: Any) -> Any:
        return value if is_constant(value) else super().key(i, value)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        return Constant(value)


class ByteArrayKind(ObjectKind):
    """Bytes that captured code made and may change."""

    def rebuild(self, book: RecipeBook, value: bytearray) -> Recipe:
        if not book.i.is_created(value):
            return super().rebuild(book, value)
        return Call(bytearray, [Constant(bytes(value))])
