"""Rules of gated linear units: one half of a tensor, scaled by a function of the other half."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta, contiguous_stride

from . import ops
from .calls import made, rule
from .context import Context
from .joining import joined
from .promotion import COMPUTE, is_float
from .rules import NoRule
from .symbolic import Tensor
from .views import element_view


def _halves(ctx: Context, input: Any, dim: Any) -> tuple[Expr, Expr, int]:
    """The halves of a tensor along an axis in the type that is computed in, and the axis."""
    if type(input) is not Tensor or type(dim) is not int or not is_float(input.dtype) or not input.meta.numel:
        raise NoRule
    axis = dim % len(input.meta.shape)
    middle, odd = divmod(input.meta.shape[axis], 2)
    if odd:
        raise NoRule  # an error
    before = (slice(None),) * axis
    parts = [element_view(input, (*before, s)) for s in (slice(0, middle), slice(middle, 2 * middle))]
    first, second = (ops.via(ctx.read(part), COMPUTE[input.dtype]) for part in parts)
    return first, second, axis


def _share(x: Expr) -> Expr:
    one = ops.like(x, 1)
    return ops.div(one, ops.add(one, ops.exp(ops.neg(x))))


@rule("glu", "input dim=-1", [functional.glu])
def glu(ctx: Context, meta: Any, input: Any, dim: Any) -> Tensor:
    first, second, _ = _halves(ctx, input, dim)
    return made(ctx, meta, ops.via(ops.mul(first, _share(second)), input.dtype))


@rule("glu_backward", "grad_output input dim")
def glu_backward(ctx: Context, meta: Any, grad_output: Any, input: Any, dim: Any) -> Tensor:
    first, second, axis = _halves(ctx, input, dim)
    if type(grad_output) is not Tensor or grad_output.dtype is not input.dtype or type(meta) is not TensorMeta:
        raise NoRule
    grad, share = ops.via(ctx.read(grad_output), first.dtype), _share(second)
    of_first = ops.mul(share, grad)
    of_second = ops.mul(ops.mul(ops.mul(ops.sub(ops.like(share, 1), share), share), grad), first)
    shape = grad_output.meta.shape
    half = TensorMeta(input.dtype, shape, contiguous_stride(shape), meta.device)
    return joined(ctx, meta, [ctx.fresh(half, ops.via(v, input.dtype)) for v in (of_first, of_second)], axis)
