"""Rules of the activation functions of `torch.nn.functional`, with the formulas of PyTorch's own kernels."""

from __future__ import annotations

import math
from typing import Any

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .arithmetic import clamp_both
from .context import Context
from .rules import bound, no_rule_if, pointwise

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _positive(x: Expr) -> Expr:
    return ops.gt(x, ops.like(x, 0))


@pointwise("relu")
def relu(x: Expr) -> Expr:
    return ops.maximum(x, ops.like(x, 0))


@bound("relu6")
def relu6(ctx: Context, meta: TensorMeta, input: Any) -> Expr:
    return clamp_both(ctx, (input, 0, 6), {}, meta)


@bound("hardtanh")
def hardtanh(ctx: Context, meta: TensorMeta, input: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Expr:
    return clamp_both(ctx, (input, min_val, max_val), {}, meta)


@pointwise("threshold", numbers={"threshold": None, "value": None})
def threshold(x: Expr, limit: Expr, value: Expr) -> Expr:
    return ops.where(ops.le(x, limit), value, x)


@pointwise("leaky_relu", numbers={"negative_slope": 0.01})
def leaky_relu(x: Expr, slope: Expr) -> Expr:
    return ops.where(_positive(x), x, ops.mul(x, slope))


def _elu(x: Expr, negative: Expr, positive: Expr, inner: Expr) -> Expr:
    """`positive x` where x > 0 (or NaN), else `negative (exp(inner x) - 1)`."""
    below = ops.mul(ops.expm1(ops.scaled(x, inner)), negative)
    return ops.where(ops.le(x, ops.like(x, 0)), below, ops.scaled(x, positive))


@pointwise("elu", numbers={"alpha": 1, "scale": 1, "input_scale": 1})
def elu(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    return _elu(x, ops.scaled(alpha, scale), scale, input_scale)


@pointwise("selu")
def selu(x: Expr) -> Expr:
    return _elu(x, ops.like(x, _SELU_ALPHA * _SELU_SCALE), ops.like(x, _SELU_SCALE), ops.like(x, 1))


@pointwise("celu", numbers={"alpha": 1})
def celu(x: Expr, alpha: Expr) -> Expr:
    return _elu(x, alpha, ops.like(x, 1), ops.div(ops.like(x, 1), alpha))


@pointwise("gelu", options={"approximate": "none"})
def gelu(x: Expr, approximate: str) -> Expr:
    half, one = ops.like(x, 0.5), ops.like(x, 1)
    if approximate == "none":
        return ops.mul(ops.mul(x, half), ops.add(one, ops.erf(ops.mul(x, ops.like(x, math.sqrt(0.5))))))
    no_rule_if(approximate != "tanh")
    cube = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(ops.like(x, math.sqrt(2 / math.pi)), ops.add(x, ops.mul(ops.like(x, 0.044715), cube)))
    return ops.mul(ops.mul(half, x), ops.add(one, ops.tanh(inner)))


@pointwise("silu")
def silu(x: Expr) -> Expr:
    return ops.div(x, ops.add(ops.like(x, 1), ops.exp(ops.neg(x))))


@pointwise("mish")
def mish(x: Expr) -> Expr:
    return ops.mul(x, ops.tanh(ops.log1p(ops.exp(x))))


@pointwise("softplus", numbers={"beta": 1, "threshold": 20})
def softplus(x: Expr, beta: Expr, limit: Expr) -> Expr:
    inner = ops.scaled(x, beta)
    smooth = ops.log1p(ops.exp(inner))
    if not ops.is_const(beta, 1):
        smooth = ops.div(smooth, beta)
    return ops.where(ops.gt(inner, limit), x, smooth)


@pointwise("log_sigmoid logsigmoid")
def logsigmoid(x: Expr) -> Expr:
    zero = ops.like(x, 0)
    return ops.sub(ops.minimum(zero, x), ops.log1p(ops.exp(ops.neg(ops.absolute(x)))))


def _clamped_to_six(x: Expr) -> Expr:
    zero, three, six = (ops.like(x, v) for v in (0, 3, 6))
    return ops.minimum(ops.maximum(ops.add(x, three), zero), six)


@pointwise("hardswish")
def hardswish(x: Expr) -> Expr:
    return ops.div(ops.mul(x, _clamped_to_six(x)), ops.like(x, 6))


@pointwise("hardsigmoid")
def hardsigmoid(x: Expr) -> Expr:
    return ops.div(_clamped_to_six(x), ops.like(x, 6))


@pointwise("hardshrink", numbers={"lambd": 0.5})
def hardshrink(x: Expr, limit: Expr) -> Expr:
    return ops.where(_within(x, limit), ops.like(x, 0), x)


@pointwise("softshrink", numbers={"lambd": 0.5})
def softshrink(x: Expr, limit: Expr) -> Expr:
    """A number within the limits becomes a zero of its own sign."""
    shrunk = ops.where(ops.gt(x, limit), ops.sub(x, limit), ops.add(x, limit))
    return ops.where(_within(x, limit), ops.mul(x, ops.like(x, 0)), shrunk)


def _within(x: Expr, limit: Expr) -> Expr:
    return ops.bit_and(ops.ge(x, ops.neg(limit)), ops.le(x, limit))


# --- gradients ---

#: What eager's kernel multiplies by, in double precision, too: a float32.
_SIXTH = 0.1666666716337204


@pointwise("sigmoid_backward", operands="grad_output output")
def sigmoid_backward(grad: Expr, y: Expr) -> Expr:
    return ops.mul(ops.mul(grad, ops.sub(ops.like(y, 1), y)), y)


@pointwise("tanh_backward", operands="grad_output output")
def tanh_backward(grad: Expr, y: Expr) -> Expr:
    return ops.mul(grad, ops.sub(ops.like(y, 1), ops.mul(y, y)))


@pointwise("threshold_backward", operands="grad_output self", numbers={"threshold": None})
def threshold_backward(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return ops.where(ops.le(x, limit), ops.like(grad, 0), grad)


@pointwise("hardsigmoid_backward", operands="grad_output self")
def hardsigmoid_backward(grad: Expr, x: Expr) -> Expr:
    inside = ops.bit_and(ops.gt(x, ops.like(x, -3)), ops.lt(x, ops.like(x, 3)))
    return ops.where(inside, ops.mul(grad, ops.like(x, _SIXTH)), ops.like(grad, 0))


@pointwise("softshrink_backward", operands="grad_output self", numbers={"lambd": None})
def shrink_backward(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return ops.where(_within(x, limit), ops.like(grad, 0), grad)


pointwise("hardshrink_backward", operands="grad_out self", numbers={"lambd": None})(shrink_backward.compute)
