"""Branches on what is in whole numbers and masks from outside: `if not (ids == padding).any()`.

A guard computes the condition again before the graph runs, by the few operators that the program computes it with. So each
outcome has a graph, and neither is a break. Floating-point numbers are data, for which each call may be another case.
"""

from __future__ import annotations

from typing import Any

import torch

from ..ir.guard import NumberExpr
from .contents import plain_name
from .interpreter import Interpreter
from .symbolic import Symbol, TensorProxy

_DTYPES = (torch.bool, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_CLASSES = (torch.Tensor, torch.nn.Parameter)
#: A larger tensor takes long to look at before each call.
_MOST_ELEMENTS = 1 << 14
#: So many operators may lead from an input to the branch.
_MOST_OPERATORS = 6
#: So many conditions a graph may ask: each may double the number of graphs.
_MOST_CONDITIONS = 3

#: Operators -> how guards write them, for tensors of whole numbers and truth values.
_UNARY = {name: f"{{}}.{name}()" for name in ("any", "all", "flatten", "logical_not", "bool", "squeeze", "detach")}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {**{name: f"({{}} {sign} {{}})" for name, sign in _COMPARISONS.items()}, "logical_and": "{}.logical_and({})",
           "logical_or": "{}.logical_or({})"}  # fmt: skip


def truth(i: Interpreter, condition: TensorProxy | Symbol) -> bool | None:
    """The truth value of a condition that is computed from few inputs of whole numbers, which a guard computes again; None
    for any other."""
    tensor = condition.tensor if type(condition) is Symbol else condition
    if type(tensor) is not TensorProxy or tensor.node is None or tensor.node.graph is not i.graph.root:
        return None
    if type(condition) is Symbol and condition.clock != i.graph.contents.clock:
        return None
    if tensor.meta.numel != 1 or tensor.meta.dtype is not torch.bool or torch._C._is_any_autocast_enabled():
        return None
    inputs: dict[torch.fx.Node, None] = {}
    expr = _expression(i, tensor.node, inputs, _MOST_OPERATORS)
    if not isinstance(expr, NumberExpr):
        return None
    expr = NumberExpr("bool({})", (expr,))
    asked = i.graph.asked_of_inputs
    if expr.code() not in asked:
        if len(asked) == _MOST_CONDITIONS:
            return None
        asked[expr.code()] = _value(i, tensor.node)
    for node in inputs:
        i.graph.contents.note_contents_read(*i.graph.contents.example(node))
    return i.outside.require_truth(expr, asked[expr.code()])


def _expression(i: Interpreter, node: torch.fx.Node, inputs: dict[torch.fx.Node, None], most: int) -> Any:
    """How a guard computes a node, None where it cannot; `inputs` gets the tensors that it reads."""
    number = i.graph.numbers.get(node)
    if number is not None:
        return None if number.from_tensor or number.kind is not int else number.expr
    if node.op == "placeholder":
        source, tensor = i.graph.contents.example(node)
        if i.graph.contents.is_written(node) or not _may_be_read(source, tensor):
            return None
        inputs[node] = None
        return source
    if node.op not in ("call_function", "call_method") or not most or node.kwargs or i.graph.contents.is_written(node):
        return None
    name = plain_name(node.target)
    template = _UNARY.get(name) if len(node.args) == 1 else _BINARY.get(name) if len(node.args) == 2 else None
    if template is None:
        return None
    operands = [_expression(i, arg, inputs, most - 1) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    if any(operand is None or isinstance(operand, (float, list, tuple)) for operand in operands):
        return None
    return NumberExpr(template, tuple(operands))


def _may_be_read(source: Any, tensor: Any) -> bool:
    """Whether a guard may look at all elements of a tensor from outside, in each call."""
    if source.kind == "constant" or type(tensor) not in _CLASSES or tensor.device.type != "cpu":
        return False
    return tensor.dtype in _DTYPES and tensor.numel() <= _MOST_ELEMENTS


def _value(i: Interpreter, node: torch.fx.Node) -> bool:
    """What the condition is in this call."""

    def value(node: Any) -> Any:
        if not isinstance(node, torch.fx.Node):
            return node
        if node in i.graph.numbers:
            return i.graph.numbers[node].hint
        if node.op == "placeholder":
            return i.graph.contents.example(node)[1]
        function = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
        return function(*map(value, node.args))

    with torch.no_grad():
        return bool(value(node))
