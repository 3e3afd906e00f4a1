"""Rules of the formulas that autograd has for the gradients of functions of single elements: PyTorch's kernels, as formulas.

All are of the form `grad_output` times a derivative. What eager computes from the result of a function, say of `tanh`, is
computed from it here, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from quickfuse.ir.expr import Const, Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import optional, rule, several
from .context import Context
from .promotion import COMPUTE
from .rules import NoRule, Pointwise, evaluator, pointwise
from .symbolic import Tensor

#: What eager's kernel multiplies by, in double precision, too: a float32.
_SIXTH = 0.1666666716337204

_OF_INPUT, _OF_RESULT = "grad_output self", "grad_output output"


def _zero(x: Expr) -> Expr:
    return ops.like(x, 0)


def _between(x: Expr, low: Expr, high: Expr) -> Expr:
    return ops.bit_and(ops.gt(x, low), ops.lt(x, high))


# --- from the result ---


@pointwise("sigmoid_backward", operands=_OF_RESULT)
def sigmoid(grad: Expr, y: Expr) -> Expr:
    return ops.mul(ops.mul(grad, ops.sub(ops.like(y, 1), y)), y)


@pointwise("tanh_backward", operands=_OF_RESULT)
def tanh(grad: Expr, y: Expr) -> Expr:
    return ops.mul(grad, ops.sub(ops.like(y, 1), ops.mul(y, y)))


# --- functions in pieces ---


@pointwise("threshold_backward", operands=_OF_INPUT, numbers={"threshold": None})
def threshold(grad: Expr, x: Expr, limit: Expr) -> Expr:
    return ops.where(ops.le(x, limit), _zero(grad), grad)


@pointwise("hardtanh_backward", operands=_OF_INPUT, numbers={"min_val": None, "max_val": None})
def hardtanh(grad: Expr, x: Expr, low: Expr, high: Expr) -> Expr:
    outside = ops.bit_or(ops.le(x, low), ops.ge(x, high))
    return ops.where(outside, _zero(grad), grad)


@pointwise("hardsigmoid_backward", operands=_OF_INPUT)
def hardsigmoid(grad: Expr, x: Expr) -> Expr:
    inside = _between(x, ops.like(x, -3), ops.like(x, 3))
    return ops.where(inside, ops.mul(grad, ops.like(x, _SIXTH)), _zero(grad))


@pointwise("hardswish_backward", operands=_OF_INPUT)
def hardswish(grad: Expr, x: Expr) -> Expr:
    low, high = ops.like(x, -3), ops.like(x, 3)
    inner = ops.mul(grad, ops.add(ops.div(x, high), ops.like(x, 0.5)))
    return ops.where(ops.le(x, low), _zero(grad), ops.where(ops.lt(x, high), inner, grad))


@pointwise("softshrink_backward", operands=_OF_INPUT, numbers={"lambd": None})
def shrink(grad: Expr, x: Expr, limit: Expr) -> Expr:
    inside = ops.bit_and(ops.ge(x, ops.neg(limit)), ops.le(x, limit))
    return ops.where(inside, _zero(grad), grad)


pointwise("hardshrink_backward", operands="grad_out self", numbers={"lambd": None})(shrink.compute)


@pointwise("leaky_relu_backward", operands=_OF_INPUT, numbers={"negative_slope": None}, options={"self_is_result": False})
def leaky_relu(grad: Expr, x: Expr, slope: Expr, self_is_result: bool) -> Expr:
    return ops.where(ops.gt(x, _zero(x)), grad, ops.mul(grad, slope))


@evaluator("elu_backward")
def elu(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
    if kwargs or len(args) != 6:
        raise NoRule
    grad, alpha, scale, input_scale, is_result, x = args
    formula = _elu_from_result if is_result else _elu
    return formula(ctx, (grad, x, alpha, scale, input_scale), {}, meta)


def _elu_formula(grad: Expr, x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    below = ops.mul(ops.mul(input_scale, ops.scaled(alpha, scale)), ops.exp(ops.scaled(x, input_scale)))
    return ops.mul(grad, ops.where(ops.le(x, _zero(x)), below, scale))


def _elu_formula_from_result(grad: Expr, y: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    below = ops.scaled(ops.add(y, ops.scaled(alpha, scale)), input_scale)
    return ops.mul(grad, ops.where(ops.le(y, _zero(y)), below, scale))


_ELU = {"alpha": 1, "scale": 1, "input_scale": 1}
_elu = Pointwise(_elu_formula, operands=_OF_INPUT, numbers=_ELU)
_elu_from_result = Pointwise(_elu_formula_from_result, operands=_OF_INPUT, numbers=_ELU)


@pointwise("_prelu_kernel", operands="self weight")
def prelu(x: Expr, weight: Expr) -> Expr:
    return ops.where(ops.gt(x, _zero(x)), x, ops.mul(weight, x))


@rule("_prelu_kernel_backward", "grad_output input weight")
def prelu_gradients(ctx: Context, meta: Any, grad_output: Any, input: Any, weight: Any) -> list[Tensor | None]:
    metas = several(meta, 2)
    shape, device, compute = input.meta.shape, input.meta.device, COMPUTE[input.dtype]
    grad, x, slope = (ops.via(ctx.read_as(t, shape, device), compute) for t in (grad_output, input, weight))
    positive, zero = ops.gt(x, _zero(x)), _zero(x)
    of_input = ops.where(positive, grad, ops.mul(slope, grad))
    of_weight = ops.where(positive, zero, ops.mul(x, grad))
    return [optional(ctx, metas[0], of_input), optional(ctx, metas[1], of_weight)]


# --- smooth functions ---


@pointwise("gelu_backward", operands=_OF_INPUT, options={"approximate": "none"})
def gelu(grad: Expr, x: Expr, approximate: str) -> Expr:
    if approximate == "tanh":
        return _gelu_by_tanh(grad, x)
    if approximate != "none":
        raise NoRule
    half, one = ops.like(x, 0.5), ops.like(x, 1)
    below = ops.mul(half, ops.add(one, ops.erf(ops.mul(x, ops.like(x, math.sqrt(0.5))))))
    density = ops.mul(ops.like(x, 1 / math.sqrt(2 * math.pi)), ops.exp(ops.mul(ops.mul(x, x), ops.like(x, -0.5))))
    return ops.mul(grad, ops.add(below, ops.mul(x, density)))


def _gelu_by_tanh(grad: Expr, x: Expr) -> Expr:
    half, one, factor = ops.like(x, 0.5), ops.like(x, 1), ops.like(x, math.sqrt(2 / math.pi))
    square = ops.mul(x, x)
    inner = ops.mul(factor, ops.add(x, ops.mul(ops.like(x, 0.044715), ops.mul(square, x))))
    bent = ops.tanh(inner)
    of_inner = ops.mul(factor, ops.add(one, ops.mul(ops.like(x, 3 * 0.044715), square)))
    of_tanh = ops.mul(ops.mul(ops.mul(half, x), ops.sub(one, ops.mul(bent, bent))), of_inner)
    return ops.mul(grad, ops.add(ops.mul(half, ops.add(one, bent)), of_tanh))


def _logistic(x: Expr) -> Expr:
    one = ops.like(x, 1)
    return ops.div(one, ops.add(one, ops.exp(ops.neg(x))))


@pointwise("silu_backward", operands=_OF_INPUT)
def silu(grad: Expr, x: Expr) -> Expr:
    one, share = ops.like(x, 1), _logistic(x)
    return ops.mul(ops.mul(grad, share), ops.add(one, ops.mul(x, ops.sub(one, share))))


@pointwise("mish_backward", operands=_OF_INPUT)
def mish(grad: Expr, x: Expr) -> Expr:
    bent = ops.tanh(ops.log1p(ops.exp(x)))
    slope = ops.mul(ops.mul(x, _logistic(x)), ops.sub(ops.like(x, 1), ops.mul(bent, bent)))
    return ops.mul(grad, ops.add(bent, slope))


@pointwise("softplus_backward", operands=_OF_INPUT, numbers={"beta": None, "threshold": None})
def softplus(grad: Expr, x: Expr, beta: Expr, limit: Expr) -> Expr:
    inner = ops.scaled(x, beta)
    power = ops.exp(inner)
    slope = ops.div(ops.mul(grad, power), ops.add(power, ops.like(x, 1)))
    return ops.where(ops.gt(inner, limit), grad, slope)


@pointwise("log_sigmoid_backward", operands="grad_output self buffer")
def log_sigmoid(grad: Expr, x: Expr, small: Expr) -> Expr:
    """`small` is exp(-|x|)."""
    one = ops.like(x, 1)
    share = ops.div(small, ops.add(one, small))
    return ops.mul(grad, ops.where(ops.lt(x, _zero(x)), ops.sub(one, share), share))


@pointwise("logit_backward", operands=_OF_INPUT, numbers={"eps": -1})
def logit(grad: Expr, x: Expr, eps: Expr) -> Expr:
    """Beyond [eps, 1 - eps] the gradient is 0; without `eps` it is NaN beyond [0, 1], and infinite at the ends."""
    if type(eps) is not Const:
        raise NoRule
    one, zero = ops.like(x, 1), _zero(x)
    bounded = eps.value >= 0
    low, high = (eps, ops.sub(one, eps)) if bounded else (zero, one)
    beyond = zero if bounded else ops.like(x, math.nan)
    outside = ops.bit_or(ops.lt(x, low), ops.gt(x, high))
    at_end = ops.bit_or(ops.eq(x, zero), ops.eq(x, one))
    inner = ops.where(at_end, ops.mul(grad, ops.like(x, math.inf)), ops.div(grad, ops.mul(x, ops.sub(one, x))))
    return ops.where(outside, beyond, inner)
