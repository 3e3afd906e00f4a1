"""Rules of functions of one operand, comparisons, logic, bits and choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .promotion import COMPUTE, Promotion, check_supported, is_float
from .rules import bound, finish, no_rule_if, operand, pointwise
from .symbolic import Tensor

_BINARY = "self other"

# --- functions that turn integers into floats: PyTorch's name -> the operation's, where they differ ---

_FLOAT_FUNCTIONS = {
    **{
        name: name
        for name in "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh "
        "acosh atanh erf erfc lgamma".split()
    },
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_log1p": "log1p", "special_erf": "erf",
    "special_erfc": "erfc", "special_gammaln": "lgamma",
}  # fmt: skip


def _function(name: str) -> Callable[[Expr], Expr]:
    return lambda x: ops.unary(name, x)


for _name, _op in _FLOAT_FUNCTIONS.items():
    pointwise(_name, promotion=Promotion.FLOAT)(_function(_op))

# --- rounding, which leaves integers alone ---


def _rounding(name: str) -> Callable[[Expr], Expr]:
    return lambda x: ops.unary(name, x) if is_float(x.dtype) else x


for _name, _op in {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc"}.items():
    pointwise(_name)(_rounding(_op))


@pointwise("round", options={"decimals": 0})
def round_(x: Expr, decimals: int) -> Expr:
    no_rule_if(decimals != 0)
    return ops.rounded(x) if is_float(x.dtype) else x


# --- signs ---


@pointwise("neg negative")
def neg(x: Expr) -> Expr:
    return ops.neg(x)


@pointwise("abs absolute")
def absolute(x: Expr) -> Expr:
    return x if x.dtype is torch.bool else ops.absolute(x)


@pointwise("sign sgn")
def sign(x: Expr) -> Expr:
    return x if x.dtype is torch.bool else ops.sign(x)


@pointwise("signbit")
def signbit(x: Expr) -> Expr:
    if x.dtype is torch.bool:
        return ops.const(False, torch.bool)
    magnitude = ops.copysign(ops.like(x, 1), x) if is_float(x.dtype) else x
    return ops.lt(magnitude, ops.like(x, 0))


# --- other formulas ---


@pointwise("sigmoid special_expit expit", promotion=Promotion.FLOAT)
def sigmoid(x: Expr) -> Expr:
    one = ops.like(x, 1)
    return ops.div(one, ops.add(one, ops.exp(ops.neg(x))))


# --- questions about one operand ---


def _no(x: Expr) -> Expr:
    return ops.const(False, torch.bool)


pointwise("isnan")(lambda x: ops.isnan(x) if is_float(x.dtype) else _no(x))
pointwise("isinf")(lambda x: ops.isinf(x) if is_float(x.dtype) else _no(x))


@pointwise("isfinite")
def isfinite(x: Expr) -> Expr:
    if not is_float(x.dtype):
        return ops.const(True, torch.bool)
    return ops.bit_not(ops.bit_or(ops.isnan(x), ops.isinf(x)))


@pointwise("logical_not")
def logical_not(x: Expr) -> Expr:
    return ops.bit_not(ops.via(x, torch.bool))


# --- comparisons ---

for _names, _build in {
    "eq": ops.eq, "ne not_equal": ops.ne, "lt less": ops.lt, "le less_equal": ops.le, "gt greater": ops.gt,
    "ge greater_equal": ops.ge,
}.items():  # fmt: skip
    pointwise(_names, operands=_BINARY)(_build)

# --- logic and bits ---


def _logical(build: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    return lambda x, y: build(ops.via(x, torch.bool), ops.via(y, torch.bool))


for _word, _build in {"and": ops.bit_and, "or": ops.bit_or, "xor": ops.bit_xor}.items():
    pointwise(f"logical_{_word}", operands=_BINARY)(_logical(_build))
    pointwise(f"bitwise_{_word}", operands=_BINARY)(_build)

pointwise("bitwise_not")(ops.bit_not)


def _integers_only(build: Callable[[Expr, Expr], Expr]) -> Callable[[Expr, Expr], Expr]:
    def shift(x: Expr, y: Expr) -> Expr:
        no_rule_if(is_float(x.dtype) or x.dtype is torch.bool)
        return build(x, y)

    return shift


pointwise("bitwise_left_shift lshift", operands=_BINARY)(_integers_only(ops.shl))
pointwise("bitwise_right_shift rshift", operands=_BINARY)(_integers_only(ops.shr))

# --- choice ---


@bound("where")
def where(ctx: Context, meta: TensorMeta, condition: Tensor, x: Any, y: Any) -> Expr:
    """`x` or `y` in the result's type."""
    no_rule_if(condition.dtype is not torch.bool)
    check_supported(meta.dtype)
    compute = COMPUTE[meta.dtype]
    branches = [operand(ctx, v, meta.shape, meta.device, meta.dtype, compute, exact=False) for v in (x, y)]
    return finish(ops.where(ctx.read_as(condition, meta.shape, meta.device), *branches), meta.dtype, meta.dtype)


@bound("masked_fill")
def masked_fill(ctx: Context, meta: TensorMeta, input: Tensor, mask: Tensor, value: Any) -> Expr:
    no_rule_if(type(value) is Tensor and value.meta.shape)
    return where(ctx, meta, mask, value, input)
