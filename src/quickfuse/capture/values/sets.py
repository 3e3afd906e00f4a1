"""Sets and frozensets that captured code made: real ones, of what the symbolic stack holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ...errors import Unsupported
from ...ir.segment import Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..objects.containers import members, one_by_one
from ..objects.iterators import SetIterator
from ..objects.keys import hashable, sought
from ..objects.native_functions import each
from ..symbolic import TensorProxy, type_of
from .object import Methods, ObjectKind
from .sequence import SequenceKind


def _fill(i: Interpreter, value: set[Any], *given: Any) -> None:
    if isinstance(value, frozenset):
        raise Unsupported("the method __init__ of a frozenset")
    value.clear()
    _update(i, value, *given)


def _each(one: Callable[[set[Any], Any], None]) -> Callable[..., None]:
    """`update` or `difference_update`, by the method that does it with one element."""

    def change(i: Interpreter, value: set[Any], *given: Any) -> None:
        for elements in given:
            of_set = issubclass(type_of(elements), (set, frozenset))
            for element in members(i, elements) if of_set else one_by_one(i, elements):
                one(value, hashable(i, element))

    return change


_update = _each(set.add)


def _operand(i: Interpreter, value: Any) -> list[Any]:
    """The elements of an operand, each as it is looked for in a set."""
    return [hashable(i, element) for element in members(i, value)]


def _sought(i: Interpreter, value: Any) -> Any:
    """What is looked for in a set: a set among sets, too, as if it were frozen."""
    if issubclass(type_of(value), set):
        raise Unsupported("looking for a set in a set")
    return sought(i, value)


def _pop(i: Interpreter, value: set[Any]) -> Any:
    if i.outside.container_of(value) is not None:
        raise Unsupported("which element a set from outside gives")
    return i.read(set.pop, value)


_NEW = frozenset("copy union difference intersection symmetric_difference".split())
_TAKE_ONE = "intersection_update symmetric_difference_update issuperset issubset"


class SetKind(SequenceKind):
    """`cls` is the builtin class."""

    cls: ClassVar[type]
    makes = _NEW
    methods: ClassVar[Methods] = {
        **ObjectKind.methods, "__init__": _fill, "__len__": (), "clear": (), "pop": _pop,
        "__iter__": lambda i, value: i.kind_of(value).iterate(i, value),
        "add": (hashable,), **dict.fromkeys(("discard", "remove", "__contains__"), (_sought,)),
        **dict.fromkeys((*_NEW, *_TAKE_ONE.split()), (_operand,)),
        "isdisjoint": (each(hashable),),  # which asks a class that derives from set for an iterator
        "update": _update, "difference_update": _each(set.discard),
    }  # fmt: skip

    def __init__(self, cls: type) -> None:
        self.cls = cls  # type: ignore[misc]

    item = ObjectKind.item
    backwards = ObjectKind.backwards

    def contains(self, i: Interpreter, container: Any, element: Any) -> bool:
        return bool(i.read(self.cls.__contains__, container, _sought(i, element)))  # type: ignore[attr-defined]

    def iterate(self, i: Interpreter, value: Any) -> Any:
        if i.outside.is_changed_set(value, in_order=True):
            raise Unsupported("the order of a set that was changed")
        if i.outside.is_changed_set(value):
            return SetIterator(i, iter([*i.outside.container_of(value).original]), value)
        return super().iterate(i, value)

    def rebuild(self, book: RecipeBook, value: Any) -> Recipe:
        if type(value) is not self.cls:
            return ObjectKind.rebuild(self, book, value)
        # The hash of some is where they lie in memory: the order of a set with them is no one's to know.
        by_address = any(type(v) is TensorProxy or type_of(v).__hash__ is object.__hash__ for v in value)
        if list(self.cls(list(value))) != list(value) and not by_address:
            raise Unsupported("a set whose order comes from what was in it before")
        return book.container(value)
