"""Arithmetic on the numbers that a program takes: as data, so that a file with it runs no code of its own.

An expression is a constant, a `Ref` to a number, or an `Arithmetic` on expressions. Conditions on numbers, numbers that a
program returns, and numbers that it computes for operators are such expressions.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.guard import NumberExpr, added, float32
from ..ir.source import Source


def item(tensor: torch.Tensor) -> Any:
    """The number in a tensor of one element."""
    return tensor.item()


def _same_kind(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _fits(value: Any, lowest: Any, highest: Any) -> bool:
    """In a range, or no finite number at all."""
    return bool(lowest <= value <= highest or value - value != 0)


#: By name: the function, and how an expression prints.
_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
}  # fmt: skip
_OF_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor fmod "
    "gamma hypot isfinite isinf isnan ldexp lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt tan tanh trunc"
).split()

OPERATIONS: dict[str, tuple[Callable[..., Any], str]] = {
    **{name: (getattr(operator, name), f"({{}} {sign} {{}})") for name, sign in _BINARY.items()},
    "neg": (operator.neg, "(-{})"), "pos": (operator.pos, "(+{})"), "abs": (abs, "abs({})"), "float": (float, "float({})"),
    "int": (int, "int({})"), "not_": (operator.not_, "(not {})"), "max": (max, "max({}, {})"), "min": (min, "min({}, {})"),
    "round": (round, "round({})"), "float32": (float32, "_float32({})"),
    "is_int": (_same_kind(int), "({}.__class__ is int)"), "is_float": (_same_kind(float), "({}.__class__ is float)"),
    "is_bool": (_same_kind(bool), "({}.__class__ is bool)"), "defined": (lambda value: True, "({} is not None)"),
    "not_zero": (lambda value: value != 0, "({} != 0)"), "positive": (lambda value: value > 0, "({} > 0)"),
    "fits": (_fits, "({1} <= {0} <= {2} or {0} - {0} != 0)"), "item": (item, "{}.item()"), "same": (lambda v: v, "{}"),
    "sum": (added, "sum([{}])"),
    **{f"math.{name}": (getattr(math, name), f"math.{name}({{}})") for name in _OF_MATH},
}  # fmt: skip
for _name in ("atan2", "copysign", "fmod", "hypot", "ldexp", "pow", "remainder"):
    OPERATIONS[f"math.{_name}"] = (getattr(math, _name), f"math.{_name}({{}}, {{}})")

_BY_TEMPLATE = {template: name for name, (_, template) in OPERATIONS.items()}
_BY_TEMPLATE["round({}, {})"] = "round"
NAMES: dict[Callable[..., Any], str] = {
    **{function: name for name, (function, _) in OPERATIONS.items()}, operator.abs: "abs", operator.iadd: "add",
    operator.isub: "sub", operator.imul: "mul", operator.itruediv: "truediv", operator.ipow: "pow",
}  # fmt: skip
#: How many numbers an operation takes: what others are refused with.
COUNTS = {name: 3 if name == "fits" else template.count("{}") for name, (_, template) in OPERATIONS.items()}

def takes(operation: str, count: int) -> bool:
    """Whether there is an operation of so many operands."""
    return operation in COUNTS and (
        count == COUNTS[operation] or (operation == "round" and count == 2) or (operation == "sum" and count > 0)
    )


#: The largest exponent and shift of whole numbers: beyond, arithmetic could go on for ever.
LARGEST_POWER = 4096


@dataclass(frozen=True, slots=True)
class Ref:
    """A number of a call: the value of the user's argument at `path`, or what a one-element tensor there or in the state
    (`contents`) holds."""

    path: str
    contents: bool = False


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """`operation`, a name in `OPERATIONS`, of operands."""

    operation: str
    operands: tuple[Any, ...]


Expression = Any


class Unknown(Exception):
    """An expression that has no form as data."""


def expression_of(expr: Any, resolve: Callable[[Source], Any]) -> Expression:
    """A capture's expression as data. `resolve` gives a `Ref` or a constant for each source.

    Raises:
        Unknown: where it has no such form.
    """
    if isinstance(expr, Source):
        return resolve(expr)
    if not isinstance(expr, NumberExpr):
        if type(expr) not in (int, float, bool):
            raise Unknown
        return expr
    name = "sum" if expr.template.startswith("_added(") else _BY_TEMPLATE.get(expr.template)
    if name is None:
        raise Unknown
    operands = tuple([expression_of(operand, resolve) for operand in expr.operands])
    return operands[0] if name == "same" else Arithmetic(name, operands)


def depends(expression: Expression) -> bool:
    """Whether an expression depends on a call's numbers."""
    if isinstance(expression, Arithmetic):
        return any(depends(operand) for operand in expression.operands)
    return isinstance(expression, Ref)


def evaluate(expression: Expression, value_of: Callable[[Ref], Any]) -> Any:
    """An expression's value.

    Raises:
        ArithmeticError, ValueError: where the arithmetic does.
    """
    if isinstance(expression, Arithmetic):
        values = [evaluate(operand, value_of) for operand in expression.operands]
        if expression.operation in ("pow", "lshift", "math.ldexp") and type(values[1]) is int and values[1] > LARGEST_POWER:
            raise OverflowError(f"{values[1]} is too large an exponent")
        return OPERATIONS[expression.operation][0](*values)
    return value_of(expression) if isinstance(expression, Ref) else expression


def text_of(expression: Expression) -> str:
    """An expression as Python writes it."""
    if isinstance(expression, Arithmetic):
        template = OPERATIONS[expression.operation][1]
        parts = [text_of(operand) for operand in expression.operands]
        if expression.operation == "round" and len(parts) == 2:
            template = "round({}, {})"
        if expression.operation == "sum":
            parts = [", ".join(parts)]
        return template.format(*parts)
    if isinstance(expression, Ref):
        return f"{expression.path}.item()" if expression.contents else expression.path
    return f"({expression!r})" if str(expression).startswith("-") else repr(expression)
