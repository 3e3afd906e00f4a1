"""`torch.cond` by a tensor's value in a function that is to be one graph: both sides are computed, and their results chosen.

What the side that is not chosen computes must not be seen: gradients to what it uses are zero, whatever its formulas make of
zeros. Where it raises, an index out of range for example, the whole call runs in Python, which takes one side only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph
from torch.utils import _pytree as pytree

from ...errors import Unsupported
from ...ir.modes import DispatchMode
from ...ir.transforms import note_transform
from ..interpreter import Interpreter
from ..library.higher_order import chosen, is_nested
from ..objects.native_functions import adopt
from ..symbolic import TensorProxy
from .transforms import Captured, call_node, capture_pure, named, same_metas, tree

_HINT = "decide by a number or flag, or choose with torch.where(condition, this, that)"


def _chosen(i: Interpreter, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    """(the result,), or None where the program goes on with a branch."""
    if type(pred) is not TensorProxy or i.graph.may_break or not i.graph.recovers:
        return None
    try:
        i.truth(pred)  # with a guard
        return None
    except Unsupported:
        pass
    try:
        return (_both(i, pred, true_fn, false_fn, tree(i, operands)),)
    except Unsupported as reason:
        text = f"torch.cond by a tensor's value, whose sides cannot both be computed: {reason.reason}"
        raise Unsupported(text, _HINT) from None


def _both(i: Interpreter, pred: TensorProxy, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    effects = i.outside.noted()
    metas = same_metas(operands, {})
    sides = [capture_pure(i, "torch.cond", function, tuple(operands), {}, metas) for function in (true_fn, false_fn)]
    if i.outside.has_changed(effects):
        raise Unsupported("one of them has side effects")
    leaves, structure = pytree.tree_flatten(sides[0].function.result)
    other_structure = pytree.tree_structure(sides[1].function.result)
    if structure != other_structure or any(len(side.outputs) != len(leaves) for side in sides):
        raise Unsupported("they give other things than tensors in one structure")
    if not all(_are_alike(one, other) for one, other in zip(*(side.outputs for side in sides), strict=True)):
        raise Unsupported("they give tensors of other kinds or sizes")
    given, spec = pytree.tree_flatten(tuple(operands))
    function = _function(sides, spec, pred.meta.device.type != "cpu")
    results = call_node(i, function, [pred, *given], [*sides[0].brought_in, *sides[1].brought_in])
    return adopt(i, pytree.tree_unflatten(list(results), structure))


def _are_alike(one: Any, other: Any) -> bool:
    if type(one) is not TensorProxy or type(other) is not TensorProxy:
        return False
    return one.meta.looks_like(other.meta) and one.meta.device == other.meta.device


def _function(sides: list[Captured], spec: Any, on_gpu: bool) -> FunctionType:
    """The function that a node calls, with what both sides are given and have brought in."""
    first, second = (side.function for side in sides)
    count = len(sides[0].brought_in)

    def call(flat: Any, brought_in: Any) -> Any:
        pred, *tensors = flat
        pred = pred.reshape(()) != 0
        if _has_value(pred):
            function, used, unused = first, brought_in[:count], brought_in[count:]
            if not pred:
                function, used, unused = second, unused, used
            made = pytree.tree_leaves(function.function(used)(*pytree.tree_unflatten(tensors, spec)))
            return tuple([_connected(result, [*tensors, *unused]) for result in made])
        with _Watched(on_gpu) if pred.is_meta else contextlib.nullcontext():  # on the meta device, capture asks for shapes
            made = [
                pytree.tree_leaves(function.function(_of_side(used, wanted))(
                    *pytree.tree_unflatten(_of_side(tensors, wanted), spec)
                ))
                for function, used, wanted in ((first, brought_in[:count], pred), (second, brought_in[count:], ~pred))
            ]  # fmt: skip
        return tuple([torch.where(pred, one, other) for one, other in zip(*made, strict=True)])

    both = Graph()
    for side in sides:
        both.graph_copy(side.function.graph, {})
    both.output(()).meta["val"] = None
    function: Any = call
    note_transform(named(function, "cond"), both)
    return function  # type: ignore[no-any-return]


def _has_value(pred: Any) -> bool:
    """Whether a call is of real tensors, in PyTorch, where the side that is not chosen need not run."""
    return type(pred) is torch.Tensor and not pred.is_meta and not torch._C._len_torch_dispatch_stack()


def _connected(result: Any, others: list[Any]) -> Any:
    """A result of one side, through which the other one's tensors get gradients of zeros, as autograd knows it of an
    operator that both are operands of."""
    others = [t for t in others if isinstance(t, torch.Tensor) and t.requires_grad] if torch.is_grad_enabled() else []
    return _Connected.apply(result, *others) if others and result.is_floating_point() else result


class _Connected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Any, *others: Any) -> Any:
        ctx.save_for_backward(*others)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, *[torch.zeros_like(other) for other in ctx.saved_tensors]


def _of_side(values: Any, wanted: Any) -> list[Any]:
    """What one side is given: gradients come back where it is the side that is wanted."""
    return [_Side.apply(v, wanted) if isinstance(v, torch.Tensor) and v.requires_grad else v for v in values]


class _Side(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, wanted: Any) -> Any:
        ctx.save_for_backward(wanted)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.where(*ctx.saved_tensors, gradient, 0.0), None


class _Watched(DispatchMode):
    """Refuses what must not happen on the side that is not chosen: drawing random numbers, and on a GPU, whose process an
    index out of range ends, indexing."""

    def __init__(self, on_gpu: bool) -> None:
        super().__init__()
        self.on_gpu = on_gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise Unsupported("one of them draws random numbers")
        if self.on_gpu and func.__name__.startswith(_CHECK_INDICES):
            raise Unsupported("one of them uses tensors as indices, which may be out of range")
        return func(*args, **(kwargs or {}))


#: The beginnings of the names of operators that stop a GPU's process where an index, or something asserted, is wrong.
_CHECK_INDICES = ("index", "gather", "scatter", "embedding", "take", "put", "nll_loss", "_assert", "_embedding", "_index")

HANDLERS: dict[Any, Callable[..., Any]] = {chosen: _chosen, is_nested: lambda i: bool(i.graph.nested)}
