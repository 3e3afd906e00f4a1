"""Tensors on another device, and conversions that may return their operand: `to`, `float`, `cuda`, `contiguous`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.loop import Extern
from quickfuse.ir.values import TensorMeta, contiguous_stride

from . import ops
from .context import Context
from .symbolic import Tensor, whole_load

#: Names of methods whose result is their operand where nothing has to change.
CONVERSIONS = frozenset(
    "to type type_as float double half bfloat16 int long short char byte bool cpu cuda contiguous".split()
)


def on_device(ctx: Context, tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` as an operand of a loop on `device`: a copy by PyTorch, unless it is a number that is passed by value."""
    meta = tensor.meta
    if meta.device == device or (meta.device.type == "cpu" and not meta.shape):
        return tensor
    memory = ctx.memory(tensor)
    copied = TensorMeta(meta.dtype, meta.shape, contiguous_stride(meta.shape), device)
    buffer = ctx.temp(copied)
    kwargs = {"memory_format": torch.contiguous_format, "copy": True}
    ctx.program.steps.append(Extern(torch.Tensor.to, (memory, device), kwargs, [buffer]))
    return ctx.fresh(copied, whole_load(buffer))


def convert(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Any:
    """A conversion to `meta`: the operand itself where it is that already, as in eager."""
    tensor = args[0]
    old = tensor.meta
    same = (old.dtype, old.stride, old.device) == (meta.dtype, meta.stride, meta.device)
    wants_copy = kwargs.get("copy", False) or any(a is True for a in args[3:])
    if same and not wants_copy:
        return tensor
    moved = on_device(ctx, tensor, meta.device)
    return ctx.fresh(meta, ops.via(ctx.read_as(moved, meta.shape, meta.device), meta.dtype))
