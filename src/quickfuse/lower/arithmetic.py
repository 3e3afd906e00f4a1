"""Rules of arithmetic: sums, products, quotients, powers, and their in-place relatives of the optimizers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quickfuse.ir.expr import Const, Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .promotion import Promotion, is_float
from .rules import ALL_DEVICES, EVALUATORS, Pointwise, bound, finish, no_rule_if, pointwise
from .symbolic import Tensor

_CUDA = frozenset({"cuda"})
_BINARY = "self other"


pointwise("add", operands=_BINARY, numbers={"alpha": 1}, exact_numbers=_CUDA)(ops.plus_product)


@pointwise("sub subtract", operands=_BINARY, numbers={"alpha": 1}, exact_numbers=_CUDA)
def sub(x: Expr, y: Expr, alpha: Expr) -> Expr:
    return x - y if ops.is_const(alpha, 1) else ops.plus_product(x, -y, alpha)


pointwise("rsub", operands=_BINARY, numbers={"alpha": 1}, exact_numbers=_CUDA)(
    lambda x, y, alpha: sub.compute(y, x, alpha)
)
pointwise("mul multiply", operands=_BINARY, exact_numbers=ALL_DEVICES)(ops.scaled)
#: PyTorch's kernel for lists on the CPU has the number on the left, where it is rounded to the tensor's 16 bits.
EVALUATORS["foreach_mul_"] = Pointwise(ops.scaled, _BINARY, exact_numbers=_CUDA)

# --- quotients ---

_true_div = Pointwise(operator.truediv, _BINARY, promotion=Promotion.FLOAT, exact_numbers=ALL_DEVICES)
_div_by_number = Pointwise(lambda x, y: x * (1 / y), _BINARY, promotion=Promotion.FLOAT, exact_numbers=ALL_DEVICES)
EVALUATORS["foreach_div"] = EVALUATORS["foreach_div_"] = _true_div


@bound("div divide true_divide")
def div(ctx: Context, meta: TensorMeta, input: Any, other: Any, rounding_mode: Any = None) -> Expr:
    if rounding_mode is not None:
        quotient = _whole_quotient(rounding_mode, other)
    else:  # a number is the reciprocal's factor, as in eager's kernel on a GPU
        quotient = _div_by_number if meta.device.type == "cuda" and _is_host_number(other) else _true_div
    return quotient(ctx, (input, other), {}, meta)


def _is_host_number(value: Any) -> bool:
    if type(value) is Tensor:
        return value.meta.device.type == "cpu" and value.meta.numel == 1
    return True


def _nonzero_divisor(y: Expr) -> None:
    """Integer division by zero is an error in eager, on the CPU: only a known divisor is safe."""
    no_rule_if(not is_float(y.dtype) and not (type(y) is Const and y.value))


def _trunc_quotient(x: Expr, y: Expr, common: torch.dtype | None = None) -> Expr:
    _nonzero_divisor(y)
    if not is_float(x.dtype):
        return ops.trunc_div(x, y)
    return ops.trunc(finish(x / y, common or x.dtype, x.dtype))


def _floor_quotient(x: Expr, y: Expr, common: torch.dtype | None = None) -> Expr:
    _nonzero_divisor(y)
    return ops.floor_div(x, y, lambda value: finish(value, common or x.dtype, x.dtype))


#: Eager's kernels round each step to 16 bits where both operands are tensors, but compute with a number in 32 bits.
_QUOTIENTS = {"trunc": _trunc_quotient, "floor": _floor_quotient}
_BY_NUMBER = {name: Pointwise(rule, _BINARY, exact_numbers=ALL_DEVICES) for name, rule in _QUOTIENTS.items()}
_BY_TENSOR = {name: Pointwise(rule, _BINARY, needs="common") for name, rule in _QUOTIENTS.items()}


def _whole_quotient(rounding_mode: str, divisor: Any) -> Pointwise:
    expanded = type(divisor) is Tensor and divisor.meta.device.type == "cpu" and not any(divisor.meta.stride)
    return (_BY_NUMBER if expanded or _is_host_number(divisor) else _BY_TENSOR)[rounding_mode]


@bound("floor_divide")
def floor_divide(ctx: Context, meta: TensorMeta, input: Any, other: Any) -> Expr:
    return _whole_quotient("floor", other)(ctx, (input, other), {}, meta)


def _rest(build: Callable[[Expr, Expr], Expr], x: Expr, y: Expr) -> Expr:
    _nonzero_divisor(y)
    return build(x, y)


pointwise("remainder", operands=_BINARY)(partial(_rest, ops.remainder))
pointwise("fmod", operands=_BINARY)(partial(_rest, ops.fmod))
reciprocal = pointwise("reciprocal", promotion=Promotion.FLOAT)(lambda x: 1 / x)


@bound("rdiv")
def rdiv(ctx: Context, meta: TensorMeta, tensor: Any, dividend: Any) -> Expr:
    """`number / tensor`, which eager computes as `tensor.reciprocal() * number`."""
    inverse = ctx.fresh(meta, reciprocal(ctx, (tensor,), {}, meta))
    return EVALUATORS["mul"](ctx, (inverse, dividend), {}, meta)


# --- fused forms ---


@pointwise("addcmul", operands="self tensor1 tensor2", numbers={"value": 1}, needs="device")
def addcmul(x: Expr, y: Expr, z: Expr, value: Expr, *, device: str) -> Expr:
    if device == "cpu":
        return ops.plus_product(x, ops.scaled(y, value), z)
    return ops.plus_product(x, y, z) if ops.is_const(value, 1) else ops.plus_product(x, value, y * z)


@pointwise("addcdiv", operands="self tensor1 tensor2", numbers={"value": 1}, needs="device")
def addcdiv(x: Expr, y: Expr, z: Expr, value: Expr, *, device: str) -> Expr:
    if device == "cpu":
        return x + ops.scaled(y, value) / z
    return ops.plus_product(x, y / z, value)


def _lerp(x: Expr, y: Expr, weight: Expr) -> Expr:
    """Exact at both ends: `x + weight (y - x)` where |weight| < 0.5, else `y + (weight - 1) (y - x)`."""
    if type(weight) is Const:
        near_end = abs(weight.value) < 0.5
        factor = weight if near_end else ops.like(weight, weight.value - 1)
        return ops.plus_product(x if near_end else y, factor, y - x)
    near = ops.absolute(weight) < 0.5
    factor = ops.where(near, weight, weight - 1)
    return ops.plus_product(ops.where(near, x, y), factor, y - x)


_lerp_number = Pointwise(_lerp, "self end", numbers={"weight": None})
_lerp_tensor = Pointwise(_lerp, "self end weight")


@bound("lerp")
def lerp(ctx: Context, meta: TensorMeta, input: Any, end: Any, weight: Any) -> Expr:
    by_tensor = type(weight) is Tensor and not weight.is_number
    return (_lerp_tensor if by_tensor else _lerp_number)(ctx, (input, end, weight), {}, meta)


# --- powers ---


#: Exponents that eager computes without a power function.
_SIMPLE_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0: lambda x: ops.like(x, 1),
    1: lambda x: x,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
}
_SIMPLE_FLOAT_POWERS: dict[float, Callable[[Expr], Expr]] = {
    0.5: ops.sqrt,
    -0.5: ops.rsqrt,
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


def _power(x: Expr, exponent: Expr, *, device: str, common: torch.dtype) -> Expr:
    """`x ** exponent`. Roots differ from powers at -0 and -inf; eager's float16 kernel for the CPU takes powers."""
    value = exponent.value if type(exponent) is Const else None
    if value in _SIMPLE_POWERS:
        return _SIMPLE_POWERS[value](x)
    if not is_float(x.dtype):
        no_rule_if(value is None or value < 0)  # a negative power of an integer may be an error in eager
        return ops.power(x, exponent)
    by_power = device == "cpu" and common is torch.float16
    if value in _SIMPLE_FLOAT_POWERS and not by_power:
        return _SIMPLE_FLOAT_POWERS[value](x)
    return ops.power(x, exponent)


def _number_power(x: Expr, exponent: Expr, **facts: Any) -> Expr:
    return ops.like(x, 1) if ops.is_const(x, 1) else _power(x, exponent, **facts)


_power_of = Pointwise(_power, "self exponent", needs="device common")
_power_of_number = Pointwise(_number_power, "self exponent", needs="device common")


@bound("pow")
def power(ctx: Context, meta: TensorMeta, input: Any, exponent: Any) -> Expr:
    return (_power_of if type(input) is Tensor else _power_of_number)(ctx, (input, exponent), {}, meta)


pointwise("square")(lambda x: x * x)

# --- the rest ---

maximum = pointwise("maximum", operands=_BINARY)(lambda x, y: x | y if x.dtype is torch.bool else ops.maximum(x, y))
minimum = pointwise("minimum", operands=_BINARY)(lambda x, y: x & y if x.dtype is torch.bool else ops.minimum(x, y))


def _of_numbers(build: Callable[..., Expr], rule: Pointwise, x: Expr, y: Expr, *, common: torch.dtype) -> Expr:
    """`fmax` or `fmin`. Of zeros with different signs, eager's give the second one in bfloat16."""
    if not is_float(x.dtype):
        return rule.compute(x, y)
    return build(y, x) if common is torch.bfloat16 else build(x, y)


pointwise("fmax", operands=_BINARY, needs="common")(partial(_of_numbers, ops.fmax, maximum))
pointwise("fmin", operands=_BINARY, needs="common")(partial(_of_numbers, ops.fmin, minimum))


def _of_two_tensors(rule: Pointwise, ctx: Context, meta: TensorMeta, input: Tensor, other: Tensor) -> Expr:
    """`torch.max(x, y)`; the other forms are reductions."""
    no_rule_if(input.is_number or other.is_number)
    return rule(ctx, (input, other), {}, meta)


bound("max")(partial(_of_two_tensors, maximum))
bound("min")(partial(_of_two_tensors, minimum))


@bound("clamp clip")
def clamp(ctx: Context, meta: TensorMeta, input: Any, min: Any = None, max: Any = None) -> Expr:
    no_rule_if(min is None and max is None)
    if min is None or max is None:
        return maximum(ctx, (input, min), {}, meta) if max is None else minimum(ctx, (input, max), {}, meta)
    return clamp_both(ctx, (input, min, max), {}, meta)


clamp_both = Pointwise(lambda x, low, high: ops.minimum(ops.maximum(x, low), high), "self min max")
pointwise("clamp_min", operands="self min")(maximum.compute)
pointwise("clamp_max", operands="self max")(minimum.compute)


pointwise("atan2 arctan2", operands=_BINARY, promotion=Promotion.FLOAT)(ops.atan2)
pointwise("hypot", operands=_BINARY)(ops.hypot)
pointwise("copysign", operands=_BINARY, promotion=Promotion.FLOAT)(ops.copysign)


@pointwise("nextafter", operands=_BINARY, needs="common")
def nextafter(x: Expr, y: Expr, *, common: torch.dtype) -> Expr:
    no_rule_if(common is not x.dtype)  # the next number of 16 bits is not the next one of 32
    return ops.nextafter(x, y)


@pointwise("xlogy special_xlogy", operands=_BINARY, promotion=Promotion.FLOAT, needs="common")
def xlogy(x: Expr, y: Expr, *, common: torch.dtype) -> Expr:
    """`x * log(y)`, which is 0 where x is 0 unless y is NaN. Eager rounds the logarithm to 16 bits, too."""
    product = x * finish(ops.log(y), common, x.dtype)
    return ops.where(ops.isnan(y), y, ops.where(ops.eq(x, 0), 0, product))
