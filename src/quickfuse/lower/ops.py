"""Constructors of scalar expressions, so that rules read as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from quickfuse.ir.expr import Const, Expr, Op, Scalar, cast, convert


def _unary(name: str) -> Callable[[Expr], Expr]:
    return lambda x: Op(name, (x,), x.dtype)


def _binary(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: Op(name, (x, y), x.dtype)


def _predicate(name: str) -> Callable[[Expr], Expr]:
    return lambda x: Op(name, (x,), torch.bool)


def _comparison(name: str) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: Op(name, (x, y), torch.bool)


add, sub, mul, div = map(_binary, ("add", "sub", "mul", "div"))
trunc_div, floor_div, remainder, fmod = map(_binary, ("trunc_div", "floor_div", "remainder", "fmod"))
maximum, minimum, fmax, fmin = map(_binary, ("maximum", "minimum", "fmax", "fmin"))
power, atan2, hypot, copysign, nextafter = map(_binary, ("pow", "atan2", "hypot", "copysign", "nextafter"))
bit_and, bit_or, bit_xor, shl, shr = map(_binary, ("and", "or", "xor", "shl", "shr"))
eq, ne, lt, le, gt, ge = map(_comparison, ("eq", "ne", "lt", "le", "gt", "ge"))
isnan, isinf = map(_predicate, ("isnan", "isinf"))
neg, absolute, sign, bit_not = map(_unary, ("neg", "abs", "sign", "not"))
exp, exp2, expm1, log, log1p, log2 = map(_unary, ("exp", "exp2", "expm1", "log", "log1p", "log2"))
sqrt, rsqrt, sin, tanh, erf = map(_unary, ("sqrt", "rsqrt", "sin", "tanh", "erf"))
floor, ceil, trunc, rounded = map(_unary, ("floor", "ceil", "trunc", "round"))


def where(condition: Expr, x: Expr, y: Expr) -> Expr:
    return Op("where", (condition, x, y), x.dtype)


def unary(name: str, x: Expr) -> Expr:
    """The function `name` of `SCALAR_OPS`, with a result of its operand's type."""
    return Op(name, (x,), x.dtype)


_constants: dict[tuple[object, ...], Const] = {}


def const(value: bool | int | float, dtype: torch.dtype) -> Const:
    """A number as `dtype`, rounded as PyTorch does. Constants are shared: converting one costs microseconds."""
    # 0.0 == -0.0, and 1 == 1.0 == True, although they convert differently.
    key = (value, type(value), dtype, math.copysign(1.0, value) if value == 0 else 0)
    known = _constants.get(key)
    if known is None:
        known = _constants[key] = Const(convert(value, dtype), dtype)
    return known


def like(x: Expr, value: bool | int | float) -> Const:
    """A number of the type of `x`."""
    return const(value, x.dtype)


def is_const(x: Expr, value: bool | int | float) -> bool:
    return type(x) is Const and x.value == value


def scaled(x: Expr, factor: Expr) -> Expr:
    """`x * factor`, which is `x` for the constant one."""
    return x if is_const(factor, 1) else mul(x, factor)


def via(x: Expr, *dtypes: torch.dtype) -> Expr:
    """`x` converted through each type in turn."""
    for dtype in dtypes:
        if x.dtype != dtype:
            x = const(x.value, dtype) if type(x) is Const else cast(x, dtype)
    return x


__all__ = ["Const", "Expr", "Op", "Scalar", "cast"]
