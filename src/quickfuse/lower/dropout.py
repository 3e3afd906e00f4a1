"""Dropout on a GPU as a formula on elements, with the random numbers that PyTorch's kernel would draw.

A call reserves them (`Draw`): it moves the generator on as PyTorch would, and gives kernels the seed and the offset. So the
mask is a value like any other, computed with what comes before it and after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.expr import Const, Expr, Index, Load, Op, Scalar, cast
from quickfuse.ir.loop import Access, Buffer, Draw, Extern
from quickfuse.ir.philox import Stream, operation_of, vector_width
from quickfuse.ir.reindex import affine
from quickfuse.ir.values import TensorMeta, contiguous_stride, is_dense

from . import ops
from .calls import several
from .context import Context
from .parameters import no_rule_if
from .promotion import COMPUTE
from .rules import evaluator, given
from .symbolic import Tensor

_NAMES = ("input", "p", "train")
_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_NUMBER = TensorMeta(torch.int64, (), (), torch.device("cpu"))


def native_dropout(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    """`torch.native_dropout`, which returns the mask as well."""
    return [*_dropped(ctx, args, kwargs, *several(meta, 2))]


def dropout(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: Any) -> Any:
    """`torch.dropout`, where PyTorch calls the other one."""
    no_rule_if(type(meta) is not TensorMeta)
    mask_meta = TensorMeta(torch.bool, meta.shape, meta.stride, meta.device)
    return _dropped(ctx, args, kwargs, meta, mask_meta)[0]


@evaluator("native_dropout_backward")
def native_dropout_backward(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
    """PyTorch's kernel for a GPU rounds once; on the CPU there are two products."""
    no_rule_if(kwargs or len(args) != 3 or meta.device.type != "cuda" or meta.dtype not in _TYPES)
    gradient, mask, scale = args
    no_rule_if(type(gradient) is not Tensor or type(mask) is not Tensor or gradient.dtype is not meta.dtype)
    work = COMPUTE[meta.dtype]
    x, kept = (ops.via(ctx.read_as(t, meta.shape, meta.device), work) for t in (gradient, mask))
    return ops.via(kept * x * given(scale, work), meta.dtype)


def _dropped(
    ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], out_meta: Any, mask_meta: Any
) -> tuple[Tensor, Tensor]:
    """The result, and the mask, of `native_dropout`."""
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    no_rule_if({*given} != {*_NAMES})
    x, p, train = (given[name] for name in _NAMES)
    no_rule_if(type(x) is not Tensor or train is not True or x.dtype not in _TYPES or type(x.meta) is not TensorMeta)
    no_rule_if(type(p) is not Scalar and not (type(p) in (int, float) and 0 < p < 1))  # capture guards that for a number
    device, count = x.meta.device, x.meta.numel
    stream = ctx.stream(device)
    no_rule_if(stream is None or not 0 < count < 1 << 31)
    assert stream is not None
    work = COMPUTE[x.dtype]
    value = ops.via(ctx.read_as(x, x.meta.shape, device), work)
    keep, scale = _keep_and_scale(p, work)
    mask = ctx.fresh(mask_meta, ops.via(_random_numbers(ctx, x, stream), work) < keep)
    ctx.offer(mask.storage, 2)
    kept = value * ops.via(ctx.read(mask), work) * scale
    return ctx.fresh(out_meta, ops.via(kept, out_meta.dtype)), mask


def _keep_and_scale(p: Any, work: torch.dtype) -> tuple[Expr, Expr]:
    """The probability of keeping an element, and its inverse, rounded as PyTorch's kernel does."""
    if type(p) is not Scalar:
        keep = ops.const(1.0 - p, work)
        assert isinstance(keep, Const)
        return keep, ops.const(1.0 / keep.value if keep.value else float("inf"), work)
    probability = cast(p, torch.float64)
    rounded = ops.via(1.0 - probability, work)
    return rounded, 1.0 / rounded


def _random_numbers(ctx: Context, x: Tensor, stream: Stream) -> Expr:
    """A number for each element of a tensor, drawn now."""
    meta, buffer = x.meta, x.storage.buffer
    no_rule_if(not _begins_aligned(ctx, x))
    shape, count = meta.shape, meta.numel
    width = vector_width(count, x.offset, meta.dtype) if is_dense(shape, meta.stride) else 1
    strides = meta.stride if width > 1 else contiguous_stride(shape)
    axes = sorted([k for k, size in enumerate(shape) if size > 1], key=lambda k: strides[k])
    # A batch's size and length are in strides: these are no constants of a kernel, but for those of an element and a row.
    near, far = axes[:2], axes[2:]
    cells = [ctx.temp(_NUMBER) for _ in range(2 + len(far))]
    aligned: tuple[Buffer, ...] = () if buffer is None or width == 1 else (buffer,)
    reserve = stream.reserve(stream.advance(count), tuple([strides[k] for k in far]))
    draw = Draw(reserve, aligned, {}, cells, may_fail=True)
    ctx.program.steps.append(draw)
    ctx.keep_order(draw)
    seed, offset, *steps = (Load(Access(cell, 0, (0,) * len(shape)), torch.int64) for cell in cells)
    element = affine(0, tuple([strides[k] if k in near else 0 for k in range(len(shape))]))
    for axis, step in zip(far, steps, strict=True):
        element = Index(axis) * step + element
    threads = Const(stream.threads(count), torch.int32)
    return Op(operation_of(width), (seed, offset, cast(element, torch.int32), threads), torch.float32)


def _begins_aligned(ctx: Context, x: Tensor) -> bool:
    """Whether it is known, or can be asked in a call, that the memory of a tensor begins at a multiple of 16 bytes in eager
    mode: not for what shares memory in ways that only PyTorch knows."""
    storage = x.storage
    if storage.buffer is not None:
        return True
    if any(storage in pair for pair in ctx.aliases):
        return False
    if not isinstance(storage.value, Load):
        return True
    made = storage.value.access.buffer
    maker = next((step for step in ctx.program.steps if isinstance(step, Extern) and made in step.outputs), None)
    return maker is None or len(maker.outputs) == 1
