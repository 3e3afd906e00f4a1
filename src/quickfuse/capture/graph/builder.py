"""The state of a graph that is being built, its inputs, and graphs within it.

What a functional transform or a checkpoint calls is captured into a graph of its own. What it uses from outside becomes an
input of that graph, so that the node which stands for the whole call has all its inputs as operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.dynamic import stay_apart
from ...ir.nodes import new_input
from ...ir.segment import GraphInput
from ...ir.source import Source
from ...ir.values import DynamicMeta, NumberMeta, ObjectMeta, TensorMeta
from ..naming import placeholder_name
from ..symbolic import Symbol, TensorProxy
from .history import History


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
            node = new_input(self.graph, name)
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


class Builder:
    """What the parts of `building.GraphBuilder` see of it, and of one another through it. It makes placeholders, when values
    from outside are first used."""

    # What `GraphBuilder` adds.
    contents: Any
    inference: Any
    node_of: Callable[[Any], torch.fx.Node]
    mode_node: Callable[[Callable[..., Any], tuple[Any, ...]], None]
    sync_modes: Callable[[], None]
    #: Notes where in the program a node comes from.
    stamp: Callable[[torch.fx.Node], None]

    def __init__(self, program: Any) -> None:
        #: What is captured: the `interpreter.Interpreter`, which says where the program is, and how it got there.
        self.program = program
        #: What it read from outside: the `reading.Outside`.
        self.outside = program.outside
        self.graph = self.root = torch.fx.Graph()
        #: Graphs that are being captured inside of `root`; `graph` is the innermost one.
        self.nested: list[Nested] = []
        self.inputs: list[GraphInput] = []
        self.examples: list[Any] = []
        self.reserved: frozenset[str] = frozenset()
        self.mutated: set[str] = set()
        self._objects: dict[Source, torch.fx.Node] = {}
        self._last_placeholder: torch.fx.Node | None = None
        self.history = History()
        #: The grad mode of the captured program, and that of the running graph so far.
        self.grad_enabled = self.grad_at_start = self.emitted_grad = torch.is_grad_enabled()
        #: Whether something in the running graph needs gradients.
        self.differentiable = False
        #: Why only PyTorch itself can run this graph, if so.
        self.only_pytorch = ""
        #: Whether the graph may end where something is better left to Python.
        self.may_break = False

    @property
    def keeps_history(self) -> bool:
        """Whether autograd notes what is computed of what requires gradients: in inference mode it never does."""
        return self.grad_enabled and not self.inference.on

    def in_try(self) -> bool:
        """Whether the program would handle an exception that is raised here."""
        return self.may_break and self.program.in_try()  # type: ignore[no-any-return]

    def placeholder(
        self, source: Source, meta: TensorMeta | NumberMeta | ObjectMeta | DynamicMeta, cls: type, example: Any
    ) -> torch.fx.Node:
        name = placeholder_name(source)
        while name in self.reserved and str(source) != f"L[{name!r}]":  # an argument that nothing has used yet
            name += "_"
        graph = self.root
        anchor = self._last_placeholder
        with graph.inserting_after(anchor) if anchor is not None else graph.inserting_before(None):
            node = new_input(graph, name)
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
