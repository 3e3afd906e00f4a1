"""Rules of operators that store to elements at computed indices, and of the gradients of those that load from them.

The elements of an axis are stored one after the other, so that each sees what those before it have left there; the other
axes are independent.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Expr, Previous
from quickfuse.ir.loop import Access, Buffer, Loop, Store, StoreKind
from quickfuse.ir.reindex import both
from quickfuse.ir.values import TensorMeta, contiguous_stride, stride_in_order

from . import ops, views
from .calls import RULES, made, rule
from .computed_indices import I64, Checked, axis_of, spread
from .context import Context
from .indexing import basic_part, flattened
from .layout import Shape, axes_as_read, broadcast
from .pooling_gradients import max_pool_gathered
from .promotion import COMPUTE
from .rules import NoRule, into
from .symbolic import Tensor, may_overlap, same_memory, whole_load

#: (what an element held, what is stored to it) -> what it holds then, in the type that is computed in.
Update = Callable[[Expr, Expr], Expr]


#: The types that a GPU adds to elements of in one operation, whatever other threads do.
_ADDED_ATOMICALLY = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})


class Target:
    """A new tensor that scatters store to, with what it holds before. Its memory has the strides `lies`, or its own."""

    def __init__(
        self, ctx: Context, meta: Any, before: Expr, update: Update | None = None, lies: Shape | None = None
    ) -> None:  # fmt: skip
        if type(meta) is not TensorMeta or meta.dtype not in COMPUTE:
            raise NoRule
        self.ctx, self.meta, self.stride = ctx, meta, meta.stride if lies is None else lies
        self.update, self.dtype = update, meta.dtype
        if meta.device.type != "cpu":
            self._demand_any_order()
        self.buffer: Buffer = ctx.temp(TensorMeta(self.dtype, meta.shape, self.stride, meta.device))
        ctx.store(self.buffer, before)

    def _demand_any_order(self) -> None:
        """On a GPU, elements are stored in any order, and additions are atomic, as in eager; in 32 bits for 16-bit types."""
        if torch.are_deterministic_algorithms_enabled() or self.update not in (None, ops.add):
            raise NoRule
        self.dtype = self.dtype if self.update is None else COMPUTE[self.dtype]
        if self.update is not None and self.dtype not in _ADDED_ATOMICALLY:
            raise NoRule

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
                term = ops.mul(axis, ops.const(stride, I64)) if stride != 1 else axis
                offset = term if offset is None else ops.add(offset, term)
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
    "add": ops.add, "sum": ops.add, "multiply": ops.mul, "prod": ops.mul, "amax": ops.maximum, "amin": ops.minimum,
}  # fmt: skip


# --- along one axis ---


def _scattered(
    ctx: Context, meta: Any, input: Any, dim: Any, index: Any, value: Callable[[Shape], Expr], update: Update | None
) -> Tensor:  # fmt: skip
    """`value` gives what is stored, over the shape of `index`."""
    shape = input.meta.shape
    axis = axis_of(dim, len(shape))
    if type(index) is not Tensor or len(index.meta.shape) != len(shape):
        raise NoRule
    if any(n > m for k, (n, m) in enumerate(zip(index.meta.shape, shape, strict=True)) if k != axis):
        raise NoRule
    target = Target(ctx, meta, ctx.formula(input), update)
    checked = Checked(ctx, index, shape[axis], negative=False)
    axes: list[int | Expr] = [*range(len(shape))]
    axes[axis] = checked.value
    target.scatter(index.meta.shape, axes, axis, checked.inside, value(index.meta.shape))
    return target.result()


def _source(ctx: Context, src: Any, dtype: torch.dtype) -> Callable[[Shape], Expr]:
    """The first elements of a tensor, or a number."""
    if type(src) in (int, float, bool):
        return lambda shape: ops.const(src, dtype)

    def value(shape: Shape) -> Expr:
        if type(src) is not Tensor or src.is_number:
            raise NoRule
        if not src.meta.shape:
            return broadcast(ctx.formula(src), (), shape)
        if len(src.meta.shape) != len(shape) or any(n > m for n, m in zip(shape, src.meta.shape, strict=True)):
            raise NoRule
        return ctx.read(src)

    return value


@rule("scatter_add", "input dim index src")
def scatter_add(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, src: Any) -> Tensor:
    return _scattered(ctx, meta, input, dim, index, _source(ctx, src, input.dtype), ops.add)


@rule("scatter", "input dim index src=None value=None reduce=None")
def scatter(
    ctx: Context, meta: Any, input: Any, dim: Any, index: Any, src: Any, value: Any, reduce: Any
) -> Tensor:  # fmt: skip
    if reduce is not None and reduce not in ("add", "multiply"):
        raise NoRule
    stored = src if src is not None else value
    return _scattered(ctx, meta, input, dim, index, _source(ctx, stored, input.dtype), _UPDATES.get(reduce))


@rule("scatter_reduce", "input dim index src reduce include_self=True")
def scatter_reduce(
    ctx: Context, meta: Any, input: Any, dim: Any, index: Any, src: Any, reduce: Any, include_self: Any
) -> Tensor:
    if include_self is not True or reduce not in _UPDATES or input.dtype is torch.bool:
        raise NoRule
    return _scattered(ctx, meta, input, dim, index, _source(ctx, src, input.dtype), _UPDATES[reduce])


def _by_slices(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, source: Any, update: Update | None) -> Tensor:
    """Slices of `source`, a tensor or a number, stored to slices of `input` one after the other."""
    shape = input.meta.shape
    axis = axis_of(dim, len(shape))
    if type(index) is not Tensor or len(index.meta.shape) > 1:
        raise NoRule
    count = index.meta.numel
    slices = (*shape[:axis], count, *shape[axis + 1 :])
    if type(source) is Tensor and source.meta.shape and (source.meta.shape != slices or source.dtype is not input.dtype):
        raise NoRule  # eager refuses
    target = Target(ctx, meta, ctx.formula(input), update)
    place, inside = Checked(ctx, index, shape[axis], negative=update is None and type(source) is not Tensor).spread(
        [axis][: len(index.meta.shape)], len(shape)
    )
    axes: list[int | Expr] = [*range(len(shape))]
    axes[axis] = place
    target.scatter(slices, axes, axis, inside, _source(ctx, source, input.dtype)(slices))
    return target.result()


@rule("index_add", "input dim index source alpha=1")
def index_add(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, source: Any, alpha: Any) -> Tensor:
    if type(alpha) not in (int, float) or type(source) is not Tensor or input.dtype is torch.bool:
        raise NoRule
    if alpha == 1:
        return _by_slices(ctx, meta, input, dim, index, source, ops.add)
    factor = ops.const(alpha, COMPUTE[input.dtype])
    return _by_slices(ctx, meta, input, dim, index, source, lambda old, new: ops.add(old, ops.scaled(new, factor)))


@rule("index_copy", "input dim index source")
def index_copy(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, source: Any) -> Tensor:
    if type(source) is not Tensor or not source.meta.shape:
        raise NoRule
    return _by_slices(ctx, meta, input, dim, index, source, None)


@rule("index_fill", "input dim index value")
def index_fill(ctx: Context, meta: Any, input: Any, dim: Any, index: Any, value: Any) -> Tensor:
    if type(value) is Tensor and value.meta.shape:
        raise NoRule
    return _by_slices(ctx, meta, input, dim, index, value, None)


# --- by several tensors ---


def _put(
    ctx: Context, meta: Any, before: Expr, shape: Shape, tensors: list[Tensor | None], values: Any, accumulate: bool
) -> Tensor:  # fmt: skip
    """`before`, over `shape`, with `values` at the indices that `tensors` hold: one, or None, for each axis."""
    tensors = tensors + [None] * (len(shape) - len(tensors))
    used = [k for k, tensor in enumerate(tensors) if tensor is not None]
    if not used or len(tensors) != len(shape) or any(type(tensors[k]) is not Tensor for k in used):
        raise NoRule
    chosen = [tensors[k] for k in used]
    together = torch.broadcast_shapes(*[tensor.meta.shape for tensor in chosen])  # type: ignore[union-attr]
    adjacent = used == list(range(used[0], used[-1] + 1))
    first = used[0] if adjacent else 0
    slices = [n for k, n in enumerate(shape) if k not in used]
    given = (*slices[:first], *together, *slices[first:])  # the shape of what `values` is broadcast to
    value = _as_given(ctx, values, given, meta.dtype)
    if len(together) != 1:
        count = 1
        for n in together:
            count *= n
        dense = TensorMeta(meta.dtype, given, contiguous_stride(given), meta.device)
        flat = (*slices[:first], count, *slices[first:])
        value = ctx.read(_reshaped(ctx, ctx.fresh(dense, value), flat))
        chosen = [_flat_index(ctx, tensor, together) for tensor in chosen]  # type: ignore[arg-type]
        given = flat
    target = Target(ctx, meta, before, ops.add if accumulate else None)
    axes: list[int | Expr] = []
    inside: Expr | None = None
    for k in range(len(shape)):
        if k in used:
            tensor = chosen[used.index(k)]
            place, within = Checked(ctx, tensor, shape[k], negative=True).spread([first], len(given))  # type: ignore[arg-type]
            axes.append(place)
            inside = both(inside, within)
        else:
            before_it = sum(j not in used for j in range(k))
            axes.append(before_it if before_it < first else before_it + 1)
    assert inside is not None
    target.scatter(given, axes, first, inside, value)
    return target.result()


def _as_given(ctx: Context, values: Any, shape: Shape, dtype: torch.dtype) -> Expr:
    if type(values) in (int, float, bool):
        return ops.const(values, dtype)
    if type(values) is not Tensor or values.is_number or values.dtype is not dtype:
        raise NoRule
    its = values.meta.shape
    while len(its) > len(shape) and its[0] == 1:
        its = its[1:]
    if its != values.meta.shape:
        raise NoRule
    try:
        if torch.broadcast_shapes(its, shape) != shape:
            raise NoRule
    except RuntimeError:
        raise NoRule from None
    return ops.via(ctx.read_as(values, shape, values.meta.device), dtype)


def _reshaped(ctx: Context, tensor: Tensor, shape: Shape) -> Tensor:
    meta = TensorMeta(tensor.dtype, shape, contiguous_stride(shape), tensor.meta.device)
    view: Tensor = views.view(ctx, torch.Tensor.reshape, (tensor, shape), {}, meta)
    return view


def _flat_index(ctx: Context, index: Tensor, shape: Shape) -> Tensor:
    """An index tensor broadcast to `shape`, as a vector."""
    if index.meta.shape == shape:
        return flattened(ctx, index)
    meta = TensorMeta(index.dtype, shape, contiguous_stride(shape), index.meta.device)
    whole = ctx.fresh(meta, ctx.stored(ctx.read_as(index, shape, index.meta.device), meta))
    return flattened(ctx, whole)


@rule("index_put _unsafe_index_put _index_put_impl", "input indices values accumulate=False unsafe=False")
def index_put(ctx: Context, meta: Any, input: Any, indices: Any, values: Any, accumulate: Any, unsafe: Any) -> Tensor:
    if type(accumulate) is not bool or not isinstance(indices, (list, tuple)):
        raise NoRule
    return _put(ctx, meta, ctx.formula(input), input.meta.shape, list(indices), values, accumulate)


def setitem(ctx: Context, tensor: Tensor, index: Any, value: Any) -> None:
    """`tensor[index] = value` where tensors of integers are a part of the index."""
    part, tensors = basic_part(ctx, tensor, index)

    def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        dense = TensorMeta(meta.dtype, meta.shape, contiguous_stride(meta.shape), meta.device)
        return ctx.read(_put(ctx, dense, ctx.formula(part), meta.shape, tensors, value, False))

    into(ctx, evaluate, part, (part, value), {})


def _in_place(name: str) -> None:
    """The operator that changes its first operand."""

    @rule(f"{name}_", RULES[name].signature)
    def changed(ctx: Context, meta: Any, input: Any, **others: Any) -> Tensor:
        _check_apart(input, others.get("indices", [*others.values()]))

        def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], its_meta: TensorMeta) -> Expr:
            dense = TensorMeta(its_meta.dtype, its_meta.shape, contiguous_stride(its_meta.shape), its_meta.device)
            return ctx.read(RULES[name].function(ctx, dense, input=input, **others))

        return into(ctx, evaluate, input, (input, *others.values()), {})


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


@rule("embedding_dense_backward", "grad_output indices num_weights padding_idx scale_grad_by_freq")
def embedding_dense_backward(
    ctx: Context, meta: Any, grad_output: Any, indices: Any, num_weights: Any, padding_idx: Any, scale_grad_by_freq: Any
) -> Tensor:
    if scale_grad_by_freq or type(padding_idx) is not int or type(meta) is not TensorMeta or len(meta.shape) != 2:
        raise NoRule
    count, width = indices.meta.numel, meta.shape[1]
    index = flattened(ctx, indices)
    value = ctx.read(_reshaped(ctx, grad_output, (count, width)))
    target = Target(ctx, meta, ops.const(0, meta.dtype), ops.add)
    place = spread(ops.via(ctx.read(index), I64), (count,), [0], 2)
    inside = ops.bit_and(ops.ge(place, ops.const(0, I64)), ops.lt(place, ops.const(meta.shape[0], I64)))
    if padding_idx >= 0:
        inside = ops.bit_and(inside, ops.ne(place, ops.const(padding_idx, I64)))
    target.scatter((count, width), [place, 1], 0, inside, value)
    return target.result()


def _max_pool_backward(
    ctx: Context, meta: Any, *, ndim: int, grad_output: Any, indices: Any, kernel_size: Any, stride: Any, padding: Any,
    dilation: Any, **others: Any,
) -> Tensor:  # fmt: skip
    if type(meta) is TensorMeta and meta.device.type == "cuda":  # where adding in memory is slow
        with contextlib.suppress(NoRule):
            return max_pool_gathered(ctx, meta, grad_output, indices, ndim, kernel_size, stride, padding, dilation)
    return _max_pool_scattered(ctx, meta, ndim, grad_output, indices)


def _max_pool_scattered(ctx: Context, meta: Any, ndim: int, grad_output: Any, indices: Any) -> Tensor:
    """Windows may overlap, so one plane of an image is gone through in order."""
    if type(meta) is not TensorMeta or len(meta.shape) <= ndim or not meta.numel:
        raise NoRule
    shape, first = meta.shape, len(meta.shape) - ndim
    flat = (*shape[:first], math.prod(grad_output.meta.shape[first:]))
    value, place = ctx.read(_reshaped(ctx, grad_output, flat)), ctx.read(_reshaped(ctx, indices, flat))
    size = math.prod(shape[first:])
    inside = ops.bit_and(ops.ge(place, ops.const(0, I64)), ops.lt(place, ops.const(size, I64)))
    axes: list[int | Expr] = [*range(first)]
    rest = place
    for k in range(first, len(shape)):
        size //= shape[k]
        last = k == len(shape) - 1
        axes.append(rest if last else ops.trunc_div(rest, ops.const(size, I64)))
        rest = rest if last else ops.fmod(rest, ops.const(size, I64))
    target = Target(ctx, meta, ops.const(0, meta.dtype), ops.add, _stride_as_read(value, flat, shape))
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
    rule(f"max_pool{_ndim}d_with_indices_backward",
         "grad_output input kernel_size stride padding dilation ceil_mode indices")(
        partial(_max_pool_backward, ndim=_ndim))  # fmt: skip
