"""Rules of operators that store to elements at computed indices, and of the gradients of those that load from them.

The elements of an axis are stored one after the other, so that each sees what those before it have left there; the other
axes are independent.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Expr, Previous
from quickfuse.ir.loop import Access, Buffer, Loop, Store, StoreKind
from quickfuse.ir.values import TensorMeta, broadcast_shape, contiguous_stride, stride_in_order

from . import ops, views
from .calls import RULES, made, rule
from .computed_indices import I64, Checked, axis_of, spread, within
from .context import Context
from .indexing import Selection, basic_part, flattened, vector
from .layout import Shape, axes_as_read, broadcast
from .pooling_gradients import max_pool_gathered
from .promotion import COMPUTE
from .rules import NoRule, into, no_rule_if
from .symbolic import Tensor, may_overlap, same_memory, whole_load

#: (what an element held, what is stored to it) -> what it holds then, in the type that is computed in.
Update = Callable[[Expr, Expr], Expr]


#: The types that a GPU adds to elements of in one operation, whatever other threads do.
_ADDED_ATOMICALLY = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})


class Target:
    """A new tensor that scatters store to, with what it holds before. Its memory has the strides `lies`, or its own."""

    def __init__(
        self, ctx: Context, meta: Any, before: Expr, update: Update | None = None, lies: Shape | None = None
    ) -> None:
        no_rule_if(type(meta) is not TensorMeta or meta.dtype not in COMPUTE)
        self.ctx, self.meta, self.stride = ctx, meta, meta.stride if lies is None else lies
        self.update, self.dtype = update, meta.dtype
        if meta.device.type != "cpu":  # stored in any order, and added atomically, as in eager; 16-bit types in 32 bits
            no_rule_if(torch.are_deterministic_algorithms_enabled() or update not in (None, operator.add))
            self.dtype = self.dtype if update is None else COMPUTE[self.dtype]
            no_rule_if(update is not None and self.dtype not in _ADDED_ATOMICALLY)
        self.buffer: Buffer = ctx.temp(TensorMeta(self.dtype, meta.shape, self.stride, meta.device))
        ctx.store(self.buffer, before)

    def scatter(self, shape: Shape, axes: Sequence[int | Expr], along: int, inside: Expr, value: Expr) -> None:
        """For each index of `shape`, store `value` to the element at `axes`: for each axis of the target, an axis of
        `shape` or a value over it."""
        if 0 in shape:
            return
        strides, offset = [0] * len(shape), None
        for axis, stride in zip(axes, self.stride, strict=True):
            if isinstance(axis, int):
                strides[axis] += stride
            else:
                term = axis * stride if stride != 1 else axis
                offset = term if offset is None else offset + term
        dtype, compute = self.dtype, COMPUTE[self.dtype]
        value = ops.via(value, dtype)
        if self.update is not None:
            value = ops.via(self.update(ops.via(Previous(self.buffer, dtype), compute), ops.via(value, compute)), dtype)
        access = Access(self.buffer, 0, tuple(strides), loose=True)
        store = Store(access, value, StoreKind.SCATTER, "", along, ops.const(0, I64) if offset is None else offset, inside)
        self.ctx.program.steps.append(Loop(shape, [store], self.meta.device))

    def result(self) -> Tensor:
        return made(self.ctx, self.meta, ops.via(whole_load(self.buffer), self.meta.dtype))


_UPDATES: dict[str, Update] = {
    "add": operator.add, "sum": operator.add, "multiply": operator.mul, "prod": operator.mul, "amax": ops.maximum,
    "amin": ops.minimum,
}  # fmt: skip


# --- along one axis ---


def _scattered(ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, src: Any, update: Update | None) -> Tensor:
    shape = input.meta.shape
    axis = axis_of(dim, len(shape))
    no_rule_if(index.meta.ndim != len(shape))
    no_rule_if(any(n > m for k, (n, m) in enumerate(zip(index.meta.shape, shape, strict=True)) if k != axis))
    target = Target(ctx, meta, ctx.formula(input), update)
    checked = Checked(ctx, index, shape[axis], shape, negative=False)
    axes: list[int | Expr] = [*range(len(shape))]
    axes[axis] = checked.value
    value = _source(ctx, src, input.dtype, index.meta.shape)
    target.scatter(index.meta.shape, axes, axis, checked.inside, value)
    return target.result()


def _source(ctx: Context, src: Any, dtype: torch.dtype, shape: Shape) -> Expr:
    """The first elements of a tensor, or a number, over a shape."""
    if type(src) in (int, float, bool):
        return ops.const(src, dtype)
    no_rule_if(type(src) is not Tensor or src.is_number)
    if not src.meta.shape:
        return broadcast(ctx.formula(src), (), shape)
    no_rule_if(len(src.meta.shape) != len(shape) or any(n > m for n, m in zip(shape, src.meta.shape, strict=True)))
    return ctx.read(src)


@rule("scatter_add")
def scatter_add(ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(ctx, meta, input, dim, index, src, operator.add)


@rule("scatter")
def scatter(
    ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, src: Any = None, value: Any = None,
    reduce: Any = None,
) -> Tensor:  # fmt: skip
    no_rule_if(reduce is not None and reduce not in ("add", "multiply"))
    return _scattered(ctx, meta, input, dim, index, src if src is not None else value, _UPDATES.get(reduce))


@rule("scatter_reduce")
def scatter_reduce(
    ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: Any, include_self: bool = True
) -> Tensor:
    no_rule_if(not include_self or reduce not in _UPDATES or input.dtype is torch.bool)
    return _scattered(ctx, meta, input, dim, index, src, _UPDATES[reduce])


def _by_slices(
    ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, source: Any, update: Update | None, *,
    negative: bool = False,
) -> Tensor:  # fmt: skip
    """Slices of `source`, a tensor or a number, stored to slices of `input` one after the other."""
    shape, index = input.meta.shape, vector(ctx, index)
    axis = axis_of(dim, len(shape))
    slices = (*shape[:axis], index.meta.numel, *shape[axis + 1 :])
    if type(source) is Tensor and source.meta.shape:
        no_rule_if(source.meta.shape != slices or source.dtype is not input.dtype)  # eager refuses
    tensors = [*[None] * axis, index]
    return _put(ctx, meta, ctx.formula(input), shape, tensors, source, update, negative=negative)


@rule("index_add")
def index_add(ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
    no_rule_if(input.dtype is torch.bool)
    if alpha == 1:
        return _by_slices(ctx, meta, input, dim, index, source, operator.add)
    factor = ops.const(alpha, COMPUTE[input.dtype])
    return _by_slices(ctx, meta, input, dim, index, source, lambda old, new: old + ops.scaled(new, factor))


@rule("index_copy")
def index_copy(ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    no_rule_if(not source.meta.shape)
    return _by_slices(ctx, meta, input, dim, index, source, None)


@rule("index_fill")
def index_fill(ctx: Context, meta: Any, input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    no_rule_if(type(value) is Tensor and value.meta.shape)
    return _by_slices(ctx, meta, input, dim, index, value, None, negative=True)


# --- by several tensors ---


def _put(
    ctx: Context, meta: Any, before: Expr, shape: Shape, tensors: list[Tensor | None], values: Any, update: Update | None,
    *, negative: bool = True,
) -> Tensor:  # fmt: skip
    """`before`, over `shape`, with `values` at the indices that `tensors` hold: one, or None, for each axis."""
    selection = Selection(shape, tensors)
    value = _as_given(ctx, values, selection.result, meta)
    if len(selection.together) != 1:
        dense = TensorMeta.dense(meta.dtype, selection.result, meta.device)
        tensors = [None if tensor is None else _flat_index(ctx, tensor, selection.together) for tensor in tensors]
        selection = Selection(shape, tensors)
        value = ctx.read(_reshaped(ctx, ctx.fresh(dense, value), selection.result))
    target = Target(ctx, meta, before, update)
    axes, inside = selection.axes(ctx, negative=negative)
    assert inside is not None
    target.scatter(selection.result, axes, selection.first, inside, value)
    return target.result()


def _as_given(ctx: Context, values: Any, shape: Shape, meta: TensorMeta) -> Expr:
    """A number, or a tensor of this type on this device, or of no axes on the host."""
    if type(values) in (int, float, bool):
        return ops.const(values, meta.dtype)
    no_rule_if(type(values) is not Tensor or values.is_number or values.dtype is not meta.dtype)
    no_rule_if(broadcast_shape(values.meta.shape, shape) != shape)
    return ops.via(ctx.read_as(values, shape, meta.device), meta.dtype)


def _reshaped(ctx: Context, tensor: Tensor, shape: Shape) -> Tensor:
    meta = TensorMeta.dense(tensor.dtype, shape, tensor.meta.device)
    view: Tensor = views.view(ctx, torch.Tensor.reshape, (tensor, shape), {}, meta)
    return view


def _flat_index(ctx: Context, index: Tensor, shape: Shape) -> Tensor:
    """An index tensor broadcast to `shape`, as a vector."""
    if index.meta.shape == shape:
        return flattened(ctx, index)
    meta = TensorMeta.dense(index.dtype, shape, index.meta.device)
    whole = ctx.fresh(meta, ctx.stored(ctx.read_as(index, shape, index.meta.device), meta))
    return flattened(ctx, whole)


@rule("index_put _unsafe_index_put _index_put_impl")
def index_put(
    ctx: Context, meta: Any, input: Tensor, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    no_rule_if(not isinstance(indices, (list, tuple)))
    update = operator.add if accumulate else None
    return _put(ctx, meta, ctx.formula(input), input.meta.shape, list(indices), values, update)


def setitem(ctx: Context, tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` where tensors of integers are a part of the index."""
    part, tensors = basic_part(ctx, tensor, index)

    def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        dense = TensorMeta.dense(meta.dtype, meta.shape, meta.device)
        return ctx.read(_put(ctx, dense, ctx.formula(part), meta.shape, tensors, value, None))

    into(ctx, evaluate, part, (part, value), {})


def _in_place(name: str) -> None:
    """The operator that changes its first operand."""

    @rule(f"{name}_", like=RULES[name])
    def changed(ctx: Context, meta: Any, input: Tensor, *others: Any) -> Tensor:
        _check_apart(input, others[0] if isinstance(others[0], (list, tuple)) else others)

        def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], its_meta: TensorMeta) -> Expr:
            dense = TensorMeta.dense(its_meta.dtype, its_meta.shape, its_meta.device)
            return ctx.read(RULES[name].function(ctx, dense, input, *others))

        return into(ctx, evaluate, input, (input, *others), {})


def _check_apart(changed: Any, others: Sequence[Any]) -> None:
    """Refuse what eager refuses: an operand of a scatter in memory that it changes, be it the same elements.

    Raises:
        Unsupported: so that eager raises.
    """
    for other in others:
        shares = type(other) is Tensor and type(changed) is Tensor and other.storage is changed.storage
        if shares and (same_memory(other, changed) or may_overlap(other, changed)):
            raise Unsupported("an in-place operator between overlapping tensors")


for _name in ("scatter_add", "scatter", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_put"):
    _in_place(_name)


# --- gradients ---


@rule("embedding_dense_backward")
def embedding_dense_backward(
    ctx: Context, meta: TensorMeta, grad_output: Tensor, indices: Tensor, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    no_rule_if(scale_grad_by_freq or meta.ndim != 2)
    count, width = indices.meta.numel, meta.shape[1]
    index = flattened(ctx, indices)
    value = ctx.read(_reshaped(ctx, grad_output, (count, width)))
    target = Target(ctx, meta, ops.const(0, meta.dtype), operator.add)
    place = spread(ops.via(ctx.read(index), I64), (count,), [0], 2)
    inside = within(place, meta.shape[0])
    if padding_idx >= 0:
        inside = inside & ops.ne(place, padding_idx)
    target.scatter((count, width), [place, 1], 0, inside, value)
    return target.result()


def _max_pool_backward(
    ndim: int, ctx: Context, meta: TensorMeta, grad_output: Tensor, input: Tensor, kernel_size: Any, stride: Any,
    padding: Any, dilation: Any, ceil_mode: bool, indices: Tensor,
) -> Tensor:  # fmt: skip
    if meta.device.type == "cuda":  # where adding in memory is slow
        with contextlib.suppress(NoRule):
            return max_pool_gathered(ctx, meta, grad_output, indices, ndim, kernel_size, stride, padding, dilation)
    no_rule_if(meta.ndim <= ndim or not meta.numel)  # windows may overlap: one plane of an image is gone through in order
    shape, first = meta.shape, len(meta.shape) - ndim
    flat = (*shape[:first], math.prod(grad_output.meta.shape[first:]))
    value, place = ctx.read(_reshaped(ctx, grad_output, flat)), ctx.read(_reshaped(ctx, indices, flat))
    size = math.prod(shape[first:])
    inside = within(place, size)
    axes: list[int | Expr] = [*range(first)]
    rest = place
    for k in range(first, len(shape)):
        size //= shape[k]
        last = k == len(shape) - 1
        axes.append(rest if last else ops.trunc_div(rest, size))
        rest = rest if last else ops.fmod(rest, size)
    target = Target(ctx, meta, ops.const(0, meta.dtype), operator.add, _stride_as_read(value, flat, shape))
    planes, dense = target.stride[first:], contiguous_stride(shape[first:])
    if planes == tuple([planes[-1] * step for step in dense]):  # then the index is the offset
        axes[first:] = [*([ops.const(0, I64)] * (ndim - 1)), place]
    target.scatter(flat, axes, first, inside, value)
    return target.result()


def _stride_as_read(value: Expr, flat: Shape, shape: Shape) -> Shape:
    """Strides of images whose channels lie as those of `value`, which has the pixels of each as one axis, its last."""
    last = len(flat) - 1
    order = axes_as_read(value, flat, contiguous_stride(flat))
    if last not in order:  # the gradient has one pixel, the image has more
        order = (*order, last)
    pixels = [*range(last, len(shape))]
    return stride_in_order(shape, [axis for k in order for axis in (pixels if k == last else [k])])


for _ndim in (2, 3):
    rule(f"max_pool{_ndim}d_with_indices_backward")(partial(_max_pool_backward, _ndim))
