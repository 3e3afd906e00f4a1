"""Kinds of Python values that can reach tensor code: of each, two values, and ways to change the first one.

Each call of a factory makes the classes anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import fractions
import functools
import itertools
import operator
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

#: (do, undo) of a change.
Change = tuple[Callable[[], Any], Callable[[], Any]]


@dataclass
class Values:
    """Two values of a kind; `changes` of the first one by name: "place", "class" or "delete"."""

    first: Any
    second: Any
    changes: dict[str, Change] = field(default_factory=dict)


KINDS: dict[str, Callable[[], Values]] = {}


def kind(function: Callable[[], Values]) -> Callable[[], Values]:
    """Register a factory under its name."""
    KINDS[function.__name__] = function
    return function


def _plain(name: str, first: Callable[[], Any], second: Callable[[], Any]) -> None:
    KINDS[name] = lambda: Values(first(), second())


def setter(owner: Any, name: str, new: Any) -> Change:
    """Set an attribute, and set it back or take it away."""
    missing = object()
    old = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name, missing)

    def undo() -> None:
        if old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)

    return (lambda: setattr(owner, name, new)), undo


def deleter(owner: Any, name: str) -> Change:
    """Delete an attribute, and set it again."""
    old = vars(owner)[name] if isinstance(owner, type) else getattr(owner, name)
    return (lambda: delattr(owner, name)), (lambda: setattr(owner, name, old))


# plain values -----------------------------------------------------------------------------------------------------

_LITERALS: dict[str, tuple[Any, Any]] = {
    "int": (2, 3), "int_zero": (0, 1), "bool": (True, False), "int_bool": (1, True), "float": (2.0, 0.5),
    "float_zero": (0.0, -0.0), "float_nan": (float("nan"), 1.0), "int_float": (2, 2.0), "complex": (1 + 2j, 2 - 1j),
    "complex_zero": (complex(0.0, 0.0), complex(-0.0, 0.0)), "none": (None, 2), "str": ("a", "b"), "str_int": ("1", 1),
    "bytes": (b"ab", b"c"), "ellipsis": (..., 0), "slice": (slice(0, 1), slice(1, 3)), "slice_step": (slice(None), slice(0, 3, 2)),
    "range": (range(2), range(1, 3)), "tuple": ((1, 2), (3, 4)), "tuple_nested": ((1, (2, 3)), (1, (4, 3))),
    "tuple_length": ((1, 2), (1, 2, 3)), "tuple_bool": ((1, 0), (True, 0)), "frozenset": (frozenset({1, 2}), frozenset({2, 3})),
    "dtype": (torch.float64, torch.int32), "size": (torch.Size([3, 1]), torch.Size([1, 3])), "device": (torch.device("cpu"), None),
    "type": (int, float), "negative": (-1, -2), "not_implemented": (NotImplemented, 1),
}  # fmt: skip
for _name, (_first, _second) in _LITERALS.items():
    _plain(_name, lambda v=_first: v, lambda v=_second: v)  # type: ignore[misc]

_SCALARS = "int64 int32 uint8 int8 float32 float64 float16 bool_ complex64".split()
for _name in _SCALARS:
    _plain(f"numpy_{_name}", lambda t=_name: getattr(np, t)(1), lambda t=_name: getattr(np, t)(0))  # type: ignore[misc]
_plain("numpy_large", lambda: np.int64(2), lambda: np.int64(3))
_plain("numpy_types", lambda: np.int64(1), lambda: np.int32(1))
_plain("numpy_array_0d", lambda: np.array(1), lambda: np.array(2))
_plain("numpy_str", lambda: np.str_("a"), lambda: np.str_("b"))
_plain("fraction", lambda: fractions.Fraction(1, 2), lambda: fractions.Fraction(3, 2))
_plain("tensor_0d", lambda: torch.tensor(1), lambda: torch.tensor(2))
_plain("tensor_bool", lambda: torch.tensor(True), lambda: torch.tensor(False))
_plain("generic_alias", lambda: list[int], lambda: list[float])


@kind
def numpy_array() -> Values:
    first = np.array([1, 2])
    return Values(first, np.array([2, 0]), {"place": (lambda: first.__setitem__(0, 0), lambda: first.__setitem__(0, 1))})


# containers -------------------------------------------------------------------------------------------------------


@kind
def list_() -> Values:
    first = [1, 2]
    return Values(first, [2, 1], {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def list_of_str() -> Values:
    first = ["a", "b"]
    return Values(first, ["b"], {"place": (lambda: first.__setitem__(0, "c"), lambda: first.__setitem__(0, "a"))})


@kind
def list_nested() -> Values:
    first = [[1], [2, 3]]
    return Values(first, [[1], [4]], {"place": (lambda: first[0].append(3), lambda: first[0].pop())})


@kind
def dict_() -> Values:
    first = {"a": 1, "b": 2}
    return Values(first, {"b": 2, "a": 1}, {"place": (lambda: first.update(a=5), lambda: first.update(a=1)),
                                            "delete": (lambda: first.pop("b"), lambda: first.update(b=2))})  # fmt: skip


@kind
def dict_grown() -> Values:
    first: dict[Any, Any] = {"a": 1}
    return Values(first, {1: 2, 0: 3}, {"place": (lambda: first.update(c=7), lambda: first.pop("c"))})


@kind
def set_() -> Values:
    first = {1, 2}
    return Values(first, {2, 3}, {"place": (lambda: first.add(5), lambda: first.discard(5))})


@kind
def set_with_history() -> Values:
    first = set(range(100))
    first -= set(range(100)) - {1, 8, 40}
    return Values(first, {1, 8, 40})


@kind
def deque() -> Values:
    first = collections.deque([1, 2], maxlen=3)
    return Values(first, collections.deque([2, 1]), {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def ordered_dict() -> Values:
    first = collections.OrderedDict(a=1, b=2)
    return Values(first, collections.OrderedDict(b=2, a=1),
                  {"place": (lambda: first.move_to_end("a"), lambda: first.move_to_end("b"))})  # fmt: skip


@kind
def default_dict() -> Values:
    first: Any = collections.defaultdict(int, b=1)
    return Values(first, collections.defaultdict(lambda: 4, b=2),
                  {"place": (lambda: first.update(a=5), lambda: first.pop("a"))})  # fmt: skip


@kind
def counter() -> Values:
    first = collections.Counter("aab")
    return Values(first, collections.Counter("bbc"), {"place": (lambda: first.update("a"), lambda: first.subtract("a"))})


@kind
def chain_map() -> Values:
    own: dict[str, int] = {"a": 1}
    return Values(collections.ChainMap(own, {"b": 2}), collections.ChainMap({"b": 3}),
                  {"place": (lambda: own.update(b=7), lambda: own.pop("b"))})  # fmt: skip


@kind
def user_dict() -> Values:
    first = collections.UserDict(a=1, b=2)
    return Values(first, collections.UserDict(a=3), {"place": (lambda: first.update(a=5), lambda: first.update(a=1))})


@kind
def user_list() -> Values:
    first = collections.UserList([1, 2])
    return Values(first, collections.UserList([2]), {"place": (lambda: first.append(3), lambda: first.pop())})


@kind
def mapping_proxy() -> Values:
    own = {"a": 1}
    return Values(types.MappingProxyType(own), types.MappingProxyType({"b": 1}),
                  {"place": (lambda: own.update(a=5), lambda: own.update(a=1))})  # fmt: skip


@kind
def dict_keys() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.keys(), {2: 1}.keys(), {"place": (lambda: own.update({3: 3}), lambda: own.pop(3))})


@kind
def dict_values() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.values(), {2: 1}.values(), {"place": (lambda: own.update({1: 3}), lambda: own.update({1: 1}))})


@kind
def dict_items() -> Values:
    own = {1: 1, 2: 2}
    return Values(own.items(), {2: 1}.items(), {"place": (lambda: own.update({1: 3}), lambda: own.update({1: 1}))})


@kind
def list_iterator() -> Values:
    return Values(iter([1, 2, 3, 4, 5, 6]), iter([4, 5, 6, 7, 8, 9]))


@kind
def generator() -> Values:
    return Values((k for k in range(1, 9)), (k for k in range(5, 9)))


_plain("bytearray", lambda: bytearray(b"ab"), lambda: bytearray(b"c"))
_plain("memoryview", lambda: memoryview(b"ab"), lambda: memoryview(b"c"))

# subclasses of builtin classes --------------------------------------------------------------------------------------


def _subclass(base: type, first: tuple[Any, ...], second: tuple[Any, ...], special: str, method: Callable[..., Any]) -> None:
    def factory() -> Values:
        made: Any = types.new_class("Derived", (base,))
        one = made(*first)
        return Values(one, made(*second), {"class": setter(made, special, method), "place": setter(one, "a", 5)})

    KINDS[f"subclass_of_{base.__name__}_{special.strip('_')}"] = factory


for _special, _method in (("__add__", lambda s, o: 70), ("__index__", lambda s: 1), ("__eq__", lambda s, o: True),
                          ("__bool__", lambda s: False), ("__str__", lambda s: "text")):  # fmt: skip
    _subclass(int, (2,), (3,), _special, _method)
    _subclass(float, (2.0,), (0.5,), _special, _method)
    _subclass(str, ("a",), ("b",), _special, _method)
for _special, _method in (("__getitem__", lambda s, k: 9), ("__len__", lambda s: 1), ("__iter__", lambda s: iter([5])),
                          ("__contains__", lambda s, k: False), ("__eq__", lambda s, o: True), ("a", 3)):  # fmt: skip
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
    class Items(list): pass  # noqa: E701
    first = Items([1, 2])
    return Values(first, Items([1]), {"place": (lambda: first.append(3), lambda: first.pop()),
                                      "delete": (lambda: first.pop(), lambda: first.append(2))})  # fmt: skip


@kind
def dict_subclass_in_place() -> Values:
    class Items(dict):
        def __missing__(self, key: Any) -> Any: return 11  # noqa: E704

    first = Items(a=1)
    return Values(first, Items(), {"place": (lambda: first.update(a=3), lambda: first.update(a=1)),
                                   "class": deleter(Items, "__missing__")})  # fmt: skip


@kind
def str_enum() -> Values:
    class Mode(str, enum.Enum):
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

    return Values(Color.RED, Color.BLUE, {"place": setter(Color.RED, "a", 4), "class": setter(Color, "__bool__", lambda s: False)})


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
        def double(self) -> int: return self.a * 2  # noqa: E704

    first = Named(1)
    return Values(first, Named(3, 4), {"place": setter(first, "c", 5), "class": setter(Named, "double", lambda s: 9)})


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

    return Values(first, Through(), {"class": setter(Own, "a", 7), "delete": deleter(Base, "a"),
                                     "place": (bases((Other,)), bases((Base,)))})  # fmt: skip


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
    return Values(first, second, {"place": (lambda: setattr(first, "b", 4), lambda: delattr(first, "b")),
                                  "delete": deleter(first, "a")})  # fmt: skip


@kind
def property_() -> Values:
    class Own:
        def __init__(self, own: int) -> None: self.own = own  # noqa: E704
        @property
        def a(self) -> int: return self.own  # noqa: E704

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "own", 5), "class": setter(Own, "a", property(lambda s: 8)),
                                  "delete": deleter(first, "own")})  # fmt: skip


@kind
def property_that_raises() -> Values:
    class Own:
        @property
        def a(self) -> int: return self.own  # type: ignore[attr-defined]  # noqa: E704
        def __getattr__(self, name: str) -> int: return len(name)  # noqa: E704

    first = Own()
    return Values(first, _object(a=4), {"place": setter(first, "own", 5), "delete": deleter(Own, "__getattr__")})


@kind
def getattr_() -> Values:
    class Own:
        def __init__(self, own: int) -> None: self.own = own  # noqa: E704
        def __getattr__(self, name: str) -> int:
            if name == "a": return self.own  # noqa: E701
            raise AttributeError(name)

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "a", 5), "class": setter(Own, "__getattr__", lambda s, n: 6),
                                  "delete": deleter(Own, "__getattr__")})  # fmt: skip


@kind
def getattribute() -> Values:
    class Own:
        def __init__(self, own: int) -> None: self.own = own  # noqa: E704
        def __getattribute__(self, name: str) -> Any:
            return super().__getattribute__("own" if name == "a" else name)

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "own", 5), "delete": deleter(Own, "__getattribute__")})


@kind
def descriptor() -> Values:
    class Field:
        def __init__(self, value: int) -> None: self.value = value  # noqa: E704
        def __get__(self, instance: Any, owner: Any) -> int: return self.value  # noqa: E704
        def __set__(self, instance: Any, value: Any) -> None: self.value = value  # noqa: E704

    class Own:
        a = Field(1)

    class Other:
        a = Field(3)

    own = vars(Own)["a"]
    return Values(Own(), Other(), {"place": setter(own, "value", 5), "class": setter(Field, "__get__", lambda s, i, o: 8)})


@kind
def cached_property() -> Values:
    class Own:
        def __init__(self, own: int) -> None: self.own = own  # noqa: E704
        @functools.cached_property
        def a(self) -> int: return self.own  # noqa: E704

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
_plain("simple_namespace", lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2, b=3))


def _special(name: str, first: Callable[..., Any], second: Callable[..., Any]) -> None:
    """Objects whose class defines a special method: another class, another method, none."""

    def factory() -> Values:
        one: Any = types.new_class("One", (), exec_body=lambda space: space.update({name: first}))
        two: Any = types.new_class("Two", (), exec_body=lambda space: space.update({name: second}))
        return Values(one(), two(), {"class": setter(one, name, second), "delete": deleter(one, name)})

    KINDS[f"special_{name.strip('_')}"] = factory


for _name, _first, _second in (
    ("__len__", lambda s: 2, lambda s: 0), ("__bool__", lambda s: True, lambda s: False),
    ("__iter__", lambda s: iter([1, 2]), lambda s: iter([3])), ("__getitem__", lambda s, k: [1, 2][k], lambda s, k: [4, 5, 6][k]),
    ("__contains__", lambda s, k: True, lambda s, k: False), ("__index__", lambda s: 1, lambda s: 2),
    ("__int__", lambda s: 1, lambda s: 2), ("__float__", lambda s: 1.5, lambda s: 2.5), ("__eq__", lambda s, o: True, lambda s, o: False),
    ("__lt__", lambda s, o: True, lambda s, o: False), ("__add__", lambda s, o: o * 2, lambda s, o: o * 3),
    ("__radd__", lambda s, o: o * 2, lambda s, o: o * 3), ("__mul__", lambda s, o: o * 2, lambda s, o: o + 3),
    ("__rmul__", lambda s, o: o * 2, lambda s, o: o + 3), ("__neg__", lambda s: 1, lambda s: 2), ("__abs__", lambda s: 1, lambda s: 2),
    ("__call__", lambda s, *a: 1, lambda s, *a: 2), ("__hash__", lambda s: 1, lambda s: 2), ("__str__", lambda s: "1", lambda s: "2"),
    ("__repr__", lambda s: "1", lambda s: "2"), ("__reversed__", lambda s: iter([2, 1]), lambda s: iter([4])),
    ("__round__", lambda s, *a: 1, lambda s, *a: 2), ("__enter__", lambda s: 1, lambda s: 2), ("__next__", lambda s: 1, lambda s: 2),
    ("__matmul__", lambda s, o: 1, lambda s, o: 2), ("__iadd__", lambda s, o: o * 2, lambda s, o: o * 3),
    ("__ne__", lambda s, o: True, lambda s, o: False), ("__format__", lambda s, f: "1", lambda s, f: "2"),
):  # fmt: skip
    _special(_name, _first, _second)


@kind
def index_object() -> Values:
    class Index:
        def __init__(self, n: int) -> None: self.n = n  # noqa: E704
        def __index__(self) -> int: return self.n  # noqa: E704

    first = Index(1)
    return Values(first, Index(2), {"place": setter(first, "n", 0)})


@kind
def context_manager() -> Values:
    class Context:
        def __init__(self, n: int) -> None: self.n = n  # noqa: E704
        def __enter__(self) -> int: return self.n  # noqa: E704
        def __exit__(self, *_: Any) -> None: pass  # noqa: E704

    first = Context(1)
    return Values(first, Context(2), {"place": setter(first, "n", 5), "class": setter(Context, "__enter__", lambda s: 9)})


@kind
def abstract() -> Values:
    class Base(abc.ABC):
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
        def __init__(self, *_: Any) -> None: self.b = 4  # noqa: E704

    class Two:
        a = 2

    return Values(One, Two, {"class": setter(One, "a", 5), "delete": deleter(One, "a")})


@kind
def class_with_metaclass() -> Values:
    class Meta(type):
        def __len__(cls) -> int: return 2  # noqa: E704
        def __getattr__(cls, name: str) -> Any: return 3  # noqa: E704
        def __instancecheck__(cls, other: Any) -> bool: return isinstance(other, int)  # noqa: E704

    class One(metaclass=Meta):
        a = 1

    class Two:
        pass

    return Values(One, Two, {"class": setter(Meta, "__len__", lambda s: 5), "delete": deleter(Meta, "__getattr__")})


# callables --------------------------------------------------------------------------------------------------------


@kind
def function() -> Values:
    def one(x: Any = 1, *, a: Any = 2) -> Any: return x * a  # noqa: E704
    def two(x: Any = 2) -> Any: return x + 3  # noqa: E704
    return Values(one, two, {"place": (lambda: one.__kwdefaults__.update(a=5), lambda: one.__kwdefaults__.update(a=2)),
                             "class": setter(one, "__defaults__", (4,))})  # fmt: skip


@kind
def function_code() -> Values:
    def one(x: Any = 1) -> Any: return x * 2  # noqa: E704
    def two(x: Any = 1) -> Any: return x + 3  # noqa: E704
    return Values(one, two, {"place": setter(one, "__code__", two.__code__), "class": setter(one, "a", 3)})


@kind
def closure() -> Values:
    def make(n: int) -> Any:
        def inner(x: Any = 1) -> Any: return x * n  # noqa: E704
        def change(new: int) -> None:
            nonlocal n
            n = new
        return inner, change

    one, change = make(2)
    return Values(one, make(3)[0], {"place": (lambda: change(7), lambda: change(2))})


@kind
def partial() -> Values:
    def base(x: Any = 1, a: Any = 1, b: Any = 0) -> Any: return x * a + b  # noqa: E704
    one = functools.partial(base, a=2)
    return Values(one, functools.partial(base, a=3),
                  {"place": (lambda: one.keywords.update(b=5), lambda: one.keywords.pop("b"))})  # fmt: skip


@kind
def method() -> Values:
    class Own:
        def __init__(self, n: int) -> None: self.n = n  # noqa: E704
        def run(self, x: Any = 1) -> Any: return x * self.n  # noqa: E704

    first = Own(2)
    return Values(first.run, Own(3).run, {"place": setter(first, "n", 5)})


_plain("builtin_function", lambda: len, lambda: sum)
_plain("builtin_method", lambda: [1, 2].count, lambda: [1, 1, 1].count)
_plain("itemgetter", lambda: operator.itemgetter(0), lambda: operator.itemgetter(1))
_plain("attrgetter", lambda: operator.attrgetter("ndim"), lambda: operator.attrgetter("T"))
_plain("torch_function", lambda: torch.sin, lambda: torch.cos)
_plain("lambda", lambda: lambda x=1: x * 2, lambda: lambda x=1: x * 3)


@kind
def lru_cache() -> Values:
    @functools.lru_cache
    def one(*_: Any) -> int: return 2  # noqa: E704
    @functools.lru_cache
    def two(*_: Any) -> int: return 3  # noqa: E704
    return Values(one, two)


# modules ----------------------------------------------------------------------------------------------------------


@kind
def module() -> Values:
    one, two = types.ModuleType("one"), types.ModuleType("two")
    one.a, two.a, two.b = 1, 2, 3  # type: ignore[attr-defined]
    return Values(one, two, {"place": setter(one, "b", 5), "delete": deleter(one, "a")})


@kind
def module_getattr() -> Values:
    one, two = types.ModuleType("one"), types.ModuleType("two")
    one.__getattr__ = lambda name: len(name)  # type: ignore[method-assign]
    return Values(one, two, {"place": setter(one, "a", 5), "delete": deleter(one, "__getattr__")})


@kind
def torch_module() -> Values:
    one, two = torch.nn.Identity(), torch.nn.Tanh()
    return Values(one, two, {"place": setter(one, "a", 5), "class": setter(one, "forward", lambda x=None: 4)})


@kind
def module_list() -> Values:
    one = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Tanh()])
    return Values(one, torch.nn.ModuleList([torch.nn.Tanh()]),
                  {"place": (lambda: one.append(torch.nn.Tanh()), lambda: one.pop(2))})  # fmt: skip


@kind
def itertools_count() -> Values:
    return Values(itertools.count(1), itertools.count(5))


@kind
def exception() -> Values:
    return Values(ValueError(1), KeyError("a"))


@kind
def dataclass_field_default() -> Values:
    @dataclass
    class Data:
        a: Any = dataclasses.field(default_factory=list)

    first, second = Data(), Data([1])
    return Values(first, second, {"place": (lambda: first.a.append(2), lambda: first.a.pop())})
