"""Rules of operators that make tensors: constants, copies and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quickfuse.ir.expr import Expr, Index, Scalar
from quickfuse.ir.modes import filling_of_memory
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .promotion import COMPUTE, check_supported, is_float
from .rules import Evaluator, evaluator, no_rule_if, operand
from .symbolic import Tensor, whole_load

# The last of the first is zeros without memory.
evaluator("zero zeros zeros_like new_zeros _efficientzerotensor")(lambda ctx, args, kwargs, meta: ops.const(0, meta.dtype))
evaluator("ones ones_like new_ones")(lambda ctx, args, kwargs, meta: ops.const(1, meta.dtype))


@evaluator("empty empty_like empty_strided new_empty new_empty_strided")
def empty(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
    """Memory without contents may hold anything, so also zeros. Where PyTorch fills it, so that reading it is noticed, it is
    with what no program is likely to compute."""
    if not all(filling_of_memory().values()):
        return ops.const(0, meta.dtype)
    if is_float(meta.dtype):
        return ops.const(math.nan, meta.dtype)
    check_supported(meta.dtype)
    return ops.const(True if meta.dtype is torch.bool else torch.iinfo(meta.dtype).max, meta.dtype)


def _filled(position: int, *names: str) -> Evaluator:
    """The evaluator of an operator that fills with the argument at `position`, also known as one of `names`."""

    def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        value = args[position] if len(args) > position else next((kwargs[n] for n in names if n in kwargs), None)
        no_rule_if(type(value) is Tensor and value.meta.shape)
        return _converted(ctx, value, meta)

    return evaluate


evaluator("fill")(_filled(1, "value"))
evaluator("full full_like new_full")(_filled(1, "fill_value"))
evaluator("tensor scalar_tensor")(_filled(0, "data", "s"))


evaluator("clone")(lambda ctx, args, kwargs, meta: ctx.read(args[0] if args else kwargs["input"]))


@evaluator("copy")
def copy(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
    source = args[1] if len(args) > 1 else kwargs.get("src", kwargs.get("other"))
    if type(source) is Tensor:
        source = on_device(ctx, source, meta.device)
    return _converted(ctx, source, meta)


def _converted(ctx: Context, value: Any, meta: TensorMeta) -> Expr:
    """A value in the result's type, with no arithmetic in between."""
    return operand(ctx, value, meta.shape, meta.device, meta.dtype, meta.dtype, exact=True)


@evaluator("arange")
def arange(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
    """`start + step * index`, which eager computes in integers or in the widest float of the device."""
    bounds = {"start": 0, "step": 1}
    bounds.update(zip(("end",) if len(args) == 1 else ("start", "end", "step"), args, strict=False))
    bounds.update({name: kwargs[name] for name in ("start", "end", "step") if name in kwargs})
    start, step = bounds["start"], bounds["step"]
    no_rule_if(any(type(v) not in (int, float, Scalar) for v in (start, step)))
    if not is_float(meta.dtype):
        work = torch.int64
    else:
        work = torch.float64 if meta.device.type == "cpu" else COMPUTE[meta.dtype]
    first, stride = (_converted(ctx, v, TensorMeta(work, (), (), meta.device)) for v in (start, step))
    value = ops.scaled(ops.via(Index(0), work), stride)
    if is_float(work) or not ops.is_const(first, 0):  # 0.0 plus -0.0 is 0.0
        value = first + value
    return ops.via(value, meta.dtype)


# --- conversions and other devices ---

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
    copied = TensorMeta.dense(meta.dtype, meta.shape, device)
    moved = ctx.call(torch.Tensor.to, (memory, device), copied, memory_format=torch.contiguous_format, copy=True)
    return ctx.fresh(copied, whole_load(moved))


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
