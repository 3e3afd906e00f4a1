"""Rules of functions of one operand, comparisons, logic, bits and choice."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quickfuse.ir.expr import FLOAT_FUNCTIONS, Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .promotion import COMPUTE, Promotion, check_supported, is_float
from .rules import bound, finish, no_rule_if, operand, pointwise
from .symbolic import Tensor

_BINARY = "self other"
_NO, _YES = ops.const(False, torch.bool), ops.const(True, torch.bool)

# --- functions that turn integers into floats: PyTorch's name -> the operation's, where they differ ---

_FLOAT_FUNCTIONS = {
    **{name: name for name in (*FLOAT_FUNCTIONS, "sqrt", "rsqrt")},
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "special_exp2": "exp2", "special_expm1": "expm1", "special_log1p": "log1p", "special_erf": "erf",
    "special_erfc": "erfc", "special_gammaln": "lgamma",
}  # fmt: skip


for _name, _op in _FLOAT_FUNCTIONS.items():
    pointwise(_name, promotion=Promotion.FLOAT)(partial(ops.unary, _op))

# --- rounding, which leaves integers alone ---

for _names, _round in {"floor": ops.floor, "ceil": ops.ceil, "trunc fix": ops.trunc}.items():
    pointwise(_names)(lambda x, round=_round: round(x) if is_float(x.dtype) else x)


@pointwise("round", options={"decimals": 0})
def round_(x: Expr, decimals: int) -> Expr:
    no_rule_if(decimals != 0)
    return ops.rounded(x) if is_float(x.dtype) else x


# --- signs ---

pointwise("neg negative")(operator.neg)
pointwise("abs absolute")(lambda x: x if x.dtype is torch.bool else ops.absolute(x))
pointwise("sign sgn")(lambda x: x if x.dtype is torch.bool else ops.sign(x))


@pointwise("signbit")
def signbit(x: Expr) -> Expr:
    if x.dtype is torch.bool:
        return _NO
    return (ops.copysign(1, x) if is_float(x.dtype) else x) < 0


# --- other formulas ---

pointwise("sigmoid special_expit expit", promotion=Promotion.FLOAT)(lambda x: 1 / (1 + ops.exp(-x)))

# --- questions about one operand ---

pointwise("isnan")(lambda x: ops.isnan(x) if is_float(x.dtype) else _NO)
pointwise("isinf")(lambda x: ops.isinf(x) if is_float(x.dtype) else _NO)
pointwise("isfinite")(lambda x: ~(ops.isnan(x) | ops.isinf(x)) if is_float(x.dtype) else _YES)
pointwise("logical_not")(lambda x: ~ops.via(x, torch.bool))

# --- comparisons ---

for _names, _build in {
    "eq": ops.eq, "ne not_equal": ops.ne, "lt less": operator.lt, "le less_equal": operator.le,
    "gt greater": operator.gt, "ge greater_equal": operator.ge,
}.items():  # fmt: skip
    pointwise(_names, operands=_BINARY)(_build)

# --- logic and bits ---

for _word, _build in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():
    pointwise(f"logical_{_word}", operands=_BINARY)(
        lambda x, y, build=_build: build(ops.via(x, torch.bool), ops.via(y, torch.bool))
    )
    pointwise(f"bitwise_{_word}", operands=_BINARY)(_build)

pointwise("bitwise_not")(operator.invert)


def _shift(build: Callable[[Expr, Expr], Expr], x: Expr, y: Expr) -> Expr:
    no_rule_if(is_float(x.dtype) or x.dtype is torch.bool)
    return build(x, y)


pointwise("bitwise_left_shift lshift", operands=_BINARY)(partial(_shift, ops.shl))
pointwise("bitwise_right_shift rshift", operands=_BINARY)(partial(_shift, ops.shr))

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
