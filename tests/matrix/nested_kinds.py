"""Values within values: reached over two attributes, classes of classes, and what the standard library makes of them.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .values import KINDS, Values, deleter, kind, setter


class Node:
    """Something with attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __repr__(self) -> str:
        return "Node()"


# reached over two steps ---------------------------------------------------------------------------------------------


@kind
def object_in_object() -> Values:
    first = Node(a=Node(a=1, b=[1, 2]), b=2)
    return Values(
        first,
        Node(a=Node(a=3, b=[4])),
        {"place": setter(first.a, "a", 5), "class": setter(first, "a", Node(a=7)), "delete": deleter(first.a, "a")},
    )


@kind
def object_in_itself() -> Values:
    first, second = Node(b=1), Node(b=2)
    first.a, second.a = first, Node(a=second, b=4)
    return Values(first, second, {"place": setter(first, "a", Node(a=3, b=5))})


@kind
def object_with_shared_list() -> Values:
    shared = [1, 2]
    first = Node(a=shared, b=shared)
    return Values(
        first, Node(a=[1], b=[2]), {"place": setter(first, "b", [1, 2]), "class": (lambda: shared.append(3), shared.pop)}
    )


@kind
def object_with_dict() -> Values:
    first = Node(a={"a": [1], "b": {"a": 2}})
    return Values(
        first,
        Node(a={"a": 1}),
        {
            "place": (lambda: first.a["a"].append(2), lambda: first.a["a"].pop()),
            "class": (lambda: first.a["b"].update(a=5), lambda: first.a["b"].update(a=2)),
        },
    )


@kind
def dict_of_objects() -> Values:
    first = {"a": Node(a=1), 0: Node(a=2)}
    return Values(
        first,
        {"a": Node(a=3), 1: Node(b=2)},
        {"place": setter(first["a"], "a", 5), "delete": (lambda: first.pop("a"), lambda: first.update(a=Node(a=1)))},
    )


@kind
def list_of_objects() -> Values:
    first = [Node(a=1), Node(a=2)]
    return Values(first, [Node(a=3)], {"place": setter(first[0], "a", 5), "class": (first.reverse, first.reverse)})


@kind
def tuple_of_lists() -> Values:
    first = ([1, 2], [3])
    return Values(first, ([1, 2], [3], [4]), {"place": (lambda: first[1].append(4), lambda: first[1].pop())})


@kind
def set_of_tuples() -> Values:
    first = {(1, 2), (3, 4)}
    return Values(first, {(1, 2)}, {"place": (lambda: first.add((5, 6)), lambda: first.discard((5, 6)))})


@kind
def dict_with_tuple_keys() -> Values:
    first: dict[Any, Any] = {(0, 1): 1, (1, 0): 2, "a": 3}
    return Values(first, {(0, 1): 2}, {"place": (lambda: first.update({(0, 1): 7}), lambda: first.update({(0, 1): 1}))})


@kind
def tensor_in_objects() -> Values:
    first = Node(a=Node(a=torch.ones(3)))
    return Values(first, Node(a=Node(a=torch.arange(3.0))), {"place": setter(first.a, "a", torch.full((3,), 2.0))})


@kind
def default_dict_nested() -> Values:
    def made() -> Any:
        return collections.defaultdict(lambda: collections.defaultdict(int))

    first, second = made(), made()
    first["a"]["a"], second["a"]["b"] = 2, 3
    return Values(first, second, {"place": (lambda: first["a"].update(a=5), lambda: first["a"].update(a=2))})


@kind
def namespace_nested() -> Values:
    first = types.SimpleNamespace(a=types.SimpleNamespace(a=1), b={"a": 1})
    return Values(first, types.SimpleNamespace(a=types.SimpleNamespace(a=2)), {"place": setter(first.a, "a", 5)})


@kind
def module_with_settings() -> Values:
    def made(n: int) -> Any:
        module = torch.nn.Module()
        module.a = Node(a=n)
        module.b = {"a": n}
        return module

    first = made(2)
    return Values(first, made(3), {"place": setter(first.a, "a", 5), "class": (lambda: first.b.update(a=9), lambda: None)})


@kind
def partial_of_partial() -> Values:
    def base(a: Any = 1, b: Any = 2, *, c: Any = 3) -> Any:
        return a * 2 + b + c

    inner = functools.partial(base, b=4)
    keywords = functools.partial(inner, c=5).keywords
    first = functools.partial(functools.partial(base, b=4), c=5)
    return Values(
        first,
        functools.partial(inner, **keywords),
        {"place": (lambda: first.keywords.update(b=8), lambda: first.keywords.update(b=4))},
    )


@kind
def method_of_method() -> Values:
    class Own:
        def __init__(self, n: int) -> None:
            self.n = n
            self.helper = self.run

        def run(self, a: Any = 1) -> Any:
            return a * self.n

        def __call__(self, a: Any = 1) -> Any:
            return self.helper(a) + 1

    first = Own(2)
    return Values(first, Own(3), {"place": setter(first, "n", 5), "class": setter(first, "helper", lambda a: 4)})


# classes of classes -------------------------------------------------------------------------------------------------


@kind
def metaclass_property() -> Values:
    class Meta(type):
        @property
        def a(cls) -> Any:
            return cls.own  # type: ignore[attr-defined]

        def double(cls) -> Any:
            return cls.own * 2  # type: ignore[attr-defined]

    class One(metaclass=Meta):
        own = 2

    class Two(metaclass=Meta):
        own = 3

    return Values(
        One, Two, {"class": setter(Meta, "a", property(lambda cls: 8)), "place": setter(One, "own", 5),
                   "delete": deleter(One, "own")}
    )  # fmt: skip


@kind
def object_of_metaclass_property() -> Values:
    class Meta(type):
        @property
        def a(cls) -> Any:
            return 7

        def __iter__(cls) -> Iterator[Any]:
            return iter([1, 2])

    class One(metaclass=Meta):
        b = 2

        @property
        def a(self) -> Any:
            return type(self).a * 2  # type: ignore[operator]

    class Two(One):
        b = 3

    return Values(One(), Two(), {"class": setter(Meta, "a", property(lambda cls: 8)), "place": setter(One, "b", 5)})


@kind
def class_property_in_base() -> Values:
    class Base:
        @property
        def a(self) -> Any:
            return self.n + 1  # type: ignore[attr-defined]

    class Own(Base):
        def __init__(self, n: int) -> None:
            self.n = n

        @property
        def a(self) -> Any:
            return super().a * 2

    first = Own(1)
    return Values(
        first,
        Own(2),
        {
            "class": setter(Base, "a", property(lambda s: 8)),
            "place": setter(first, "n", 5),
            "delete": deleter(Own, "a"),
        },
    )


@kind
def registry_class() -> Values:
    class Base:
        known: dict[str, Any] = {}

        def __init_subclass__(cls, **_: Any) -> None:
            Base.known[cls.__name__] = cls

        def __class_getitem__(cls, name: Any) -> Any:
            return cls.known.get(name, 4)

    class One(Base):
        a = 1

    class Two(Base):
        a = 2

    return Values(
        One, Two, {"place": (lambda: Base.known.update(a=5), lambda: Base.known.pop("a")), "class": setter(One, "a", 9)}
    )


@kind
def generic_class() -> Values:
    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, a: T) -> None:
            self.a = a

    first = Box[int](2)
    return Values(first, Box(3), {"place": setter(first, "a", 5), "class": setter(Box, "double", lambda s: s.a * 2)})


@kind
def typing_alias() -> Values:
    return Values(typing.Optional[int], typing.Union[str, int])  # noqa: UP007, UP045


@kind
def slots_inherited() -> Values:
    class Base:
        __slots__ = ("a",)

    class Own(Base):
        __slots__ = ("b", "_c")

    first, second = Own(), Own()
    first.a, first.b, second.a = 1, 2, 3
    return Values(
        first, second, {"place": setter(first, "a", 5), "delete": deleter(first, "a"), "class": setter(Base, "z", 1)}
    )


@kind
def slots_and_dict() -> Values:
    class Base:
        __slots__ = ("a",)

    class Own(Base):
        b = 4

    first, second = Own(), Own()
    first.a, first.c, second.a = 1, 2, 3  # type: ignore[attr-defined]
    return Values(
        first, second, {"place": setter(first, "a", 5), "class": setter(Own, "a", 6), "delete": deleter(first, "a")}
    )


@kind
def cached_property_twice() -> Values:
    class Own:
        def __init__(self, n: int) -> None:
            self.n = n

        @functools.cached_property
        def b(self) -> Any:
            return self.n * 2

        @functools.cached_property
        def a(self) -> Any:
            return self.b + 1

    first, second = Own(1), Own(2)
    second.a  # noqa: B018

    def forget() -> None:
        vars(first).clear()
        first.n = 5

    return Values(first, second, {"place": (forget, lambda: setattr(first, "n", 1)), "class": setter(first, "a", 9)})


@kind
def partial_method() -> Values:
    class Own:
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self, a: Any, b: Any = 1) -> Any:
            return a * self.n + b

        double = functools.partialmethod(run, 2)
        __call__ = functools.partialmethod(run, b=3)

    first = Own(2)
    return Values(first, Own(3), {"place": setter(first, "n", 5), "class": setter(Own, "run", lambda s, a, b=0: 7)})


@kind
def single_dispatch_method() -> Values:
    class Own:
        @functools.singledispatchmethod
        def __call__(self, a: Any = 1) -> Any:
            return 1

        @__call__.register
        def _(self, a: int) -> Any:
            return a * 2

    return Values(Own(), Node(a=1))


@kind
def single_dispatch() -> Values:
    @functools.singledispatch
    def one(a: Any = None) -> Any:
        return 1

    @one.register
    def _(a: int) -> Any:
        return a * 2

    return Values(one, len, {"place": (lambda: one.register(int, lambda a: 8), lambda: one.register(int, lambda a: a * 2))})


# weak references ----------------------------------------------------------------------------------------------------


@kind
def weak_reference() -> Values:
    one, two = Node(a=1), Node(a=2)
    first = weakref.ref(one)
    KEPT.append((one, two))
    return Values(first, weakref.ref(two), {"place": setter(one, "a", 5)})


@kind
def weak_proxy() -> Values:
    one, two = Node(a=1), Node(a=2)
    KEPT.append((one, two))
    return Values(weakref.proxy(one), weakref.proxy(two), {"place": setter(one, "a", 5)})


@kind
def weak_dict() -> Values:
    one, two = Node(a=1), Node(a=2)
    KEPT.append((one, two))
    first, second = weakref.WeakValueDictionary(a=one), weakref.WeakValueDictionary(a=two)
    return Values(
        first, second, {"place": setter(one, "a", 5), "delete": (lambda: first.pop("a"), lambda: first.update(a=one))}
    )


@kind
def object_with_weak_reference() -> Values:
    owner = Node(a=1)
    KEPT.append(owner)
    first = Node(a=weakref.ref(owner))
    return Values(first, Node(a=lambda: Node(a=4)), {"place": setter(owner, "a", 5)})


#: What weak references point at.
KEPT: collections.deque[Any] = collections.deque(maxlen=64)


# data classes, named tuples, enumerations ---------------------------------------------------------------------------


def _dataclass_kind(name: str, make: Callable[[], Any], *arguments: dict[str, Any]) -> None:
    def factory() -> Values:
        cls = make()
        first, second = (cls(**copy.deepcopy(given)) for given in arguments)
        return Values(
            first, second, {"place": setter(first, "a", [5]), "class": setter(cls, "b", 7), "delete": deleter(first, "a")}
        )

    KINDS[f"dataclass_{name}"] = factory


def _with_factory() -> Any:
    @dataclass
    class Data:
        a: Any = dataclasses.field(default_factory=lambda: [1, 2])
        b: Any = dataclasses.field(default=3, repr=False, compare=False)
        n: int = dataclasses.field(init=False, default=4)

    return Data


def _with_init_var() -> Any:
    @dataclass
    class Data:
        start: dataclasses.InitVar[int]
        b: Any = 2

        def __post_init__(self, start: int) -> None:
            self.a = start * 2

    return Data


def _keyword_only() -> Any:
    @dataclass
    class Base:
        a: Any = 1

    @dataclass
    class Data(Base):
        _: dataclasses.KW_ONLY
        b: Any = 2

    return Data


_dataclass_kind("factory", _with_factory, {}, {"a": [3]})
_dataclass_kind("init_var", _with_init_var, {"start": 1}, {"start": 2, "b": 5})
_dataclass_kind("keyword_only", _keyword_only, {"a": 2}, {"a": 3, "b": 5})


@kind
def dataclass_nested() -> Values:
    @dataclass
    class Inner:
        a: Any = 1

    @dataclass(eq=False)
    class Data:
        a: Inner
        b: Any = dataclasses.field(default_factory=list)

    first = Data(Inner(1))
    return Values(
        first, Data(Inner(2), [1]), {"place": setter(first.a, "a", 5), "class": setter(Inner, "__eq__", lambda s, o: True)}
    )


@kind
def named_tuple_subclass() -> Values:
    class Base(typing.NamedTuple):
        a: Any
        b: Any = 2

        def double(self) -> Any:
            return self.a * 2

    class Own(Base):
        @property
        def total(self) -> Any:
            return self.a + self.b

        def __len__(self) -> int:
            return 2

    return Values(Own(1), Own(3, 4), {"class": setter(Own, "double", lambda s: 9), "place": setter(Base, "c", 5)})


@kind
def enum_flag() -> Values:
    class Mode(enum.Flag):
        a = enum.auto()
        b = enum.auto()
        c = a | b

    return Values(Mode.a, Mode.c, {"class": setter(Mode, "double", lambda s: 4)})


@kind
def enum_with_methods() -> Values:
    class Mode(str, enum.Enum):  # noqa: UP042
        one = "a"
        two = "b"

        @property
        def a(self) -> Any:
            return len(self.value) + 1

        def double(self) -> Any:
            return self.value * 2

        def __call__(self, a: Any = 1) -> Any:
            return a

    return Values(Mode.one, Mode.two, {"class": setter(Mode, "double", lambda s: 4), "place": setter(Mode.one, "b", 5)})


@kind
def enum_class() -> Values:
    class One(enum.Enum):
        a = 1
        b = 2

    class Two(enum.IntEnum):
        a = 3

    return Values(One, Two, {"class": setter(One, "double", 4)})


# contexts -----------------------------------------------------------------------------------------------------------


@kind
def context_function() -> Values:
    @contextlib.contextmanager
    def one(n: int) -> Iterator[int]:
        yield n

    class Own:
        def __init__(self, n: int) -> None:
            self.n = n

        def __enter__(self) -> Any:
            self.context = one(self.n)
            return self.context.__enter__()

        def __exit__(self, *exception: Any) -> Any:
            return self.context.__exit__(*exception)

    first = Own(1)
    return Values(first, Own(2), {"place": setter(first, "n", 5)})


@kind
def context_null() -> Values:
    return Values(contextlib.nullcontext(1), contextlib.nullcontext(2))


@kind
def context_suppress() -> Values:
    return Values(contextlib.suppress(ValueError), contextlib.suppress(TypeError))


@kind
def context_stack() -> Values:
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    second.enter_context(contextlib.nullcontext())
    return Values(first, second)
