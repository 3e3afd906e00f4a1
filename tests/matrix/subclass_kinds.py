"""Subclasses of builtin classes, enumerations and named tuples.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import collections
import enum
import types
import typing
from collections.abc import Callable
from typing import Any

from .values import KINDS, Values, deleter, kind, setter

# subclasses of builtin classes --------------------------------------------------------------------------------------


def _subclass(base: type, first: tuple[Any, ...], second: tuple[Any, ...], special: str, method: Callable[..., Any]) -> None:
    def factory() -> Values:
        made: Any = types.new_class("Derived", (base,))
        one = made(*first)
        return Values(one, made(*second), {"class": setter(made, special, method), "place": setter(one, "a", 5)})

    KINDS[f"subclass_of_{base.__name__}_{special.strip('_')}"] = factory


for _special, _method in (
    ("__add__", lambda s, o: 70),
    ("__index__", lambda s: 1),
    ("__eq__", lambda s, o: True),
    ("__bool__", lambda s: False),
    ("__str__", lambda s: "text"),
):
    _subclass(int, (2,), (3,), _special, _method)
    _subclass(float, (2.0,), (0.5,), _special, _method)
    _subclass(str, ("a",), ("b",), _special, _method)
for _special, _method in (
    ("__getitem__", lambda s, k: 9),
    ("__len__", lambda s: 1),
    ("__iter__", lambda s: iter([5])),
    ("__contains__", lambda s, k: False),
    ("__eq__", lambda s, o: True),
    ("a", 3),
):
    _subclass(list, ([1, 2],), ([2, 1],), _special, _method)
    _subclass(tuple, ((1, 2),), ((2, 1),), _special, _method)
    _subclass(dict, ({"a": 1, 1: 2},), ({"a": 3},), _special, _method)
    _subclass(set, ({1, 2},), ({2, 3},), _special, _method)
    _subclass(frozenset, ({1, 2},), ({2, 3},), _special, _method)
    _subclass(collections.OrderedDict, ({"a": 1, 1: 2},), ({"a": 3},), _special, _method)
    _subclass(collections.deque, ([1, 2],), ([2, 1],), _special, _method)
_subclass(bytes, (b"ab",), (b"c",), "__len__", lambda s: 1)
_subclass(complex, (1j,), (2j,), "__abs__", lambda s: 1)


@kind
def list_subclass_in_place() -> Values:
    class Items(list):
        pass

    first = Items([1, 2])
    return Values(
        first,
        Items([1]),
        {"place": (lambda: first.append(3), lambda: first.pop()), "delete": (lambda: first.pop(), lambda: first.append(2))},
    )


@kind
def dict_subclass_in_place() -> Values:
    class Items(dict):
        def __missing__(self, key: Any) -> Any:
            return 11

    first = Items(a=1)
    return Values(
        first,
        Items(),
        {"place": (lambda: first.update(a=3), lambda: first.update(a=1)), "class": deleter(Items, "__missing__")},
    )


@kind
def str_enum() -> Values:
    class Mode(str, enum.Enum):  # noqa: UP042
        A = "a"
        B = "b"

    return Values(Mode.A, Mode.B, {"class": setter(Mode, "__len__", lambda s: 4)})


@kind
def int_enum() -> Values:
    class Level(enum.IntEnum):
        ONE = 1
        TWO = 2

    return Values(Level.ONE, Level.TWO, {"place": setter(Level.ONE, "a", 4)})


@kind
def enum_() -> Values:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

    return Values(
        Color.RED, Color.BLUE, {"place": setter(Color.RED, "a", 4), "class": setter(Color, "__bool__", lambda s: False)}
    )


@kind
def enum_class() -> Values:
    class Color(enum.Enum):
        a = 1
        b = 2

    class Other(enum.Enum):
        a = 2

    return Values(Color, Other)


@kind
def flag() -> Values:
    class Bits(enum.Flag):
        A = 1
        B = 2

    return Values(Bits.A, Bits.A | Bits.B)


@kind
def named_tuple() -> Values:
    made = collections.namedtuple("made", "a b")
    return Values(made(1, 2), made(2, 1), {"class": setter(made, "__len__", lambda s: 1)})


@kind
def named_tuple_subclass() -> Values:
    class Pair(typing.NamedTuple):
        a: int
        b: Any = 2

    class Named(Pair):
        def double(self) -> int:
            return self.a * 2

    first = Named(1)
    return Values(first, Named(3, 4), {"place": setter(first, "c", 5), "class": setter(Named, "double", lambda s: 9)})
