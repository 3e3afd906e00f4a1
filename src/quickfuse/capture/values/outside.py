"""Objects of the user's: what is asked of one is read by its path, with a guard."""

from __future__ import annotations

import collections
import operator
import weakref
from typing import Any

from ...errors import Unsupported
from ...ir.marks import CAPTURED_AS
from .. import (
    binary_operators,
    container_methods,
    getters,
    lru_caches,
    native_calls,
    native_methods,
    outside_iterators,
    torch_calls,
)
from ..binary_operators import COMPARISONS, IN_PLACE_OF
from ..class_attributes import python_method
from ..interpreter import Interpreter
from ..iterators import ITERATORS
from ..mutation import name_of
from ..raising import call_handler, raise_in_program
from ..symbolic import CONTAINERS, DICTS, ForeignObject, FromOutside, ShadowContainer, contains_symbolic, type_of
from .kind import Then
from .object import ObjectKind


class OutsideKind(ObjectKind):
    """What everything that is a `FromOutside` has in common."""

    def attribute(self, i: Interpreter, base: FromOutside, name: str, then: Then) -> None:
        if type(base.real) in DICTS or type(base.real) in CONTAINERS:
            then(container_methods.load_method(i, base, name))
        else:
            super().attribute(i, base, name, then)

    def key(self, i: Interpreter, value: Any) -> Any:
        if type(value.real) in (dict, list, set):
            raise_in_program(TypeError(f"unhashable type: '{type(value.real).__name__}'"))
        raise Unsupported(f"hashing a {type_of(value).__name__}")


class ForeignKind(OutsideKind):
    """A `ForeignObject`, which is known by its type alone."""

    def call(
        self, i: Interpreter, function: ForeignObject, args: tuple[Any, ...], kwargs: dict[str, Any], then: Then
    ) -> None:
        """What native code does with an object depends on which it is."""
        real = function.real
        kind = type(real)
        if kind in getters.KINDS:
            then(getters.call(i, function, args, kwargs))
        elif kind is lru_caches.KIND:
            then(lru_caches.call(i, function, args, kwargs))
        elif kind is weakref.ref and not (args or kwargs):
            then(i.outside.wrap(real(), function.source.referent()))
        elif type(function) is ForeignObject and (handler := native_calls.handler_of(real)) is not None:
            i.outside.guard("is", function.source, real)
            then(call_handler(i, handler, name_of(real), args, kwargs))
        elif torch_calls.is_operator(real):
            i.outside.guard("is", function.source, real)
            i.call(real, args, kwargs, then)
        elif (stands_for := getattr(kind, CAPTURED_AS, None)) is not None:
            i.attribute(function, stands_for, lambda original: i.call(original, args, kwargs, then))
        else:
            super().call(i, function, args, kwargs, then)

    def key(self, i: Interpreter, value: ForeignObject) -> Any:
        if not value.is_hashed_by_identity:
            raise Unsupported(f"hashing a {type_of(value).__name__}")
        return ObjectKind.key(self, i, value)

    def advance(self, i: Interpreter, iterator: ForeignObject) -> tuple[bool, Any]:
        return outside_iterators.next_of(i, iterator)

    def iterate(self, i: Interpreter, value: ForeignObject) -> Any:
        return value if isinstance(value.real, ITERATORS) else super().iterate(i, value)


class ShadowContainerKind(OutsideKind):
    """A list, set, deque or tuple of the user's, past its class: what it holds answers, each element read by its path."""

    rank = 4

    def item(self, i: Interpreter, base: ShadowContainer, key: Any, then: Then) -> None:
        if base.cls is collections.deque and python_method(i, base, "__len__") is not None:
            raise Unsupported(f"an item of a {type(base.real).__name__}, whose __len__ counts for negative indices")
        contents = i.outside.open(base)
        i.kind_of(contents).item(i, contents, key, then)

    def set_item(self, i: Interpreter, base: ShadowContainer, key: Any, value: Any) -> None:
        contents = i.outside.open(base)
        i.kind_of(contents).set_item(i, contents, key, value)

    def delete_item(self, i: Interpreter, base: ShadowContainer, key: Any) -> None:
        contents = i.outside.open(base)
        i.kind_of(contents).delete_item(i, contents, key)

    def contains(self, i: Interpreter, container: ShadowContainer, element: Any) -> bool:
        contents = i.outside.open(container)
        return i.kind_of(contents).contains(i, contents, element)

    def iterate(self, i: Interpreter, value: ShadowContainer) -> Any:
        contents = i.outside.open(value)
        return i.kind_of(contents).iterate(i, contents)

    def length(self, i: Interpreter, value: ShadowContainer) -> int | None:
        contents = i.outside.open(value)
        return i.kind_of(contents).length(i, contents)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function is operator.iadd and type(left) is ShadowContainer and left.cls is list:
            native_methods.call_container_method(i, left, "extend", (right,), {})
            then(left)
            return
        for value in (left, right):
            derived = type(value) is ShadowContainer and type(value.real) is not value.cls
            if derived and value.cls not in (list, tuple) and function not in COMPARISONS:  # the result is of the class
                raise Unsupported(f"{name_of(function)} of a {type(value.real).__name__}")
        if function in IN_PLACE_OF and type(left) is ShadowContainer:
            contents = i.outside.contents(left)
            if not isinstance(contents, set) or contains_symbolic(right := i.outside.contents(right)):
                raise Unsupported(f"{name_of(function)} of a {type(contents).__name__} of the user's")
            i.native(function, contents, right)
            then(left)
            return
        binary_operators.binary_operator(i, function, i.outside.contents(left), i.outside.contents(right), then)
