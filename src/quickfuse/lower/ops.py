"""Constructors of scalar expressions, beside Python's operators, so that rules read as formulas.

Of two operands of one type, one may be a Python number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from quickfuse.ir.expr import HALF_TYPES, Const, Expr, Op, binary, check_computed
from quickfuse.ir.expr import const as const


def _unary(name: str) -> Callable[[Expr], Expr]:
    return lambda x: Op(name, (x,), x.dtype)


def _binary(name: str) -> Callable[[Expr | float, Expr | float], Expr]:
    return lambda x, y: binary(name, x, y)


trunc_div, fmod = map(_binary, ("trunc_div", "fmod"))
maximum, minimum, fmax, fmin = map(_binary, ("maximum", "minimum", "fmax", "fmin"))
power, atan2, hypot, copysign, nextafter = map(_binary, ("pow", "atan2", "hypot", "copysign", "nextafter"))
eq, ne, shl, shr = map(_binary, ("eq", "ne", "shl", "shr"))
absolute = _unary("abs")
exp, exp2, expm1, log, log1p, log2 = map(_unary, ("exp", "exp2", "expm1", "log", "log1p", "log2"))
sqrt, rsqrt, sin, tanh, erf = map(_unary, ("sqrt", "rsqrt", "sin", "tanh", "erf"))
floor, ceil, trunc, rounded = map(_unary, ("floor", "ceil", "trunc", "round"))


def isnan(x: Expr) -> Expr:
    return ne(x, x)


def isinf(x: Expr) -> Expr:
    return eq(absolute(x), math.inf)


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; 0 for NaN."""
    return via(x > 0, x.dtype) - via(x < 0, x.dtype)


def remainder(x: Expr, y: Expr) -> Expr:
    """With the sign of `y`."""
    rest = fmod(x, y)
    return where(_rounds_away(rest, y), rest + y, rest)


def floor_div(x: Expr, y: Expr, stored: Callable[[Expr], Expr] = lambda value: value) -> Expr:
    """Python's `//`. Of floats as eager has it (`c10::div_floor_floating`), which rounds each step as `stored` does."""
    rest = fmod(x, y)
    if not x.dtype.is_floating_point:
        return trunc_div(x, y) - via(_rounds_away(rest, y), x.dtype)
    quotient, whole = stored(x / y), stored(stored(x - rest) / y)
    whole = where(_rounds_away(rest, y), stored(whole - 1), whole)
    down = floor(whole)
    down = where(stored(whole - down) > 0.5, stored(down + 1), down)
    down = where(eq(whole, 0), copysign(0, quotient), down)
    return where(eq(y, 0), quotient, down)


def _rounds_away(rest: Expr, y: Expr) -> Expr:
    """Whether a remainder is not 0 and has another sign than the divisor."""
    return ne(rest, 0) & ne(y < 0, rest < 0)


def where(condition: Expr, x: Expr | float, y: Expr | float) -> Expr:
    """`x` or `y`, of which one may be a number."""
    if not isinstance(x, Expr):
        x = like(y, x)  # type: ignore[arg-type]
    return Op("where", (condition, x, y if isinstance(y, Expr) else like(x, y)), x.dtype)


def unary(name: str, x: Expr) -> Expr:
    """The function `name` of `SCALAR_OPS`, with a result of its operand's type."""
    return Op(name, (x,), x.dtype)


def like(x: Expr, value: bool | int | float) -> Expr:
    """A number of the type of `x`."""
    return const(value, x.dtype)


def is_const(x: Expr, value: bool | int | float) -> bool:
    return type(x) is Const and x.value == value


def scaled(x: Expr, factor: Expr) -> Expr:
    """`x * factor`, which is `x` for the constant one."""
    return x if is_const(factor, 1) else x * factor


def plus_product(x: Expr, y: Expr, factor: Expr) -> Expr:
    """`x + y * factor` with one rounding for floats, as eager's own vector code computes it."""
    if is_const(factor, 1):
        return x + y
    if x.dtype.is_floating_point:
        return Op("fma", (y, factor, x), x.dtype)
    return x + y * factor


def via(x: Expr, *dtypes: torch.dtype) -> Expr:
    """`x` converted through each type in turn. Between a 16-bit type and others it goes through float32, as in C++."""
    for dtype in dtypes:
        old = x.dtype
        if old is dtype:
            continue
        check_computed(old)
        check_computed(dtype)
        if old in HALF_TYPES and dtype is not torch.float32:
            x = Op("cast", (x,), torch.float32)
        elif dtype in HALF_TYPES and old is not torch.float32:
            x = via(x, torch.float32)
        x = const(x.value, dtype) if type(x) is Const else Op("cast", (x,), dtype)
    return x
