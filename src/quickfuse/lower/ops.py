"""Constructors of scalar expressions, so that rules read as formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, Const, Expr, Op, convert
from quickfuse.ir.memo import Memo


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
eq, ne, lt, ge = map(_comparison, ("eq", "ne", "lt", "ge"))
isnan, isinf = map(_predicate, ("isnan", "isinf"))
neg, absolute, sign, bit_not = map(_unary, ("neg", "abs", "sign", "not"))
exp, exp2, expm1, log, log1p, log2 = map(_unary, ("exp", "exp2", "expm1", "log", "log1p", "log2"))
sqrt, rsqrt, sin, tanh, erf = map(_unary, ("sqrt", "rsqrt", "sin", "tanh", "erf"))
floor, ceil, trunc, rounded = map(_unary, ("floor", "ceil", "trunc", "round"))


def le(x: Expr, y: Expr) -> Expr:
    return Op("le", (_without_bound(x, y), y), torch.bool)


def gt(x: Expr, y: Expr) -> Expr:
    return Op("gt", (_without_bound(x, y), y), torch.bool)


def _without_bound(x: Expr, y: Expr) -> Expr:
    """`z` for `maximum(z, y)`, which is as often above `y` as `z` is, also where that is no number: what the gradient of
    an activation asks for that is computed again."""
    bounded = type(x) is Op and x.name == "maximum" and type(y) is Const and x.args[1] == y and y.value == y.value
    return x.args[0] if bounded else x  # type: ignore[attr-defined]


def where(condition: Expr, x: Expr, y: Expr) -> Expr:
    return Op("where", (condition, x, y), x.dtype)


def unary(name: str, x: Expr) -> Expr:
    """The function `name` of `SCALAR_OPS`, with a result of its operand's type."""
    return Op(name, (x,), x.dtype)


_constants = Memo()  # of `Expr`


def const(value: bool | int | float, *dtypes: torch.dtype) -> Expr:
    """A number converted through each type in turn, as PyTorch rounds it.

    Constants are shared, as converting one costs microseconds. There are none of 16-bit types, which are stored only:
    these are conversions of a float32.
    """
    # 0.0 == -0.0, and 1 == 1.0 == True, although they convert differently.
    key = (value, type(value), dtypes, math.copysign(1.0, value) if value == 0 else 0)
    known = _constants.get(key)
    if known is None:
        _check_real(dtypes[-1])
        for dtype in dtypes:
            value = convert(value, dtype)
        last = dtypes[-1]
        known = Op("cast", (Const(value, torch.float32),), last) if last in HALF_TYPES else Const(value, last)
        _constants[key] = known
    return known


def _check_real(dtype: torch.dtype) -> None:
    """Loops can copy complex numbers, but not compute them."""
    if dtype.is_complex:
        raise Unsupported(f"tensors of type {dtype}")


def like(x: Expr, value: bool | int | float) -> Expr:
    """A number of the type of `x`."""
    return const(value, x.dtype)


def is_const(x: Expr, value: bool | int | float) -> bool:
    return type(x) is Const and x.value == value


def scaled(x: Expr, factor: Expr) -> Expr:
    """`x * factor`, which is `x` for the constant one."""
    return x if is_const(factor, 1) else mul(x, factor)


def plus_product(x: Expr, y: Expr, factor: Expr) -> Expr:
    """`x + y * factor` with one rounding for floats, as eager's own vector code computes it."""
    if is_const(factor, 1):
        return add(x, y)
    if x.dtype.is_floating_point:
        return Op("fma", (y, factor, x), x.dtype)
    return add(x, mul(y, factor))


def via(x: Expr, *dtypes: torch.dtype) -> Expr:
    """`x` converted through each type in turn. Between a 16-bit type and others it goes through float32, as in C++."""
    for dtype in dtypes:
        old = x.dtype
        if old is dtype:
            continue
        _check_real(old)
        _check_real(dtype)
        if old in HALF_TYPES and dtype is not torch.float32:
            x = Op("cast", (x,), torch.float32)
        elif dtype in HALF_TYPES and old is not torch.float32:
            x = via(x, torch.float32)
        x = const(x.value, dtype) if type(x) is Const else Op("cast", (x,), dtype)
    return x
