"""Rules of operators that put tensors together or repeat them: concatenations, pads, rolls."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta

from . import ops, views
from .calls import made, rule
from .computed_indices import at, axis_of, source, stepping
from .context import Context
from .indexing import flattened
from .layout import Shape, read_order
from .promotion import SUPPORTED
from .rules import no_rule_if
from .symbolic import Tensor


class Segment(NamedTuple):
    """`length` indices of an axis, which mean `first`, `first + step`, ... on that axis of another value."""

    value: Expr
    length: int
    first: int
    step: int


def along(ctx: Context, shape: Shape, axis: int, segments: Sequence[Segment]) -> Expr:
    """A value over `shape` whose segments along an axis come one after the other from other values."""
    ctx.program.chooses = True
    parts: list[tuple[int, Segment]] = []
    end = 0
    for segment in segments:
        if segment.length > 0:
            parts.append((end, segment))
            end += segment.length
    assert end == shape[axis]
    if not parts:
        return ops.const(0, segments[0].value.dtype)
    result: Expr | None = None
    for begin, segment in reversed(parts):
        axes: list[int | Expr] = [*range(len(shape))]
        axes[axis] = stepping(axis, segment.step, segment.first - segment.step * begin)
        here: Expr | None = Index(axis) < begin + segment.length if result is not None else None
        inside = both(Index(axis) >= begin, here) if begin else here
        value = at(segment.value, axes, len(shape), inside)
        result = value if here is None else ops.where(here, value, result)  # type: ignore[arg-type]
    assert result is not None
    return result


def part(ctx: Context, tensor: Tensor, dtype: torch.dtype) -> Expr:
    """The value of a tensor that becomes a part of another."""
    return ops.via(source(ctx, tensor, COSTS.store_before_joining), dtype)


# --- concatenations ---


def _tensors(tensors: Any) -> list[Tensor]:
    no_rule_if(not isinstance(tensors, (list, tuple)) or not tensors)
    for tensor in tensors:
        no_rule_if(type(tensor) is not Tensor or tensor.is_number)
        no_rule_if(tensor.meta.device != tensors[0].meta.device or tensor.dtype not in SUPPORTED)
    return list(tensors)


def joined(ctx: Context, meta: TensorMeta, tensors: list[Tensor], dim: int) -> Tensor:
    """The concatenation along an axis. Empty vectors do not count, as in eager."""
    axis = axis_of(dim, meta.ndim)
    tensors = [t for t in tensors if t.meta.shape != (0,)]
    no_rule_if(sum(t.meta.shape[axis] for t in tensors) != meta.shape[axis])
    if not meta.numel:
        return made(ctx, meta, ops.const(0, meta.dtype))
    segments = [Segment(part(ctx, t, meta.dtype), t.meta.shape[axis], 0, 1) for t in tensors]
    if len(segments) <= COSTS.most_joined:
        return made(ctx, meta, along(ctx, meta.shape, axis, segments))
    return _stored(ctx, meta, axis, segments)


def _stored(ctx: Context, meta: TensorMeta, axis: int, segments: list[Segment]) -> Tensor:
    """Many segments, stored a few at a time."""
    chunks = [segments[k : k + COSTS.most_joined] for k in range(0, len(segments), COSTS.most_joined)]
    parts = []
    for chunk in chunks:
        length = sum(segment.length for segment in chunk)
        shape = (*meta.shape[:axis], length, *meta.shape[axis + 1 :])
        its_meta = TensorMeta.dense(meta.dtype, shape, meta.device)
        value = along(ctx, shape, axis, chunk)
        parts.append(ctx.fresh(its_meta, ctx.stored(value, read_order(value, its_meta))))
    return joined(ctx, meta, parts, axis)


@rule("cat concat concatenate _cat")
def cat(ctx: Context, meta: TensorMeta, tensors: Any, dim: int = 0) -> Tensor:
    return joined(ctx, meta, _tensors(tensors), dim)


@rule("stack")
def stack(ctx: Context, meta: TensorMeta, tensors: Any, dim: int = 0) -> Tensor:
    members = _tensors(tensors)
    no_rule_if(meta.ndim < 2)
    axis = axis_of(dim, meta.ndim)
    return joined(ctx, meta, [_with_axis(ctx, member, axis) for member in members], axis)


def _with_axis(ctx: Context, tensor: Tensor, axis: int) -> Tensor:
    shape = (*tensor.meta.shape[:axis], 1, *tensor.meta.shape[axis:])
    meta = TensorMeta.dense(tensor.dtype, shape, tensor.meta.device)
    view: Tensor = views.view(ctx, torch.Tensor.unsqueeze, (tensor, axis), {}, meta)
    return view


# --- pads ---


def _pairs(pad: Any, ndim: int) -> list[tuple[int, int]]:
    """For each axis what is added before and after it; `pad` has pairs for the last axes, the last one first."""
    no_rule_if(not isinstance(pad, (list, tuple)) or any(type(p) is not int for p in pad) or len(pad) % 2)
    count = len(pad) // 2
    no_rule_if(count > ndim)
    return [(0, 0)] * (ndim - count) + [(pad[2 * k], pad[2 * k + 1]) for k in reversed(range(count))]


@rule("constant_pad_nd")
def constant_pad(ctx: Context, meta: TensorMeta, input: Tensor, pad: Any, value: float | bool = 0) -> Tensor:
    shape = list(input.meta.shape)
    result = part(ctx, input, meta.dtype)
    fill = ops.const(value, meta.dtype)
    for axis, (before, behind) in enumerate(_pairs(pad, len(shape))):
        if before or behind:
            size = shape[axis]
            shape[axis] = size + before + behind
            kept = size + min(before, 0) + min(behind, 0)
            segments = [Segment(fill, before, 0, 1), Segment(result, kept, max(-before, 0), 1), Segment(fill, behind, 0, 1)]
            result = along(ctx, tuple(shape), axis, segments)
    no_rule_if(tuple(shape) != meta.shape)
    return made(ctx, meta, result)


def _padded(mode: str, ctx: Context, meta: TensorMeta, input: Tensor, padding: Any) -> Tensor:
    shape = list(input.meta.shape)
    result = part(ctx, input, input.dtype)
    for axis, (before, behind) in enumerate(_pairs(padding, len(shape))):
        if before or behind:
            size = shape[axis]
            most = size - 1 if mode == "reflect" else max(before, behind)
            no_rule_if(not 0 <= before <= most or not 0 <= behind <= most or not size)
            shape[axis] = size + before + behind
            result = along(ctx, tuple(shape), axis, _border(mode, result, size, before, behind))
    no_rule_if(tuple(shape) != meta.shape)
    return made(ctx, meta, result)


def _border(mode: str, value: Expr, size: int, before: int, behind: int) -> list[Segment]:
    middle = Segment(value, size, 0, 1)
    if mode == "reflect":
        return [Segment(value, before, before, -1), middle, Segment(value, behind, size - 2, -1)]
    return [Segment(value, before, 0, 0), middle, Segment(value, behind, size - 1, 0)]


for _name in ("reflect", "replicate"):
    for _n in (1, 2, 3):
        rule(f"{'reflection' if _name == 'reflect' else 'replication'}_pad{_n}d")(partial(_padded, _name))


# --- rolls and flips ---


@rule("roll")
def roll(ctx: Context, meta: TensorMeta, input: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    no_rule_if(isinstance(shifts, Tensor))  # a number that only running the graph tells
    shifts = [shifts] if type(shifts) is int else list(shifts)
    dims = [dims] if type(dims) is int else list(dims or ())
    shape = input.meta.shape
    if not dims and len(shifts) == 1 and len(shape) > 1:  # of all elements in a row
        flat = flattened(ctx, input)
        rolled = roll(ctx, flat.meta, flat, shifts, [0])
        return views.view(ctx, torch.Tensor.reshape, (rolled, shape), {}, meta)  # type: ignore[no-any-return]
    dims = dims or ([0] if len(shape) == 1 else [])
    no_rule_if(not dims or len(dims) != len(shifts) or not input.meta.numel)
    no_rule_if(any(type(n) is not int for n in [*shifts, *dims]))
    result = part(ctx, input, input.dtype)
    for shift, dim in zip(shifts, dims, strict=True):
        axis = dim % len(shape)
        size = shape[axis]
        if shift := shift % size:
            moved = [Segment(result, shift, size - shift, 1), Segment(result, size - shift, 0, 1)]
            result = along(ctx, shape, axis, moved)
    return made(ctx, meta, result)


@rule("flip")
def flip(ctx: Context, meta: TensorMeta, input: Tensor, *dims: Any) -> Tensor:
    shape, ndim = input.meta.shape, input.meta.ndim
    no_rule_if(not input.meta.numel)
    turned = {axis_of(d, ndim) for d in (dims[0] if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else dims)}
    axes = [stepping(k, -1, size - 1) if k in turned else k for k, size in enumerate(shape)]
    return made(ctx, meta, at(part(ctx, input, input.dtype), axes, ndim, None))
