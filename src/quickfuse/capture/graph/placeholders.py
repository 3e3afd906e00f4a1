"""The inputs of a graph that is being built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.dynamic import stay_apart
from ...ir.segment import GraphInput
from ...ir.source import Source
from ...ir.values import DynamicMeta, NumberMeta, ObjectMeta, TensorMeta
from ..naming import placeholder_name
from .nested import Nested


class Placeholders:
    """The part of `GraphBuilder` that makes placeholders, when values from outside are first used."""

    def __init__(self) -> None:
        self.graph = self.root = torch.fx.Graph()
        #: Graphs that are being captured inside of `root`; `graph` is the innermost one.
        self.nested: list[Nested] = []
        self.inputs: list[GraphInput] = []
        self.examples: list[Any] = []
        self.reserved: frozenset[str] = frozenset()
        self.mutated: set[str] = set()
        self._objects: dict[Source, torch.fx.Node] = {}
        self._last_placeholder: torch.fx.Node | None = None

    #: Notes where in the program a node comes from.
    stamp: Callable[[torch.fx.Node], None]

    def placeholder(
        self, source: Source, meta: TensorMeta | NumberMeta | ObjectMeta | DynamicMeta, cls: type, example: Any
    ) -> torch.fx.Node:
        name = placeholder_name(source)
        while name in self.reserved and str(source) != f"L[{name!r}]":  # an argument that nothing has used yet
            name += "_"
        graph = self.root
        anchor = self._last_placeholder
        with graph.inserting_after(anchor) if anchor is not None else graph.inserting_before(None):
            node = graph.create_node("placeholder", name, (), {}, name)
        node.target = node.name  # which is another one where two inputs have one name
        node.meta["val"] = meta
        self.stamp(node)
        self._last_placeholder = node
        self.inputs.append(GraphInput(node.name, source, meta, cls))
        self.examples.append(example)
        return node

    def object_input(self, source: Source, value: Any) -> torch.fx.Node:
        """An input that is no number, and no tensor that kernels read: a generator of random numbers, a tensor of dynamic
        sizes."""
        if self.nested:
            raise Unsupported(f"a {type(value).__name__} inside of a functional transform or checkpoint")
        known = self._objects.get(source)
        if known is None:
            meta = DynamicMeta(value.device) if isinstance(value, torch.Tensor) else ObjectMeta(type(value), value.device)
            known = self._objects[source] = self.placeholder(source, meta, type(value), value)
        return known

    def behind_inputs(self) -> Any:
        """Insert nodes in front of all that compute."""
        return self.root.inserting_after(self._last_placeholder)

    def keep_apart(self) -> None:
        """Look first whether an input of dynamic sizes shares memory with one that the graph changes: guards do not."""
        dynamic = [node for node in self._objects.values() if type(node.meta["val"]) is DynamicMeta]
        changed = [node for node in self.root.nodes if node.op == "placeholder" and node.name in self.mutated]
        if dynamic and changed and self._last_placeholder is not None:
            with self.behind_inputs():
                node = self.root.call_function(stay_apart, (dynamic, changed))
            node.meta["val"] = dynamic[0].meta["val"]
            self.stamp(node)
