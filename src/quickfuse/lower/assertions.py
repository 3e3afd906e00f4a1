"""Checks of what a tensor holds, where eager mode raises an exception, and the loss of probabilities, which has one."""

from __future__ import annotations

from typing import Any

from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .context import Context
from .promotion import COMPUTE, is_float
from .reductions import mean, total
from .rules import no_rule_if
from .symbolic import Tensor


@rule("_assert_async")
def assert_async(ctx: Context, meta: Any, input: Tensor, assert_msg: Any = None) -> None:
    """`torch._assert_async`: the only element is not zero."""
    no_rule_if(input.meta.numel != 1)
    value = ctx.formula(input)
    ctx.raise_where(ops.eq(value, 0), input.meta.shape, input.meta.device)


@rule("_linalg_check_errors")
def linalg_check_errors(ctx: Context, meta: Any, info: Tensor, api_name: str, is_matrix: bool) -> None:
    """What `linalg.inv` and the like end with where autograd sees them: for each matrix a number, zero if it succeeded.

    Where one is not, the program runs again in Python, which raises the exception with its text. On GPUs it is not traced.
    """
    value = ctx.formula(info)
    ctx.raise_where(ops.ne(value, 0), info.meta.shape, info.meta.device)


#: What ATen's losses take for `reduction`.
_NONE, _MEAN = 0, 1


@rule("binary_cross_entropy")
def bce(
    ctx: Context, meta: TensorMeta, input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """A probability below zero or above one, or NaN, is an exception."""
    dtype, operands = input.dtype, [input, target, *([] if weight is None else [weight])]
    no_rule_if(any(t.meta.shape != input.meta.shape or t.dtype is not dtype for t in operands) or not input.meta.numel)
    no_rule_if(not is_float(dtype) or COMPUTE[dtype] is not dtype)  # eager rounds intermediate tensors to 16 bits
    x, y, *factors = map(ctx.read, operands)
    ctx.raise_where(~((x >= 0) & (x <= 1)), input.meta.shape, input.meta.device)
    value = (y - 1) * ops.maximum(ops.log1p(-x), -100) - y * ops.maximum(ops.log(x), -100)
    for factor in factors:
        value = value * factor
    if reduction == _NONE:
        return made(ctx, meta, value)
    losses = ctx.fresh(TensorMeta.dense(dtype, input.meta.shape, input.meta.device), value)
    return (mean if reduction == _MEAN else total)(ctx, meta, losses)
