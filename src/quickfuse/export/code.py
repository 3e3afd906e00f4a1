"""An exported graph as a Python function."""

from __future__ import annotations

import itertools
import linecache
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..ir.values import NumberMeta
from .recording import WHOLE

_counter = itertools.count()


_aten = torch.ops.aten
#: Batch normalisation with results that only gradients need: over the batch, with new running statistics among them, and
#: with the running statistics.
NORMALISE = _aten._native_batch_norm_legit_functional.default
_NORMALISED = (_aten.native_batch_norm.default, NORMALISE)


def function_of(graph: Graph, name: str, in_place: frozenset[Node] = frozenset()) -> Callable[..., Any]:
    """A function of the graph's inputs that calls its operators one by one, and returns a tuple of its outputs.

    It changes nothing but the running statistics of the batch normalisations `in_place`, whose new values it also returns.
    What it calls and all constants that are no numbers are names in the function's globals: no text of a file gets into the
    source but names of nodes, which are identifiers.
    """
    writer = _Writer(graph, in_place)
    source = writer.source()
    filename = f"<exported {name} {next(_counter)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), writer.globals)  # our own source
    function: Callable[..., Any] = writer.globals["run"]
    return function


def _as_users_call(node: Node) -> Any:
    """What to call for a node. An operator that stays whole, or that takes a number, is the function that users call: so it
    is known when the program is compiled, and numbers stay numbers."""
    target: Any = node.target
    takes_number = isinstance(target, OpOverload) and any(
        isinstance(operand.meta.get("val"), NumberMeta) for operand in node.all_input_nodes
    )
    if target not in WHOLE and not takes_number:
        return target
    name = target._schema.name.partition("::")[2]
    return getattr(torch._C._nn, name, None) or getattr(torch, name, target)


class _Writer:
    def __init__(self, graph: Graph, in_place: frozenset[Node]) -> None:
        self.graph = graph
        self.in_place = in_place
        self.globals: dict[str, Any] = {"__name__": "quickfuse.exported"}
        self._names: dict[Any, str] = {}
        self._variables: dict[Node, str] = {}

    def source(self) -> str:
        last = self._last_uses()
        parameters = [self._variable(node) for node in self.graph.nodes if node.op == "placeholder"]
        lines = [f"def run({', '.join(parameters)}):"]
        for node in self.graph.nodes:
            if node.op == "output":
                outputs = ", ".join([self._variables[n] for n in node.args[0]])
                lines.append(f"    return ({outputs}{',' if outputs else ''})")
            elif node.op == "call_function":
                unused = [self._variables[n] for n in last.get(node, ())]
                call = self._call(node)
                dropped = f"; {' = '.join(unused)} = None" if unused else ""
                lines.append(f"    {self._variable(node)} = {call}{dropped}")
        return "\n".join(lines) + "\n"

    def _last_uses(self) -> dict[Node, list[Node]]:
        """For each node, the values that it is the last to use: their memory may be used again then."""
        last: dict[Node, Node] = {}
        for node in self.graph.nodes:
            for operand in node.all_input_nodes:
                last[operand] = node
        found: dict[Node, list[Node]] = {}
        for operand, user in last.items():
            if user.op != "output":
                found.setdefault(user, []).append(operand)
        return found

    def _variable(self, node: Node) -> str:
        return self._variables.setdefault(node, f"v_{node.name}")

    def _call(self, node: Node) -> str:
        if node.target in _NORMALISED and self._is_normalisation(node):
            return self._normalisation(*node.args)
        if node.target is operator.getitem and self._is_normalisation(node.args[0]):
            return self._value(node.args[0] if node.args[1] == 0 else node.args[0].args[node.args[1]])  # type: ignore
        if node.target is operator.getitem:
            return f"{self._value(node.args[0])}[{node.args[1]!r}]"
        arguments = [self._value(a) for a in node.args]
        arguments += [f"{key}={self._value(value)}" for key, value in node.kwargs.items()]
        return f"{self._constant(_as_users_call(node))}({', '.join(arguments)})"

    def _is_normalisation(self, node: Any) -> bool:
        """Whether a node is a batch normalisation that can be called as users do."""
        if node.target not in _NORMALISED or node.kwargs:
            return False
        used = {user.args[1] for user in node.users}
        return node in self.in_place if node.target is NORMALISE else used <= {0} and node.args[5] is False

    def _normalisation(self, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *settings: Any) -> str:
        values = [self._value(v) for v in (x, mean, variance, weight, bias, *settings)]
        return f"{self._constant(torch.nn.functional.batch_norm)}({', '.join(values)})"

    def _value(self, value: Any) -> str:
        if isinstance(value, Node):
            return self._variables[value]
        if isinstance(value, list):
            return f"[{', '.join([self._value(v) for v in value])}]"
        if isinstance(value, tuple):
            inside = ", ".join([self._value(v) for v in value])
            return f"({inside}{',' if len(value) == 1 else ''})"
        if value is None or type(value) in (bool, int):
            return repr(value)
        return self._constant(value)

    def _constant(self, value: Any) -> str:
        key = (type(value), repr(value)) if isinstance(value, (float, complex)) else (type(value), value)
        if key not in self._names:
            label = getattr(value, "__name__", type(value).__name__)
            label = "".join(c if c.isalnum() and c.isascii() else "_" for c in str(label))
            name = f"{label}_{len(self._names)}" if isinstance(value, OpOverload) else f"c{len(self._names)}"
            self._names[key] = name
            self.globals[name] = value
        return self._names[key]
