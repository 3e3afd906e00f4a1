"""PyTorch's operators that take Python functions, written in Python: what capture follows in place of them.

PyTorch has a compiler trace these functions into graphs of their own; in a captured program they are a part of it like any
other function. What is here says what an operator computes, as PyTorch does where nothing compiles it. Its functions around
the operators (`torch.nn.attention.flex_attention.flex_attention`, say) check arguments and bring them into order: they
are captured as they are, on the way that they take for a compiler (see `asks_for_operators`).
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.amp import autocast_mode
from torch.fx import traceback
from torch.nn.attention import flex_attention as public
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree


def _of(module: str, name: str) -> Any:
    """Something of a module of PyTorch's operators, of which some are hidden behind functions of their names."""
    return getattr(importlib.import_module(f"torch._higher_order_ops.{module}"), name)


_scan_by_halves = _of("associative_scan", "generic_associative_scan")


class IndexingMode(TorchFunctionMode):
    """What PyTorch's `TransformGetItemToIndex` is: in it, indices of one element stay tensors, where indexing would read
    their values. Captured code enters it in its own way; Python enters it where a function cannot be captured."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__getitem__:
            tensor, indices = args[0], pytree.tree_leaves(args[1])
            if all(isinstance(index, (torch.Tensor, int)) for index in indices):
                place = {"dtype": torch.int64, "device": tensor.device}
                made = [index if isinstance(index, torch.Tensor) else torch.tensor(index, **place) for index in indices]
                return torch.ops.aten.index(tensor, made)
        return func(*args, **(kwargs or {}))


def attend(
    query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, kernel_options: Any,
    score_mod_other_buffers: Any = (), mask_mod_other_buffers: Any = (),
) -> Any:  # fmt: skip
    """The operator of `flex_attention`: (result, logarithms to base 2 of the sums, largest scores)."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = [autocast_mode._cast(t, device, dtype) for t in (query, key, value)]
        with torch.autocast(device, enabled=False):
            return attend(
                query, key, value, score_mod, block_mask, scale, kernel_options, score_mod_other_buffers,
                mask_mod_other_buffers,
            )  # fmt: skip
    strides = query.stride()
    plain = is_nested()
    if not plain:
        query, key, value = [_InOrder.apply(t) for t in (query, key, value)]
    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = torch.repeat_interleave(key, groups, dim=1), torch.repeat_interleave(value, groups, dim=1)
    batch = query.size(0)
    if not (batch == key.size(0) or (batch > 1 and key.size(0) == 1)):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.size(0)}")
    key, value = key.expand((batch, *key.size()[1:])), value.expand((batch, *value.size()[1:]))
    products = _products if plain else _Products.apply
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (products(query, key, precision) * scale).to(precision)
    scores = _changed(scores, score_mod, block_mask[-1], score_mod_other_buffers, mask_mod_other_buffers)
    # A row without any score that counts has the weights 0, and no gradient.
    never = float("-inf")
    empty = torch.all(scores == never, dim=-1)
    sums = torch.where(empty.unsqueeze(-1), 0.0, scores).logsumexp(dim=-1)
    sums = torch.where(empty, never, sums)
    largest = torch.max(scores.detach(), dim=-1)[0]
    weights, value = torch._safe_softmax(scores, dim=-1), value.to(query.dtype)
    attended = weights.to(value.dtype) @ value if plain else _Weighted.apply(weights, value)
    return _in_order_of(attended, strides), sums / math.log(2), largest / math.log(2)


def is_nested() -> Any:
    """Capture knows whether this is inside of a checkpoint or a functional transform, where the functions below, which have
    gradients of their own, could not be a part of the graph: PyTorch's formulas take their place."""


def _products(query: Any, key: Any, precision: Any) -> Any:
    return query.to(precision) @ key.to(precision).transpose(-2, -1)


class _Products(torch.autograd.Function):
    """The products of queries and keys, in single precision where their type is shorter. Backward goes on in their type."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, precision: Any) -> Any:
        ctx.save_for_backward(query, key)
        return _products(query, key, precision)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key = ctx.saved_tensors
        gradient = gradient.to(query.dtype)
        return gradient @ key, gradient.transpose(-2, -1) @ query, None


class _Weighted(torch.autograd.Function):
    """The sums of values by their weights, in the values' type. The gradient of the weights is in the weights' own."""

    @staticmethod
    def forward(ctx: Any, weights: Any, value: Any) -> Any:
        ctx.save_for_backward(weights, value)
        return weights.to(value.dtype) @ value

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        weights, value = ctx.saved_tensors
        wide = gradient  # in whatever order its axes lie
        if gradient.dtype != weights.dtype:
            wide = torch.empty(gradient.shape, dtype=weights.dtype, device=gradient.device).copy_(gradient)
        of_weights = wide @ value.to(weights.dtype).transpose(-2, -1)
        return of_weights, weights.to(value.dtype).transpose(-2, -1) @ gradient


class _InOrder(torch.autograd.Function):
    """A tensor whose gradient has its axes in memory in the same order."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        ctx.strides = tensor.stride()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return _in_order_of(gradient, ctx.strides)


def _changed(scores: Any, score_mod: Any, mask_mod: Any, score_buffers: Any, mask_buffers: Any) -> Any:
    """Scores as `score_mod` changes them, and minus infinity where `mask_mod` says no."""
    places = [torch.arange(0, size, device=scores.device) for size in scores.size()]
    score_mod = _at_each_place(score_mod, (0,), len(score_buffers))
    mask_mod = _at_each_place(mask_mod, (), len(mask_buffers))
    with IndexingMode():
        allowed = mask_mod(*places, *mask_buffers)
        changed = score_mod(scores, *places, *score_buffers)
        never = torch.tensor(float("-inf"), dtype=scores.dtype, device=scores.device)
        return torch.where(allowed, changed, never)


def _at_each_place(function: Any, first: tuple[int, ...], others: int) -> Any:
    """A function of a batch, a head, a query and a key (`first`: of a score before them, and of `others` after them), for
    all of these at once."""

    def at_place(*args: Any) -> Any:
        result = function(*args)
        return result.clone() if isinstance(result, torch.Tensor) else result  # it may be one of the arguments

    each = at_place
    for axis in (3, 2, 1, 0):
        over: list[int | None] = [None] * 4
        over[axis] = 0
        each = torch.vmap(each, in_dims=(*first, *over, *[None] * others))
    return each


def _in_order_of(result: Any, strides: Any) -> Any:
    """A result in memory of its own, whose axes lie in the order of these strides, the last one innermost."""
    shape = result.shape
    order = sorted(range(len(shape) - 1), key=lambda axis: (-strides[axis], axis))
    if order == [*range(len(shape) - 1)]:
        return result.contiguous()
    step, found = shape[-1], [1] * len(shape)
    for axis in reversed(order):
        found[axis], step = step, step * shape[axis]
    return result.new_empty_strided(shape, found).copy_(result)


# loops and branches ------------------------------------------------------------------------------------------------


def chosen(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """Capture knows what this does: see `pytorch.choices`."""


def _cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    both = chosen(pred, true_fn, false_fn, operands)
    if both is not None:
        return both[0]
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def _while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = ()) -> Any:
    values = carried_inputs
    if not cond_fn(*values, *additional_inputs):
        return tuple([value.clone() if isinstance(value, torch.Tensor) else value for value in values])
    values = body_fn(*values, *additional_inputs)
    while cond_fn(*values, *additional_inputs):
        values = body_fn(*values, *additional_inputs)
    return values


def _scan(combine_fn: Any, init: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    """(what is carried in the end, what was given in between)."""
    carried, given = init, []
    for k in range(xs[0].shape[0]):
        carry, result = combine_fn(*carried, *[x.select(0, k) for x in xs], *additional_inputs)
        carried = pytree.tree_leaves(carry)
        given.append(result)
    return carry, _stacked(given)


def _map(function: Any, xs: Any, arguments: Any) -> Any:
    return _stacked([function(*[x.select(0, k) for x in xs], *arguments) for k in range(xs[0].shape[0])])


def _stacked(results: Any) -> Any:
    """Containers of tensors as one container of theirs."""
    parts = [pytree.tree_leaves(result) for result in results]
    stacked = [None if part[0] is None else torch.stack(part) for part in map(list, zip(*parts, strict=True))]
    return pytree.tree_unflatten(stacked, pytree.tree_structure(results[0]))


def _associative_scan(combine_fn: Any, xs: Any, additional_inputs: Any = ()) -> Any:
    structures = []

    def combine(*args: Any) -> Any:
        result = combine_fn(*args)
        structures.append(pytree.tree_structure(result))
        return result

    found = _scan_by_halves(combine, xs, additional_inputs=additional_inputs)
    return pytree.tree_unflatten(found, structures[0]) if structures else found


def _without_blocks(query: Any, key: Any) -> Any:
    """`_create_empty_block_mask`, the mask of those who give none. The operator reads nothing but its `mask_mod`, so it goes
    without the blocks seen from the side of the keys."""
    counts = torch.ones([1, 1, 1], dtype=torch.int32, device=query.device)
    indices = torch.zeros([1, 1, 1, 1], dtype=torch.int32, device=query.device)
    size = (public._LARGE_SPARSE_BLOCK_SIZE, public._LARGE_SPARSE_BLOCK_SIZE)
    return public.BlockMask((1, 1), counts, indices, None, None, None, None, None, None, size)


def _annotate(annotation_dict: Any) -> Any:
    """`torch.fx.traceback.annotate`, a note for those who trace."""
    return contextlib.nullcontext()


#: The code of operators that Python performs as a whole, where the functions that they are given are not captured.
WHOLE = frozenset(function.__code__ for function in (attend, _scan, _map, _associative_scan))

EQUIVALENTS: dict[Any, Callable[..., Any]] = {
    _of("flex_attention", "flex_attention"): attend, public._create_empty_block_mask: _without_blocks,
    _of("cond", "cond_op"): _cond, _of("while_loop", "while_loop_op"): _while_loop, _of("scan", "scan_op"): _scan,
    _of("map", "map_impl"): _map, _of("associative_scan", "associative_scan_op"): _associative_scan,
    traceback.annotate: _annotate,
}  # fmt: skip
