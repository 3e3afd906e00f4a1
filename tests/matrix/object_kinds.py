"""Objects of classes with attributes and special methods of all sorts.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .values import KINDS, Values, deleter, kind, plain, setter

# objects ----------------------------------------------------------------------------------------------------------


class Plain:
    """Something with attributes."""


def _object(**attributes: Any) -> Any:
    made = Plain()
    vars(made).update(attributes)
    return made


@kind
def object_() -> Values:
    first = _object(a=1)
    return Values(first, _object(a=3), {"place": setter(first, "a", 5), "delete": deleter(first, "a")})


@kind
def object_without() -> Values:
    first = _object()
    return Values(first, _object(a=3, b=1), {"place": setter(first, "b", 5)})


@kind
def object_class_attribute() -> Values:
    class Own:
        a = 2

    first, second = Own(), Own()
    second.a = 4  # type: ignore[misc]
    return Values(first, second, {"class": setter(Own, "a", 7), "place": setter(first, "a", 5), "delete": deleter(Own, "a")})


@kind
def object_inherited() -> Values:
    class Base:
        a = 2

    class Own(Base):
        pass

    class Other:
        a = 9

    class Through(Other):
        pass

    first = Own()

    def bases(new: tuple[type, ...]) -> Callable[[], None]:
        return lambda: setattr(Own, "__bases__", new)

    return Values(
        first,
        Through(),
        {"class": setter(Own, "a", 7), "delete": deleter(Base, "a"), "place": (bases((Other,)), bases((Base,)))},
    )


@kind
def object_of_another_class() -> Values:
    class One:
        a = 1

    class Two:
        a = 2

    first = One()
    return Values(first, Two(), {"place": setter(first, "__class__", Two)})


@kind
def slots() -> Values:
    class Slotted:
        __slots__ = ("a", "b")

    first, second = Slotted(), Slotted()
    first.a, second.b = 1, 3
    return Values(
        first,
        second,
        {"place": (lambda: setattr(first, "b", 4), lambda: delattr(first, "b")), "delete": deleter(first, "a")},
    )


@kind
def property_() -> Values:
    class Own:
        def __init__(self, own: int) -> None:
            self.own = own

        @property
        def a(self) -> int:
            return self.own

    first = Own(1)
    return Values(
        first,
        Own(2),
        {
            "place": setter(first, "own", 5),
            "class": setter(Own, "a", property(lambda s: 8)),
            "delete": deleter(first, "own"),
        },
    )


@kind
def property_that_raises() -> Values:
    class Own:
        @property
        def a(self) -> int:
            return self.own  # type: ignore[attr-defined]

        def __getattr__(self, name: str) -> int:
            return len(name)

    first = Own()
    return Values(first, _object(a=4), {"place": setter(first, "own", 5), "delete": deleter(Own, "__getattr__")})


@kind
def getattr_() -> Values:
    class Own:
        def __init__(self, own: int) -> None:
            self.own = own

        def __getattr__(self, name: str) -> int:
            if name == "a":
                return self.own
            raise AttributeError(name)

    first = Own(1)
    return Values(
        first,
        Own(2),
        {
            "place": setter(first, "a", 5),
            "class": setter(Own, "__getattr__", lambda s, n: 6),
            "delete": deleter(Own, "__getattr__"),
        },
    )


@kind
def getattribute() -> Values:
    class Own:
        def __init__(self, own: int) -> None:
            self.own = own

        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__("own" if name == "a" else name)

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "own", 5), "delete": deleter(Own, "__getattribute__")})


@kind
def descriptor() -> Values:
    class Field:
        def __init__(self, value: int) -> None:
            self.value = value

        def __get__(self, instance: Any, owner: Any) -> int:
            return self.value

        def __set__(self, instance: Any, value: Any) -> None:
            self.value = value

    class Own:
        a = Field(1)

    class Other:
        a = Field(3)

    own = vars(Own)["a"]
    return Values(Own(), Other(), {"place": setter(own, "value", 5), "class": setter(Field, "__get__", lambda s, i, o: 8)})


@kind
def cached_property() -> Values:
    class Own:
        def __init__(self, own: int) -> None:
            self.own = own

        @functools.cached_property
        def a(self) -> int:
            return self.own

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "own", 5)})


def _dataclass_kind(name: str, **options: Any) -> None:
    def factory() -> Values:
        @dataclass(**options)
        class Data:
            a: Any
            b: Any = 2

        first = Data(1)
        changes = {} if options.get("frozen") else {"place": setter(first, "a", 5), "delete": deleter(first, "a")}
        return Values(first, Data(3, 4), {**changes, "class": setter(Data, "__eq__", lambda s, o: True)})

    KINDS[f"dataclass{name}"] = factory


for _name, _options in (("", {}), ("_frozen", {"frozen": True}), ("_order", {"order": True}), ("_slots", {"slots": True})):
    _dataclass_kind(_name, **_options)
plain("simple_namespace", lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2, b=3))


def _special(name: str, first: Callable[..., Any], second: Callable[..., Any]) -> None:
    """Objects whose class defines a special method: another class, another method, none."""

    def factory() -> Values:
        one: Any = types.new_class("One", (), exec_body=lambda space: space.update({name: first}))
        two: Any = types.new_class("Two", (), exec_body=lambda space: space.update({name: second}))
        return Values(one(), two(), {"class": setter(one, name, second), "delete": deleter(one, name)})

    KINDS[f"special_{name.strip('_')}"] = factory


for _name, _first, _second in (
    ("__len__", lambda s: 2, lambda s: 0),
    ("__bool__", lambda s: True, lambda s: False),
    ("__iter__", lambda s: iter([1, 2]), lambda s: iter([3])),
    ("__getitem__", lambda s, k: [1, 2][k], lambda s, k: [4, 5, 6][k]),
    ("__contains__", lambda s, k: True, lambda s, k: False),
    ("__index__", lambda s: 1, lambda s: 2),
    ("__int__", lambda s: 1, lambda s: 2),
    ("__float__", lambda s: 1.5, lambda s: 2.5),
    ("__eq__", lambda s, o: True, lambda s, o: False),
    ("__lt__", lambda s, o: True, lambda s, o: False),
    ("__add__", lambda s, o: o * 2, lambda s, o: o * 3),
    ("__radd__", lambda s, o: o * 2, lambda s, o: o * 3),
    ("__mul__", lambda s, o: o * 2, lambda s, o: o + 3),
    ("__rmul__", lambda s, o: o * 2, lambda s, o: o + 3),
    ("__neg__", lambda s: 1, lambda s: 2),
    ("__abs__", lambda s: 1, lambda s: 2),
    ("__call__", lambda s, *a: 1, lambda s, *a: 2),
    ("__hash__", lambda s: 1, lambda s: 2),
    ("__str__", lambda s: "1", lambda s: "2"),
    ("__repr__", lambda s: "1", lambda s: "2"),
    ("__reversed__", lambda s: iter([2, 1]), lambda s: iter([4])),
    ("__round__", lambda s, *a: 1, lambda s, *a: 2),
    ("__enter__", lambda s: 1, lambda s: 2),
    ("__next__", lambda s: 1, lambda s: 2),
    ("__matmul__", lambda s, o: 1, lambda s, o: 2),
    ("__iadd__", lambda s, o: o * 2, lambda s, o: o * 3),
    ("__ne__", lambda s, o: True, lambda s, o: False),
    ("__format__", lambda s, f: "1", lambda s, f: "2"),
):
    _special(_name, _first, _second)


@kind
def index_object() -> Values:
    class Index:
        def __init__(self, n: int) -> None:
            self.n = n

        def __index__(self) -> int:
            return self.n

    first = Index(1)
    return Values(first, Index(2), {"place": setter(first, "n", 0)})


@kind
def context_manager() -> Values:
    class Context:
        def __init__(self, n: int) -> None:
            self.n = n

        def __enter__(self) -> int:
            return self.n

        def __exit__(self, *_: Any) -> None:
            pass

    first = Context(1)
    return Values(first, Context(2), {"place": setter(first, "n", 5), "class": setter(Context, "__enter__", lambda s: 9)})


@kind
def abstract() -> Values:
    class Base(abc.ABC):  # noqa: B024
        pass

    class Own:
        a = 1

    class Derived(Base):
        a = 2

    own = Own()
    return Values(own, Derived(), {"place": setter(own, "a", 4)})


@kind
def class_() -> Values:
    class One:
        a = 1

        def __init__(self, *_: Any) -> None:
            self.b = 4

    class Two:
        a = 2

    return Values(One, Two, {"class": setter(One, "a", 5), "delete": deleter(One, "a")})


@kind
def class_with_metaclass() -> Values:
    class Meta(type):
        def __len__(cls) -> int:
            return 2

        def __getattr__(cls, name: str) -> Any:
            return 3

        def __instancecheck__(cls, other: Any) -> bool:
            return isinstance(other, int)

    class One(metaclass=Meta):
        a = 1

    class Two:
        pass

    return Values(One, Two, {"class": setter(Meta, "__len__", lambda s: 5), "delete": deleter(Meta, "__getattr__")})
