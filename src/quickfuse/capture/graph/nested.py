"""Graphs within a graph: what a functional transform or a checkpoint calls is captured into a graph of its own.

What it uses from outside becomes an input of that graph, so that the node which stands for the whole call has all its
inputs as operands.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.values import TensorMeta
from ..symbolic import Symbol, TensorProxy
from .builder import Builder


class Nested:
    """A graph that is being captured inside of another one. `brought_in` are values of enclosing graphs that it uses."""

    def __init__(self, transforms: bool) -> None:
        self.graph = torch.fx.Graph()
        self.transforms = transforms
        self.brought_in: list[TensorProxy | Symbol] = []
        self._inputs: dict[torch.fx.Node, torch.fx.Node] = {}
        self._last: torch.fx.Node | None = None

    def placeholder(self, name: str, meta: Any) -> torch.fx.Node:
        with self.graph.inserting_before(None) if self._last is None else self.graph.inserting_after(self._last):
            node = self.graph.create_node("placeholder", name, (), {}, name)
        node.target = node.name
        node.meta["val"] = meta
        self._last = node
        return node

    def argument(self, meta: TensorMeta) -> TensorProxy:
        """A tensor that the captured function is called with."""
        return TensorProxy(meta, self.placeholder("arg", meta))

    def input_for(self, node: torch.fx.Node, value: TensorProxy | Symbol) -> torch.fx.Node:
        """The input of this graph that has the value of a node of the enclosing one."""
        known = self._inputs.get(node)
        if known is None:
            known = self._inputs[node] = self.placeholder(node.name, node.meta.get("val"))
            self.brought_in.append(value)
        return known


@contextmanager
def nested_graph(builder: Builder, transforms: bool) -> Iterator[Nested]:
    """What is captured meanwhile goes to a graph of its own. `transforms`: its tensors are not what they seem, but
    wrapped by a functional transform."""
    builder.sync_modes()
    nested = Nested(transforms)
    graph, emitted = builder.graph, builder.emitted_grad
    builder.nested.append(nested)
    builder.graph = nested.graph
    try:
        yield nested
    finally:
        builder.nested.pop()
        builder.graph, builder.emitted_grad = graph, emitted


def bring_in(builder: Builder, value: TensorProxy | Symbol, node: torch.fx.Node) -> torch.fx.Node:
    """A node of an enclosing graph, as an input of the current one. Raises `Unsupported` for a node of a graph that is
    complete."""
    graphs = [builder.root, *[nested.graph for nested in builder.nested]]
    position = next((k for k, graph in enumerate(graphs) if graph is node.graph), None)
    if position is None:
        raise Unsupported("a tensor of a functional transform that is used outside of it")
    for nested in builder.nested[position:]:
        node = nested.input_for(node, value)
    return node
