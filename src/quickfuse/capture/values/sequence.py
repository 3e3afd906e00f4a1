"""Lists, tuples, deques, strings and ranges that captured code made or wrote down: real ones, which hold stand-ins."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from ...errors import Unsupported
from ...ir.segment import Call, Constant, Recipe
from ..effects import RecipeBook
from ..inference.mutation import IN_PLACE_OF
from ..interpreter import Interpreter
from ..library.late_values import by_template, method_of_text
from ..library.text import formed_by, is_late_text, joined, printable, with_texts
from ..objects import containers
from ..objects.binary_operators import COMPARISONS, compare_sequences
from ..objects.containers import arriving, equal, iterate
from ..objects.keys import as_index, concrete_key, hashable
from ..objects.native_functions import as_is, index
from ..symbolic import DynamicSize, FormedText, is_constant, type_of
from ..symbolic.raising import Raised
from .constant import ConstantKind
from .kind import Kind, Then
from .object import ContainerKind, Methods, ObjectKind, is_among


def _builtin(value: Any) -> Any:
    """The builtin class of a sequence, whose own methods ask none of those that derive from it."""
    return next(cls for cls in (list, tuple, collections.deque) if isinstance(value, cls))


def _index(i: Interpreter, value: Any, wanted: Any, start: Any = None, stop: Any = None) -> int:
    builtin = _builtin(value)
    size = builtin.__len__(value)
    for position in range(*slice(index(i, start), index(i, stop)).indices(size)):
        same = equal(i, builtin.__getitem__(value, position), wanted)
        if builtin.__len__(value) != size:
            raise Unsupported(f"a {type(value).__name__} that a comparison of its elements changes")
        if same:
            return position
    raise Unsupported(f"index() or remove() of what is not in the {type(value).__name__}")


def _count(i: Interpreter, value: Any, wanted: Any) -> int:
    builtin = _builtin(value)
    size = builtin.__len__(value)
    found = sum(equal(i, element, wanted) for element in [*builtin.__iter__(value)])
    if builtin.__len__(value) != size:
        raise Unsupported(f"a {type(value).__name__} that a comparison of its elements changes")
    return found


def _sort(i: Interpreter, value: list[Any], *, key: Any = None, reverse: Any = False) -> None:
    elements = list.copy(value)
    list.clear(value)  # as it is to code that looks while it is sorted
    try:
        ordered = i.call_now(sorted, (elements,), {"key": key, "reverse": reverse})
    except Raised:
        raise Unsupported("sort() that raises an exception, which leaves a list partly sorted") from None
    if list.__len__(value):
        raise Unsupported("a list that is changed while it is sorted")
    list.extend(value, ordered)


def _extending(name: str) -> Callable[..., None]:
    """`extend` or `extendleft`."""

    def extend(i: Interpreter, value: Any, given: Any) -> None:
        by_itself = i.outside.contents(given) is value
        i.read(getattr(_builtin(value), name), value, list(iterate(i, given)) if by_itself else arriving(i, given))

    return extend


_extend = _extending("extend")


def _fill(i: Interpreter, value: list[Any], *given: Any) -> None:
    list.clear(value)
    for elements in given:
        _extend(i, value, elements)


_COMMON: Methods = {
    **ObjectKind.methods, "__getitem__": (index,), "__len__": (), "__iter__": (), "index": _index, "count": _count,
}  # fmt: skip
_CHANGEABLE: Methods = {
    **_COMMON, "append": (as_is,), "extend": _extend, "pop": (index,), "clear": (), "reverse": (), "copy": (),
    "remove": lambda i, value, wanted: value.__delitem__(_index(i, value, wanted)),
}  # fmt: skip


class SequenceKind(ContainerKind):
    """What lists, tuples and deques have in common. `cls` is the builtin class, which does what those that derive from it
    leave to it."""

    makes = frozenset({"copy"})
    cls: ClassVar[type]
    contains = is_among

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        if type(base) is not self.cls:
            super().attribute(i, base, name, then)
        else:
            then(i.native(getattr, base, name))

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        found = i.native(operator.getitem, base, as_index(i, concrete_key(i, key)))
        then(i.mark_created(found) if type(found) is list else found)

    def iterate(self, i: Interpreter, value: Any) -> Any:
        return self.cls.__iter__(value)

    def length(self, i: Interpreter, value: Any) -> int:
        return int(i.read(self.cls.__len__, value))

    def truth(self, i: Interpreter, value: Any) -> bool:
        return bool(value) if type(value) is self.cls else super().truth(i, value)

    def backwards(self, i: Interpreter, value: Any) -> Any:
        return i.read(reversed, value) if type(value) is self.cls else iter(list(self.iterate(i, value))[::-1])

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        plain = IN_PLACE_OF.get(function, function)
        if function is operator.iadd and type(left) in (list, collections.deque):
            _extend(i, left, right)
            then(left)
        elif function is operator.imul and isinstance(left, (list, collections.deque)) and type(right) in (int, bool):
            then(i.read(self.cls.__imul__, left, right))  # type: ignore[attr-defined]
        elif plain is operator.mul and (type(left) in (int, bool) or type(right) in (int, bool)):
            found = i.native(plain, left, right)
            then(i.mark_created(found) if isinstance(found, (list, collections.deque)) else found)
        else:
            super().binary(i, function, left, right, then)

    def operator(self, i: Interpreter, function: Any, left: Any, right: Any) -> Any:
        if function in (operator.add, operator.iadd):  # which looks at no element
            found = i.native(operator.add, left, right)
            return i.mark_created(found) if type(found) is list else found
        if function in COMPARISONS and type(left) is type(right) and isinstance(left, (list, tuple)):
            return compare_sequences(i, function, left, right)
        return super().operator(i, function, left, right)


class ChangeableKind(SequenceKind):
    """Lists and deques."""

    def set_item(self, i: Interpreter, base: Any, key: Any, value: Any) -> None:
        if isinstance(key, slice):
            value = list(containers.iterate(i, value))
        i.read(self.cls.__setitem__, base, as_index(i, concrete_key(i, key)), value)  # type: ignore[attr-defined]

    def delete_item(self, i: Interpreter, base: Any, key: Any) -> None:
        i.read(self.cls.__delitem__, base, as_index(i, concrete_key(i, key)))  # type: ignore[attr-defined]


class ListKind(ChangeableKind):
    cls = list
    methods: ClassVar[Methods] = {
        **_CHANGEABLE, "__init__": _fill, "insert": (index, as_is), "__reversed__": (), "sort": _sort,
    }  # fmt: skip

    def rebuild(self, book: RecipeBook, value: list[Any]) -> Recipe:
        return book.container(value) if type(value) is list else super().rebuild(book, value)


class TupleKind(SequenceKind):
    """Tuples, and those with names."""

    cls = tuple
    methods = _COMMON

    def key(self, i: Interpreter, value: tuple[Any, ...]) -> Any:
        return tuple([hashable(i, v) for v in value]) if type(value) is tuple else value

    def rebuild(self, book: RecipeBook, value: tuple[Any, ...]) -> Recipe:
        return book.container(value)


class SizeKind(TupleKind):
    """`torch.Size`, which adds to tuples of numbers, and compares like the tuple that it is."""

    rank = 2

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if IN_PLACE_OF.get(function, function) in (operator.add, operator.mul):
            then(i.native(function, *(_plain_sizes(i, v) for v in (left, right))))
        elif is_constant(left) and is_constant(right):
            then(i.native(function, left, right))
        else:
            left, right = (tuple(v) if type(v) is torch.Size else v for v in (left, right))
            i.binary(function, left, right, then)


class DynamicSizeKind(TupleKind):
    """A `torch.Size` with symbols in it: tuples that are made of it are sizes as well."""

    rank = 3

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        raise Unsupported(f"the attribute {name} of a torch.Size with numbers that keep changing")

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        super().item(i, base, key, lambda found: then(DynamicSize(found) if isinstance(found, tuple) else found))

    def truth(self, i: Interpreter, value: Any) -> bool:
        return len(value) > 0

    def backwards(self, i: Interpreter, value: Any) -> Any:
        return iter(tuple(value)[::-1])

    def key(self, i: Interpreter, value: Any) -> Any:
        return super().key(i, tuple(value))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        sizes = IN_PLACE_OF.get(function, function) in (operator.add, operator.mul)
        left, right = (tuple(v) if isinstance(v, (DynamicSize, torch.Size)) else v for v in (left, right))
        i.binary(function, left, right, lambda found: then(DynamicSize(found) if sizes else found))

    def rebuild(self, book: RecipeBook, value: tuple[Any, ...]) -> Recipe:
        return Call(torch.Size, [book.recipe(tuple(value))])


def _plain_sizes(i: Interpreter, value: Any) -> Any:
    found = concrete_key(i, value)
    if not is_constant(found):
        raise Unsupported(f"a torch.Size and a {type_of(value).__name__} of objects")
    return found


class DequeKind(ChangeableKind):
    cls = collections.deque
    methods: ClassVar[Methods] = {
        **_CHANGEABLE, "appendleft": (as_is,), "extendleft": _extending("extendleft"), "popleft": (), "rotate": (index,),
    }  # fmt: skip

    def attribute(self, i: Interpreter, base: Any, name: str, then: Then) -> None:
        ObjectKind.attribute(self, i, base, name, then)

    def item(self, i: Interpreter, base: Any, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, base, as_index(i, concrete_key(i, key))))

    def rebuild(self, book: RecipeBook, value: collections.deque[Any]) -> Recipe:
        if type(value) is not collections.deque:
            return super().rebuild(book, value)
        made = book.begin(value, Call(collections.deque, [Constant(()), Constant(value.maxlen)]))
        made.items = [book.recipe(v) for v in value]
        return made


class FormedTextKind(Kind):
    """A `FormedText`: what looks at it ends the graph."""

    asks_class = False
    rank = 7

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if IN_PLACE_OF.get(function, function) is not operator.add or not type_of(left) is type_of(right) is str:
            super().binary(i, function, left, right, then)
        else:
            then(joined(i, [left, right]))

    def attribute(self, i: Interpreter, base: FormedText, name: str, then: Then) -> None:
        then(method_of_text(i, base, name))

    def rebuild(self, book: RecipeBook, value: FormedText) -> Recipe:
        return Call(value.function, [book.recipe(argument) for argument in value.args])


def _join(i: Interpreter, value: str, parts: Any) -> Any:
    found = [*iterate(i, parts)]
    texts = type(value) is str and all(type_of(part) is str for part in found)
    if texts and any(is_late_text(i, part) for part in found):
        return joined(i, found, value)
    return i.native(value.join, [i.outside.concrete(part) for part in found])


def _format(i: Interpreter, value: str, /, *args: Any, **kwargs: Any) -> Any:
    made = None if all(map(is_constant, (*args, *kwargs.values()))) else by_template(i, value, args, kwargs)
    if made is not None:
        return made
    named = {key: printable(i, v) for key, v in kwargs.items()}
    return i.native(value.format, *[printable(i, a) for a in args], **named)  # type: ignore[no-any-return]


_MOD = (operator.mod, operator.imod)


class TextKind(SequenceKind):
    """Strings, bytes and ranges: their elements are constants. `cls` is the class that the table gives."""

    def __init__(self, cls: type) -> None:
        self.cls = cls  # type: ignore[misc]
        self.methods = {**ConstantKind.methods, "join": _join, "format": _format} if cls is str else ConstantKind.methods

    method, contains, rebuild = ConstantKind.method, ConstantKind.contains, ConstantKind.rebuild

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if is_constant(left) and is_constant(right):
            then(i.native(function, left, right))
        elif type(left) is str and function in _MOD and is_constant(right := with_texts(i, left, right)):
            then(i.native(operator.mod, left, right))
        elif type(left) is str and function in _MOD and (formed := formed_by(i, left, right)) is not None:
            then(formed)
        elif type(left) in (str, bytes) and function in _MOD:
            written = tuple([printable(i, v) for v in right]) if type(right) is tuple else printable(i, right)
            then(i.native(operator.mod, left, written))
        else:
            super().binary(i, function, left, right, then)

    def key(self, i: Interpreter, value: Any) -> Any:
        return value if is_constant(value) else super().key(i, value)
