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


@bound("relu6")
def relu6(ctx: Context, meta: TensorMeta, input: Any) -> Expr:
    return clamp_both(ctx, (input, 0, 6), {}, meta)


@bound("hardtanh")
def hardtanh(ctx: Context, meta: TensorMeta, input: Any, min_val: Any = -1.0, max_val: Any = 1.0) -> Expr:
    return clamp_both(ctx, (input, min_val, max_val), {}, meta)


pointwise("relu")(lambda x: ops.maximum(x, 0))
pointwise("threshold", numbers={"threshold": None, "value": None})(lambda x, limit, value: ops.where(x <= limit, value, x))
pointwise("leaky_relu", numbers={"negative_slope": 0.01})(lambda x, slope: ops.where(x > 0, x, x * slope))


def _elu(x: Expr, negative: Expr, positive: Expr, inner: Expr) -> Expr:
    """`positive x` where x >= 0 (or NaN), else `negative (exp(inner x) - 1)`."""
    return ops.where(x < 0, ops.expm1(ops.scaled(x, inner)) * negative, ops.scaled(x, positive))


pointwise("elu", numbers={"alpha": 1, "scale": 1, "input_scale": 1})(
    lambda x, alpha, scale, input_scale: _elu(x, ops.scaled(alpha, scale), scale, input_scale)
)
pointwise("selu")(lambda x: _elu(x, ops.like(x, _SELU_ALPHA * _SELU_SCALE), ops.like(x, _SELU_SCALE), ops.like(x, 1)))
pointwise("celu", numbers={"alpha": 1})(lambda x, alpha: _elu(x, alpha, ops.like(x, 1), 1 / alpha))


@pointwise("gelu", options={"approximate": "none"})
def gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "none":
        return x * 0.5 * (1 + ops.erf(x * math.sqrt(0.5)))
    no_rule_if(approximate != "tanh")
    return 0.5 * x * (1 + ops.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))


pointwise("silu")(lambda x: x / (1 + ops.exp(-x)))
pointwise("mish")(lambda x: x * ops.tanh(ops.log1p(ops.exp(x))))


@pointwise("softplus", numbers={"beta": 1, "threshold": 20})
def softplus(x: Expr, beta: Expr, limit: Expr) -> Expr:
    inner = ops.scaled(x, beta)
    smooth = ops.log1p(ops.exp(inner))
    return ops.where(inner > limit, x, smooth if ops.is_const(beta, 1) else smooth / beta)


pointwise("log_sigmoid logsigmoid")(lambda x: ops.minimum(0, x) - ops.log1p(ops.exp(-ops.absolute(x))))


def _clamped_to_six(x: Expr) -> Expr:
    return ops.minimum(ops.maximum(x + 3, 0), 6)


pointwise("hardswish")(lambda x: x * _clamped_to_six(x) / 6)
pointwise("hardsigmoid")(lambda x: _clamped_to_six(x) / 6)


def _within(x: Expr, limit: Expr) -> Expr:
    return (x >= -limit) & (x <= limit)


pointwise("hardshrink", numbers={"lambd": 0.5})(lambda x, limit: ops.where(_within(x, limit), 0, x))
# A number within the limits becomes a zero of its own sign.
pointwise("softshrink", numbers={"lambd": 0.5})(
    lambda x, limit: ops.where(_within(x, limit), x * 0, ops.where(x > limit, x - limit, x + limit))
)

# --- gradients ---

#: What eager's kernel multiplies by, in double precision, too: a float32.
_SIXTH = 0.1666666716337204

pointwise("sigmoid_backward", operands="grad_output output")(lambda grad, y: grad * (1 - y) * y)
pointwise("tanh_backward", operands="grad_output output")(lambda grad, y: grad * (1 - y * y))
pointwise("threshold_backward", operands="grad_output self", numbers={"threshold": None})(
    lambda grad, x, limit: ops.where(x <= limit, 0, grad)
)
pointwise("hardsigmoid_backward", operands="grad_output self")(
    lambda grad, x: ops.where((x > -3) & (x < 3), grad * _SIXTH, 0)
)
for _name, _operands in (("softshrink", "grad_output self"), ("hardshrink", "grad_out self")):
    pointwise(f"{_name}_backward", operands=_operands, numbers={"lambd": None})(
        lambda grad, x, limit: ops.where(_within(x, limit), 0, grad)
    )
