"""Rules of ATen's own forms of operators: as users know them, but with results that only their gradients need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .context import Context
from .losses import REDUCTIONS, Classes
from .normalisation import BatchNormalised, group_normalised, grouped, layer_normalised, rms_normalised
from .promotion import is_float
from .reductions import Reading, log_softmax_of, softmax_of
from .rules import NoRule
from .symbolic import Tensor


def several(meta: Any, count: int) -> Sequence[Any]:
    """The metadata of `count` results."""
    if not isinstance(meta, (list, tuple)) or len(meta) != count:
        raise NoRule
    return meta


def optional(ctx: Context, meta: Any, value: Expr | None) -> Tensor | None:
    """A result that may not be wanted: then it has no metadata."""
    if meta is None or value is None:
        return None
    return made(ctx, meta, ops.via(value, meta.dtype))


for _name, _formula in {"_softmax": softmax_of, "_log_softmax": log_softmax_of}.items():

    @rule(_name, "input dim half_to_float=False")
    def softmax(
        ctx: Context, meta: Any, input: Any, dim: Any, half_to_float: Any, formula: Any = _formula
    ) -> Tensor:
        if type(meta) is not TensorMeta or not is_float(meta.dtype):
            raise NoRule
        x = Reading(ctx, input, dim, meta.dtype if half_to_float else None)
        return made(ctx, meta, ops.via(formula(x.space, x.value), meta.dtype))


# --- normalisation, with the statistics ---


@rule("native_layer_norm", "input normalized_shape weight bias eps")
def layer_norm(
    ctx: Context, meta: Any, input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any
) -> list[Tensor | None]:
    metas = several(meta, 3)
    space, value, mean, scale = layer_normalised(ctx, input, normalized_shape, weight, bias, eps)
    return [optional(ctx, metas[0], value), *_rows(ctx, metas[1:], [space.result(v, True) for v in (mean, scale)])]


def _rows(ctx: Context, metas: Sequence[Any], values: Sequence[Expr]) -> list[Tensor | None]:
    return [optional(ctx, meta, value) for meta, value in zip(metas, values, strict=True)]


@rule("_fused_rms_norm", "input normalized_shape weight=None eps=None")
def rms_norm(ctx: Context, meta: Any, input: Any, normalized_shape: Any, weight: Any, eps: Any) -> list[Tensor | None]:
    metas = several(meta, 2)
    space, value, scale = rms_normalised(ctx, input, normalized_shape, weight, eps)
    return [optional(ctx, metas[0], value), *_rows(ctx, metas[1:], [space.result(scale, True)])]


@rule("native_group_norm", "input weight bias N C HxW group eps")
def group_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: Any, eps: Any
) -> list[Tensor | None]:
    metas = several(meta, 3)
    space, value, mean, scale = group_normalised(ctx, input, group, weight, bias, eps)
    return [grouped(metas[0], group, value), *_rows(ctx, metas[1:], [space.result(v, False) for v in (mean, scale)])]


_STATISTICS = "running_mean running_var training momentum eps"


@rule("native_batch_norm _native_batch_norm_legit", f"input weight bias {_STATISTICS}")
def batch_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any,
    momentum: Any, eps: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Running statistics are changed in place."""
    results = several(meta, 3)
    normalised = BatchNormalised(ctx, input, running_mean, running_var, weight, bias, training, eps)
    if training is True:
        normalised.move(ctx, running_mean, running_var, momentum)
    return _batch_norm_results(ctx, results, normalised, training)


@rule("_native_batch_norm_legit_functional", f"input weight bias {_STATISTICS}")
def functional_batch_norm(
    ctx: Context, meta: Any, input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: Any,
    momentum: Any, eps: Any,
) -> list[Tensor | None]:  # fmt: skip
    """Running statistics are two further results."""
    metas = several(meta, 5)
    normalised = BatchNormalised(ctx, input, running_mean, running_var, weight, bias, training, eps)
    results = _batch_norm_results(ctx, metas, normalised, training)
    if training is True:
        running = [
            normalised.moved(ctx, running_mean, normalised.mean, momentum),
            normalised.moved(ctx, running_var, normalised.unbiased, momentum),
        ]
    else:
        running = [ctx.read(running_mean), ctx.read(running_var)]
    return [*results, *_rows(ctx, metas[3:], running)]


def _batch_norm_results(
    ctx: Context, metas: Sequence[Any], normalised: BatchNormalised, training: Any
) -> list[Tensor | None]:
    value = optional(ctx, metas[0], normalised.value)
    if training is True:
        statistics = [normalised.space.result(v, False) for v in (normalised.mean, normalised.inverse)]
        return [value, *_rows(ctx, metas[1:3], statistics)]
    if any(m is not None and m.numel for m in metas[1:3]):
        raise NoRule
    return [value, *(optional(ctx, m, ops.const(0, m.dtype)) for m in metas[1:3])]


# --- losses, with the weight that they were divided by ---


@rule("nll_loss_forward nll_loss2d_forward", "input target weight reduction ignore_index")
def nll_loss(
    ctx: Context, meta: Any, input: Any, target: Any, weight: Any, reduction: Any, ignore_index: Any
) -> list[Tensor | None]:
    metas = several(meta, 2)
    classes = Classes(ctx, input, target, weight, ignore_index)
    losses = classes.negative(classes.of_target(classes.value))
    loss = classes.reduced(metas[0], losses, REDUCTIONS.get(reduction))
    total = ops.const(0, metas[1].dtype) if reduction == 0 else classes.total_weight()
    return [loss, optional(ctx, metas[1], total)]


@rule("log_sigmoid_forward", "input")
def log_sigmoid(ctx: Context, meta: Any, input: Any) -> list[Tensor | None]:
    """The second result is what the gradient's formula uses on the CPU: exp(-|x|)."""
    metas = several(meta, 2)
    if not is_float(input.dtype) or metas[1] is None or metas[1].shape != input.meta.shape:
        raise NoRule
    compute = torch.float64 if input.dtype is torch.float64 else torch.float32
    x = ops.via(ctx.read(input), compute)
    small = ops.exp(ops.neg(ops.absolute(x)))
    value = ops.sub(ops.minimum(ops.like(x, 0), x), ops.log1p(small))
    return _rows(ctx, metas, [value, small])
