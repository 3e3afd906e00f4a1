"""The distinct values of a kernel body, numbered, and along what each of them changes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quickfuse.emit.llvm_math import Code, literal, value_type
from quickfuse.emit.llvm_ops import convert
from quickfuse.emit.llvm_view import BodyView
from quickfuse.ir.expr import HALF_TYPES, Expr
from quickfuse.ir.kernel import ArgScalar, Const, Index, Op, Reduced, SlotLoad, SlotPlace, SlotPrevious, walk


@dataclass(frozen=True, slots=True)
class Node:
    """One distinct value of a body. `args` are indices of earlier nodes.

    `varying`: it changes along the axis that vectors lie along. `within`: it changes along a reduced axis.
    """

    expr: Expr
    args: tuple[int, ...]
    varying: bool
    within: bool = False


def number_values(body: BodyView, axis: int) -> tuple[list[Node], list[int]]:
    """The distinct values of a body, arguments first, and the node of each root, for vectors along `axis`.

    Equal expressions get one node. They are told apart by their arguments' numbers: comparing the trees themselves
    could take exponential time.
    """
    nodes: list[Node] = []
    by_key: dict[tuple[object, ...], int] = {}
    by_id: dict[int, int] = {}
    for value in body.roots:
        for expr in walk(value):
            args = tuple(by_id[id(arg)] for arg in expr.args) if isinstance(expr, Op) else ()
            label = expr.name if isinstance(expr, Op) else str(expr)
            number = by_key.setdefault((type(expr), label, args, expr.dtype), len(nodes))
            if number == len(nodes):
                varying = _varies(body, expr, axis) or any(nodes[arg].varying for arg in args)
                within = _is_within(body, expr) or any(nodes[arg].within for arg in args)
                nodes.append(Node(expr, args, varying, within))
            by_id[id(expr)] = number
    return nodes, [by_id[id(value)] for value in body.roots]


def _varies(body: BodyView, leaf: Expr, axis: int) -> bool:
    if isinstance(leaf, (SlotLoad, SlotPlace)):
        return body.ndim > 0 and body.slots[leaf.slot].strides[axis] != 0
    if isinstance(leaf, (Reduced, SlotPrevious)):
        return body.columns
    return isinstance(leaf, Index) and leaf.axis == axis


def _is_within(body: BodyView, leaf: Expr) -> bool:
    if isinstance(leaf, (SlotLoad, SlotPlace)):
        return body.reduced > 0 and not body.once_a_row(leaf.slot)
    if isinstance(leaf, (Reduced, SlotPrevious)):
        return body.serial
    return isinstance(leaf, Index) and leaf.axis >= body.rows_ndim


def shared_number(code: Code, expr: Expr) -> str:
    """A constant or a scalar argument: a float64, an int64, or a bool as 0 or 1, in a word of its own."""
    if isinstance(expr, ArgScalar):
        word = code.let(f"getelementptr i64, ptr %scalars, i64 {expr.arg}", f"a{expr.arg}.at")
        if expr.dtype == torch.float64:
            return code.let(f"load double, ptr {word}", f"a{expr.arg}")
        integer = code.let(f"load i64, ptr {word}", f"a{expr.arg}")
        return convert(code, integer, torch.int64, expr.dtype)
    assert isinstance(expr, Const), f"{expr!r} in a kernel body"
    if expr.dtype in HALF_TYPES:
        return convert(code, literal("float", expr.value), torch.float32, expr.dtype)
    return literal(value_type(expr.dtype), expr.value)


def widened_sum(code: Code, values: list[str]) -> str:
    """The sum of a few float32 vectors, in pairs, in float64."""
    while len(values) > 1:
        pairs = [code.binary("fadd", "float", x, y) for x, y in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(values) - len(values) % 2 :]
    return code.convert("fpext", "float", values[0], "double")
