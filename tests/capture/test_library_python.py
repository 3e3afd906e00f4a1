"""The plain Python of libraries around tensor code: each of these is one graph."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse
from differential import same

X = torch.ones(2, 4)


class Table(OrderedDict):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        content = super().__getitem__(key)
        return content if callable(content) else content[0]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self[k] for k in self.keys())


class Registry(dict):  # type: ignore[type-arg]
    def get(self, model: Any) -> Any:  # type: ignore[override]
        return super().get(str(model.__class__)) or {}


class Output(OrderedDict):  # type: ignore[type-arg]
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = self.__dict__.get(field.name)
            if value is not None:
                self[field.name] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key: Any) -> Any:
        return dict(self.items())[key] if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self[k] for k in self.keys())


@dataclass
class ModelOutput(Output):
    hidden: Any = None
    states: Any = None
    pooled: Any = None


class Config:
    def __init__(self) -> None:
        self.scale, self.old = 2.0, [1]

    def __getattribute__(self, key: str) -> Any:
        spec = super().__getattribute__("__dict__").get("_spec")
        return super().__getattribute__(key) if spec is None else spec


class PlainConfig:
    def __init__(self) -> None:
        self.scale, self.names = 2.0, ["a"]


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        return x * len(inspect.signature(self.part).parameters)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return x


TABLE, REGISTRY, LINEAR, CONFIG = Table(sin=torch.sin), Registry(), torch.nn.Linear(4, 4), PlainConfig()


@functools.lru_cache
def available() -> bool:
    return False


def known_keywords(function: Callable[..., Any]) -> Callable[..., Any]:
    names = frozenset({"scale"})

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k in names}
        if "scale" in function.__code__.co_varnames:
            kwargs.setdefault("scale", 3.0)
        return function(*args, **kwargs)

    return wrapped


@known_keywords
def scaled(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


def configurations(n: int, log: list[str]) -> Iterator[int]:
    try:
        yield from range(n)
    finally:
        log.append("closed")


def zipped(x: torch.Tensor) -> Any:
    log: list[str] = []
    for _, c in zip(["full", "full"], configurations(3, log), strict=False):
        x = x.sin() + c
    return x, log


def model_output(x: torch.Tensor) -> Any:
    made = ModelOutput(hidden=x.sin() + 1, pooled=x.cos())
    return made[0] * 2 + made.pooled, made["hidden"], len(made)


def given_output(x: torch.Tensor, o: Any) -> Any:
    o["a"] = x.sin() + 1
    return o.a * 2


def lost_attribute(x: torch.Tensor, c: Any) -> Any:
    del c.old
    return x.sin() * c.scale


def copied(x: torch.Tensor) -> Any:
    made = copy.deepcopy(CONFIG)
    made.scale = 3.0
    made.names.append("b")
    return x * made.scale * CONFIG.scale, CONFIG.names


def from_keys(x: torch.Tensor) -> torch.Tensor:
    states = dict.fromkeys(range(3), False)
    states[0] = True
    return x.sin() + 1 if states[0] else x


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "super().__getitem__ of a table": (lambda x: TABLE["sin"](x + 1) * 2, tuple),
    "keys() of an ordered dictionary": (lambda x, o: o.to_tuple()[0] + x, lambda: (Table(a=[X]),)),
    "a registry": (lambda x: LINEAR(x) if not REGISTRY.get(LINEAR) else x, tuple),
    "an output made inside": (model_output, tuple),
    "an output given": (given_output, lambda: (Output(),)),
    "an attribute that was deleted": (lost_attribute, lambda: (Config(),)),
    "a deep copy": (copied, tuple),
    "dict.fromkeys": (from_keys, tuple),
    "the environment": (lambda x: x.sin() + (os.environ.get("SOME_SWITCH", "0") == "1"), tuple),
    "keywords that a decorator knows": (lambda x: scaled(x.sin(), other=1) + scaled(x, scale=2.0), tuple),
    "a cache": (lambda x: x.sin() + 1 if available() else x.cos(), tuple),
    "a generator in zip": (zipped, tuple),
    "a part of a list of modules": (Layers(), tuple),
    "a size and a tuple": (lambda x, n: x.view(x.size()[:-1] + (n, -1)) + 1, lambda: (2,)),
    "an attribute that tensors do not have": (lambda x: x.sin() if hasattr(x.cos(), "jax") else x + 1, tuple),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str) -> None:
    function, more = PROGRAMS[name]
    compiled = quickfuse.compile(function, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert same(function(X, *more()), compiled(X, *more()), atol=1e-5)


def test_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = quickfuse.compile(lambda x: x * int(os.environ.get("SOME_SWITCH", "1")))
    assert compiled(torch.ones(1)).item() == 1
    monkeypatch.setenv("SOME_SWITCH", "3")
    assert compiled(torch.ones(1)).item() == 3


def test_a_cache_counts() -> None:
    @functools.lru_cache
    def number(n: int) -> int:
        return n + 1

    compiled = quickfuse.compile(lambda x, n: x * number(n))
    for n in (1, 1, 2, 1):
        assert compiled(torch.ones(1), n).item() == n + 1
    assert number.cache_info()[:2] == (2, 2)
    number.cache_clear()
    assert compiled(torch.ones(1), 1).item() == 2


@pytest.mark.parametrize("size", [0, 2, 9])
def test_functions_of_numpy_on_numbers(size: int) -> None:
    def function(x: torch.Tensor, n: int) -> tuple[Any, ...]:
        return x * np.sqrt(n), x - np.log(float(n) + 1) / 3, x[: int(np.minimum(n, 1))], np.ceil(n / 2), type(np.exp(n))

    compiled = quickfuse.compile(function)
    for n in (size, size + 1):
        (*made, number, kind), (*wanted, right, right_kind) = compiled(X, n), function(X, n)
        assert same(made, wanted) and (number, kind) == (right, right_kind)
    assert not compiled.breaks


def test_functions_of_numpy_that_warn() -> None:
    compiled = quickfuse.compile(lambda x, n: x * np.log(n))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="invalid value"):
            assert compiled(X, -1).isnan().all()
    assert same(compiled(X, 2), X * np.log(2))
