"""Arithmetic on numbers of the user's program: how each operation is written in generated code, and what it gives."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ..errors import Unsupported
from ..ir.guard import NumberExpr
from .results import OperatorFailed
from .symbolic import Symbol

#: Python operators on numbers: function -> template of the expression.
NUMBER_OPERATORS: dict[Callable[..., Any], str] = {
    operator.add: "({} + {})", operator.sub: "({} - {})", operator.mul: "({} * {})", operator.truediv: "({} / {})",
    operator.floordiv: "({} // {})", operator.mod: "({} % {})", operator.pow: "({} ** {})", operator.neg: "(-{})",
    operator.pos: "(+{})", operator.abs: "abs({})", abs: "abs({})", float: "float({})", int: "int({})",
    operator.lt: "({} < {})", operator.le: "({} <= {})", operator.gt: "({} > {})", operator.ge: "({} >= {})",
    operator.eq: "({} == {})", operator.ne: "({} != {})", operator.not_: "(not {})",
    operator.and_: "({} & {})", operator.or_: "({} | {})", operator.xor: "({} ^ {})",
    operator.lshift: "({} << {})", operator.rshift: "({} >> {})", max: "max({}, {})", min: "min({}, {})",
}  # fmt: skip

#: Functions of numbers that are written as calls, with as many arguments as they get.
_CALLED: dict[Callable[..., Any], str] = {
    round: "round",
    **{
        getattr(math, name): f"math.{name}"
        for name in (
            "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh degrees erf erfc exp exp2 expm1 fabs floor "
            "fmod gamma hypot isfinite isinf isnan ldexp lgamma log log10 log1p log2 pow radians remainder sin sinh sqrt "
            "tan tanh trunc"
        ).split()
    },
}

_DIVISIONS = frozenset({
    operator.truediv, operator.floordiv, operator.mod, operator.itruediv, operator.ifloordiv, operator.imod,
})  # fmt: skip

#: Arithmetic that has a result for all numbers of its kinds.
NEVER_RAISE = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs, float, operator.lt, operator.le,
    operator.gt, operator.ge, operator.eq, operator.ne, operator.not_, operator.and_, operator.or_, operator.xor, max, min,
})  # fmt: skip

_COMPARISONS = frozenset({operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_})
_TO_INTEGER = frozenset({int, round, math.floor, math.ceil, math.trunc})


def template_of(function: Callable[..., Any], count: int) -> str | None:
    """How `function` of `count` numbers is written, with `{}` for each; None where it has to see their values."""
    called = _CALLED.get(function)
    return NUMBER_OPERATORS.get(function) if called is None else f"{called}({', '.join(['{}'] * count)})"


def kind_depends_on_values(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether numbers of the same kinds could give a result of another kind: `2 ** -1`, `(-2.0) ** 0.5`, `max(1, 2.5)`."""
    kinds = [o.kind if type(o) is Symbol else type(o) for o in operands]
    if function is max or function is min:
        return len(set(kinds)) > 1
    return function is operator.pow and kinds != [float, int]


def kind_from_tensor(function: Callable[..., Any], operands: tuple[Any, ...]) -> type:
    """The kind of a number that is computed from one that only running the graph tells."""
    if function in _COMPARISONS:
        return bool
    if function is float or function is operator.truediv:
        return float
    kinds = [o.kind if type(o) is Symbol else type(o) for o in operands]
    if float in kinds and not (function in _TO_INTEGER and kinds[0] is float):
        if any(k not in (int, float, bool) for k in kinds):
            raise Unsupported("arithmetic between a tensor's number and another type")
        return float
    raise Unsupported(f"integer {getattr(function, '__name__', function)} on a number from a tensor")


def needed_of_operands(function: Callable[..., Any], operands: tuple[Any, ...]) -> list[NumberExpr]:
    """What has to hold of the operands from outside, where others come from tensors: that Python does not refuse them, and
    that the result is a real number."""
    if function in _DIVISIONS:
        return _not_zero(operands[1])
    if function is operator.pow or function is operator.ipow:
        return _real_power(*operands)
    return []


def _not_zero(divisor: Any) -> list[NumberExpr]:
    if type(divisor) is Symbol and divisor.from_tensor:
        return []
    if not (divisor.hint if type(divisor) is Symbol else divisor):
        raise OperatorFailed("ZeroDivisionError: division by zero")
    return [NumberExpr("({} != 0)", (divisor.expr,))] if type(divisor) is Symbol else []


def _real_power(base: Any, exponent: Any) -> list[NumberExpr]:
    """Negative numbers have only whole powers."""
    if (exponent.kind is not float) if type(exponent) is Symbol else float(exponent).is_integer():
        return []
    known = base.hint if type(base) is Symbol and not base.from_tensor else base
    if type(known) is Symbol or not known > 0:
        raise Unsupported("a power of a tensor's number, which may be complex")
    return [NumberExpr("({} > 0)", (base.expr,))] if type(base) is Symbol else []


def is_on_gpu(operands: tuple[Any, ...]) -> bool:
    """Whether arithmetic is about a number in a tensor that is not in the CPU's memory: the kernels that could tell that
    Python refuses it do not run there."""
    for operand in operands:
        if type(operand) is Symbol and operand.from_tensor:
            if operand.tensor is not None and operand.tensor.meta.device.type != "cpu":
                return True
            if operand.operation is not None and is_on_gpu(operand.operation[1]):
                return True
    return False
