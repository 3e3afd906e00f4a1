"""A captured stretch of the user's program, and how to leave the program as eager Python would have left it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from .guard import Guard
from .source import Source
from .values import NumberMeta, TensorMeta


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A placeholder of the graph: the value at `source`. `cls` is the tensor's Python class."""

    name: str
    source: Source
    meta: TensorMeta | NumberMeta
    cls: type


class Recipe:
    """How to make a Python value after the graph ran. One recipe object is one Python object: sharing is kept."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Recipe):
    """A constant of the program: a plain immutable value, a function, a class or a module."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Existing(Recipe):
    """The object that was at `source` when the call began."""

    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class Output(Recipe):
    """An output of the graph."""

    index: int


@dataclass(eq=False, slots=True)
class Build(Recipe):
    """A new container of type `cls` (list, tuple, dict, set, a namedtuple, slice, ...) with these elements.

    For dictionaries `items` are (key, value) pairs of recipes.
    """

    cls: type
    items: list[Any]


@dataclass(eq=False, slots=True)
class New(Recipe):
    """A new instance of `cls`, made without calling `__init__`, with these attributes."""

    cls: type
    attributes: dict[str, Recipe]


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """A change to the user's objects, replayed after the graph.

    `kind`: "setattr" and "delattr" (`key` a name), "setplain" ("setattr" past a `__setattr__` of the class), "setitem" and
    "delitem" (`key` a recipe), "refill" (the list or other container `target` gets the elements `value`), "setglobal"
    (`target` is None, `key` is (globals, name)), "setcell" (a free variable of the compiled function, named `key`).
    """

    kind: str
    target: Recipe | None
    key: Any
    value: Recipe | None = None


@dataclass(eq=False, slots=True)
class Segment:
    """What capture found out about a call.

    `graph`'s placeholders correspond to `inputs`; it returns a flat tuple, which `result` and `effects` refer to.
    Every node carries `meta["val"]` (a `TensorMeta`, a `NumberMeta`, or a list of them) and `meta["location"]`.
    """

    code: CodeType
    graph: torch.fx.Graph
    inputs: list[GraphInput]
    guards: list[Guard]
    result: Recipe
    effects: list[Effect] = field(default_factory=list)
    mutated: frozenset[str] = frozenset()
    needs_grad: bool = False
    _module: torch.fx.GraphModule | None = None
    _tensor_order: list[Source] | None = None

    @property
    def module(self) -> torch.fx.GraphModule:
        """The graph as a module: made on first use, since PyTorch generates and compiles Python source for it."""
        if self._module is None:
            self._module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        return self._module

    def run(self, *inputs: Any) -> Any:
        """Run the graph operator by operator; `inputs` are the placeholders' values."""
        return self.module.forward(*inputs)

    def __str__(self) -> str:
        return str(self.graph)
