"""An exported program as JSON, without the contents of its tensors. `decoding` is the way back.

Values that JSON has no form of are objects with one key: `{"node": "relu"}`, `{"dtype": "float32"}`, `{"tuple": [...]}`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import ExportError
from ..ir.values import NumberMeta, TensorMeta
from .arguments import Arguments
from .nesting import Container
from .numbers import Arithmetic, Ref
from .operators import name_of
from .program import SCHEMA, Check, Program, Returned
from .signature import GraphSignature


def encoded(program: Program) -> dict[str, Any]:
    """A program's JSON.

    Raises:
        ExportError: for a program with a value that no file can describe.
    """
    return {
        "schema": SCHEMA,
        "name": program.name,
        "made_with": program.made_with,
        "training": program.training,
        "arguments": _arguments(program.arguments),
        "checks": [_check(check) for check in program.checks],
        "conditions": [{"expression": _expression(c.expression), "is": c.outcome} for c in program.conditions],
        "settings": {name: _plain(value) for name, value in program.settings.items()},
        "apart": program.apart,
        "transient": program.transient,
        "examples": {path: _plain(value) for path, value in program.examples.items()},
        "signature": _signature(program.signature),
        "result": _tree(program.result),
        "aliases": program.aliases,
        "assumptions": [
            {"text": a.text, "location": a.location, "checked": a.checked, "where": list(a.where)}
            for a in program.assumptions
        ],
        "graph": _graph(program.graph),
    }


def _graph(graph: Graph) -> dict[str, Any]:
    stacks: dict[str, int] = {}
    nodes = []
    for node in graph.nodes:
        stack = node.meta.get("stack_trace")
        entry: dict[str, Any] = {"name": node.name, "op": _OPS[node.op]}
        if node.op == "call_function":
            entry["target"] = name_of(node.target)
        if node.op != "placeholder":
            entry["args"] = [_plain(a) for a in (node.args[0] if node.op == "output" else node.args)]
        if node.kwargs:
            entry["kwargs"] = {name: _plain(value) for name, value in node.kwargs.items()}
        if node.op != "output":
            entry["value"] = meta(node.meta.get("val"))
        if stack:
            entry["stack"] = stacks.setdefault(stack, len(stacks))
        nodes.append(entry)
    return {"nodes": nodes, "stacks": list(stacks)}


_OPS = {"placeholder": "input", "call_function": "call", "output": "output"}


def meta(value: Any) -> Any:
    """What is known of a node's value."""
    if isinstance(value, TensorMeta):
        return {
            "dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "stride": list(value.stride),
            "device": str(value.device), "requires_grad": value.requires_grad,
        }  # fmt: skip
    if isinstance(value, NumberMeta):
        return {"number": value.kind.__name__, "from_tensor": value.from_tensor}
    if isinstance(value, (list, tuple)):
        return [meta(v) for v in value]
    return None


def _plain(value: Any) -> Any:
    """An argument of a node, or a plain value."""
    if isinstance(value, Node):
        return {"node": value.name}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, complex):
        return {"complex": [repr(value.real), repr(value.imag)]}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, tuple):
        return {"tuple": [_plain(v) for v in value]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    raise ExportError(f"a {type(value).__qualname__} in the program, which no file can describe")


def _tree(tree: Any) -> Any:
    if type(tree) is Container:
        return {
            "container": tree.kind, "name": tree.name, "keys": [_plain(key) for key in tree.keys],
            "children": [_tree(child) for child in tree.children],
        }  # fmt: skip
    if type(tree) is int:
        return tree
    assert isinstance(tree, Returned)
    value = _expression(tree.value) if tree.kind == "number" else _plain(tree.value)
    return {"returned": tree.kind, "value": value}


def _arguments(arguments: Arguments) -> dict[str, Any]:
    return {
        "order": list(arguments.order), "rest": arguments.rest, "positional": arguments.positional,
        "leaves": arguments.leaves,
        "trees": {path: _tree(tree) for path, tree in arguments.trees.items()},
        "defaults": {name: _plain(value) for name, value in arguments.defaults.items()},
    }  # fmt: skip


def _check(check: Check) -> dict[str, Any]:
    value = check.value
    if check.kind == "tensor":
        value = meta(value)
    elif check.kind == "number":
        value = value.__name__
    else:
        value = _plain(value)
    return {"kind": check.kind, "path": check.path, "value": value}


def _expression(expression: Any) -> Any:
    if isinstance(expression, Arithmetic):
        return {"operation": expression.operation, "operands": [_expression(o) for o in expression.operands]}
    if isinstance(expression, Ref):
        return {"path": expression.path, "contents": expression.contents}
    return _plain(expression)


def _signature(signature: GraphSignature) -> dict[str, Any]:
    return {
        "inputs": [
            {"kind": s.kind, "name": s.name, "target": s.target, "persistent": s.persistent} for s in signature.inputs
        ],
        "outputs": [{"kind": s.kind, "name": s.name, "target": s.target} for s in signature.outputs],
        "cleared": signature.cleared,
    }
