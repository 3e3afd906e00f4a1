"""Branches on what is in whole numbers and masks from outside: `if not (ids == padding).any()`.

A guard computes the condition again before the graph runs, by the few operators that the program computes it with. So each
outcome has a graph, and neither is a break. Floating-point numbers are data, for which each call may be another case; but
whether a mask of them is the same as one that captured code makes is asked like this too.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ...ir.guard import NumberExpr
from ...ir.reading import elements_in, may_be_same
from ...ir.source import Source
from ...ir.values import TensorMeta
from ..graph.constant_tensors import OPERATORS
from ..graph.contents import plain_name
from ..interpreter import Interpreter
from ..symbolic import Symbol, TensorProxy

#: Among what keeps changing, where no guard may look at inputs so: exported programs do not.
BY_INPUTS = "branches on masks and whole numbers"

#: So many operators may lead from an input to the branch.
_MOST_OPERATORS = 6
#: So many conditions a graph may ask: each may double the number of graphs.
_MOST_CONDITIONS = 3

#: Operators -> how guards write them, for tensors of whole numbers and truth values.
_UNARY = {name: f"{{}}.{name}()" for name in ("any", "all", "flatten", "logical_not", "bool", "squeeze", "detach")}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {name: f"({{}} {sign} {{}})" for name, sign in _COMPARISONS.items()}
#: Between which bounds a number has to be, for tensors of any type of whole numbers to be compared with it.
_BOUNDED = f"(-{1 << 31} < {{}} < {1 << 31})"


class _InThisCall:
    """Numbers and tensors from outside as they are in the captured call."""

    operators = OPERATORS

    def __init__(self, i: Interpreter) -> None:
        self._graph = i.graph

    def takes(self, node: torch.fx.Node) -> bool:
        return node.op == "placeholder" or node in self._graph.numbers

    def value(self, node: torch.fx.Node) -> Any:
        number = self._graph.numbers.get(node)
        return self._graph.contents.example(node)[1] if number is None else number.hint


def truth(i: Interpreter, condition: TensorProxy | Symbol) -> bool | None:
    """The truth value of a condition that is computed from few inputs of whole numbers, which a guard computes again; None
    for any other."""
    tensor = condition.tensor if type(condition) is Symbol else condition
    if type(tensor) is not TensorProxy or tensor.node is None or tensor.node.graph is not i.graph.root:
        return None
    if BY_INPUTS in i.outside.volatile:
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
        found = i.graph.contents.constant_at(tensor.node, _InThisCall(i))
        if found is None:
            return None
        asked[expr.code()] = bool(found)
    for node in inputs:
        i.graph.contents.note_contents_read(*i.graph.contents.example(node))
    return i.outside.require_truth(expr, asked[expr.code()])


def _expression(i: Interpreter, node: torch.fx.Node, inputs: dict[torch.fx.Node, None], most: int) -> Any:
    """How a guard computes a node, None where it cannot; `inputs` gets the tensors that it reads."""
    number = i.graph.numbers.get(node)
    if number is not None:
        return _bounded(i, number)
    if node.op == "placeholder":
        source, tensor = i.graph.contents.example(node)
        if i.graph.contents.is_written(node) or not _may_be_read(source, tensor):
            return None
        inputs[node] = None
        return source.elements()
    if node.op not in ("call_function", "call_method") or not most or node.kwargs or i.graph.contents.is_written(node):
        return None
    name = plain_name(node.target)
    if name == "all" and len(node.args) == 1 and (same := _same_as_constant(i, node.args[0], inputs)) is not None:
        return same
    if len(node.args) == 1 and name in _UNARY:
        operand = _expression(i, node.args[0], inputs, most - 1) if isinstance(node.args[0], torch.fx.Node) else None
        return None if operand is None else NumberExpr(_UNARY[name], (operand,))
    if len(node.args) != 2 or name not in _BINARY or sum(_is_tensor(arg) for arg in node.args) != 1:
        return None  # two tensors may not fit each other in another call
    operands = [_expression(i, arg, inputs, most - 1) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    if any(type(operand) not in (Source, NumberExpr, int) for operand in operands):
        return None
    if any(type(operand) is int and not -(1 << 31) < operand < 1 << 31 for operand in operands):
        return None
    return NumberExpr(_BINARY[name], tuple(operands))


def _same_as_constant(i: Interpreter, node: Any, inputs: dict[torch.fx.Node, None]) -> NumberExpr | None:
    """How a guard computes `(x == y).all()` of an input and a tensor of its shape that is made of constants."""
    if node.op not in ("call_function", "call_method") or plain_name(node.target) != "eq" or len(node.args) != 2:
        return None
    for given, made in (node.args, node.args[::-1]):
        if not (_is_tensor(given) and _is_tensor(made)):
            continue
        given, part = _part(given)
        if given.op != "placeholder" or i.graph.contents.is_written(given):
            continue
        source, tensor = i.graph.contents.example(given)
        constant = i.graph.contents.constant_at(made)
        if constant is not None and source.kind != "constant" and may_be_same(tensor, constant, part):
            inputs[given] = None
            held = i.outside.roots.constant(f"<{made.name}>", constant), i.outside.roots.constant(f"<{node.name}>", part)
            return NumberExpr("_same_elements({}, {}, {})", (source, *held))
    return None


def _part(node: torch.fx.Node) -> tuple[torch.fx.Node, Any]:
    """The tensor that a node gives a part of, and the index of that: `mask[:n, :n]`."""
    if node.target is not operator.getitem or not isinstance(node.args[0], torch.fx.Node) or node.all_input_nodes[1:]:
        return node, ...
    return node.args[0], node.args[1]


def _is_tensor(operand: Any) -> bool:
    return isinstance(operand, torch.fx.Node) and isinstance(operand.meta.get("val"), TensorMeta)


def _bounded(i: Interpreter, number: Symbol) -> Any:
    """A whole number from outside, as a guard compares tensors with it."""
    if number.from_tensor or number.kind is not int or not -(1 << 31) < number.hint < 1 << 31:
        return None
    i.outside.require(NumberExpr(_BOUNDED, (number.expr,)), True)
    return number.expr


def _may_be_read(source: Source, tensor: Any) -> bool:
    """Whether a guard may look at all elements of a tensor from outside, in each call."""
    try:
        return source.kind != "constant" and elements_in(tensor) is tensor
    except ValueError:
        return False
