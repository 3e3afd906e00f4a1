"""Callables, modules, iterators and exceptions.

Each call of a factory makes the values anew, so that eager and the compiled function never share one that is changed.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
import types
from dataclasses import dataclass
from typing import Any

import torch

from .values import Values, deleter, kind, plain, setter

# callables --------------------------------------------------------------------------------------------------------


@kind
def function() -> Values:
    def one(x: Any = 1, *, a: Any = 2) -> Any:
        return x * a

    def two(x: Any = 2) -> Any:
        return x + 3

    return Values(
        one,
        two,
        {
            "place": (lambda: one.__kwdefaults__.update(a=5), lambda: one.__kwdefaults__.update(a=2)),
            "class": setter(one, "__defaults__", (4,)),
        },
    )


@kind
def function_code() -> Values:
    def one(x: Any = 1) -> Any:
        return x * 2

    def two(x: Any = 1) -> Any:
        return x + 3

    return Values(one, two, {"place": setter(one, "__code__", two.__code__), "class": setter(one, "a", 3)})


@kind
def closure() -> Values:
    def make(n: int) -> Any:
        def inner(x: Any = 1) -> Any:
            return x * n

        def change(new: int) -> None:
            nonlocal n
            n = new

        return inner, change

    one, change = make(2)
    return Values(one, make(3)[0], {"place": (lambda: change(7), lambda: change(2))})


@kind
def partial() -> Values:
    def base(x: Any = 1, a: Any = 1, b: Any = 0) -> Any:
        return x * a + b

    one = functools.partial(base, a=2)
    return Values(
        one, functools.partial(base, a=3), {"place": (lambda: one.keywords.update(b=5), lambda: one.keywords.pop("b"))}
    )


@kind
def method() -> Values:
    class Own:
        def __init__(self, n: int) -> None:
            self.n = n

        def run(self, x: Any = 1) -> Any:
            return x * self.n

    first = Own(2)
    return Values(first.run, Own(3).run, {"place": setter(first, "n", 5)})


plain("builtin_function", lambda: len, lambda: sum)
plain("builtin_method", lambda: [1, 2].count, lambda: [1, 1, 1].count)
plain("itemgetter", lambda: operator.itemgetter(0), lambda: operator.itemgetter(1))
plain("attrgetter", lambda: operator.attrgetter("ndim"), lambda: operator.attrgetter("T"))
plain("torch_function", lambda: torch.sin, lambda: torch.cos)
plain("lambda", lambda: lambda x=1: x * 2, lambda: lambda x=1: x * 3)


@kind
def lru_cache() -> Values:
    @functools.lru_cache
    def one(*_: Any) -> int:
        return 2

    @functools.lru_cache
    def two(*_: Any) -> int:
        return 3

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
    return Values(
        one, torch.nn.ModuleList([torch.nn.Tanh()]), {"place": (lambda: one.append(torch.nn.Tanh()), lambda: one.pop(2))}
    )


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
