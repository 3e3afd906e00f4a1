"""Which operators backward may perform a second time instead of keeping what they gave in forward."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.fx import Node

from ..ir.nodes import is_view
from ..ir.target import is_slow as is_slow_operation
from ..ir.values import NumberMeta, TensorMeta

aten = torch.ops.aten

#: Cheap operators that are neither pointwise nor views.
_CHEAP = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy clone copy empty_like zeros_like ones_like full_like new_zeros new_ones new_full new_empty "
        "new_empty_strided empty empty_strided zeros ones full scalar_tensor arange fill zero slice_backward "
        "select_backward threshold_backward constant_pad_nd lift_fresh tril triu"
    ).split()
)


@cache
def is_cheap(target: Any) -> bool:
    """Whether an operator costs less than the memory traffic of its operands, and gives the same again."""
    if target is torch.tensor:
        return True
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return torch.Tag.pointwise in target.tags or is_view(target) or target._schema.name in _CHEAP


#: Operators whose formulas have an exponential or the like.
_MADE_OF_SLOW = frozenset("erfinv sigmoid silu gelu mish softplus elu celu log_sigmoid_forward logit digamma".split())


@cache
def is_slow(target: Any) -> bool:
    """Whether an operator on elements takes much longer than an addition."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.removeprefix("aten::")
    return is_slow_operation(name) or name in _MADE_OF_SLOW


def memory_root(node: Node) -> Node:
    """The node in whose memory a node's value lies: itself, but for views."""
    while True:
        if node.target is operator.getitem and is_view(node.args[0].target):  # type: ignore[union-attr]
            node = node.args[0].args[0]  # type: ignore[union-attr,assignment]
        elif node.op == "call_function" and is_view(node.target):
            node = node.args[0]  # type: ignore[assignment]
        else:
            return node


@dataclass(frozen=True, slots=True)
class Recipe:
    """Another way to a value: `write(emit)` adds the nodes to a graph, given a function that translates nodes."""

    operands: tuple[Node, ...]
    write: Callable[[Callable[..., Node], Callable[[Node], Node]], Node]


def recipe_of(node: Node, elements: dict[tuple[Node, int], Node]) -> Recipe | None:
    """How a normalised tensor comes from the statistics, which are small: cheaply. `elements` are the other results."""
    if node.target is not operator.getitem or node.args[1] != 0:
        return None
    call: Node = node.args[0]  # type: ignore[assignment]
    make = _RECIPES.get(call.target)
    meta = node.meta["val"]
    if make is None or meta.dtype not in (torch.float32, torch.float64) or call.args[0].meta["val"] != meta:  # type: ignore[union-attr]
        return None
    return make(call, elements)


def _batch_norm(call: Node, elements: dict[tuple[Node, int], Node]) -> Recipe | None:
    x, weight, bias, running_mean, running_var, training, _, eps = call.args
    if training:
        mean, scale = elements.get((call, 1)), elements.get((call, 2))
    else:
        mean, scale = running_mean, running_var  # type: ignore[assignment]
    if mean is None or scale is None:
        return None
    shape = [1, -1] + [1] * (x.meta["val"].ndim - 2)  # type: ignore[union-attr]
    operands = tuple([n for n in (x, mean, scale, weight, bias) if isinstance(n, Node)])

    def write(emit: Callable[..., Node], at: Callable[[Node], Node]) -> Node:
        factor = at(scale)
        if not training:
            factor = emit(aten.rsqrt.default, emit(aten.add.Tensor, factor, eps))
        if isinstance(weight, Node):
            factor = emit(aten.mul.Tensor, factor, at(weight))
        centred = emit(aten.sub.Tensor, at(x), emit(aten.view.default, at(mean), shape))  # type: ignore[arg-type]
        value = emit(aten.mul.Tensor, centred, emit(aten.view.default, factor, shape))
        if isinstance(bias, Node):
            value = emit(aten.add.Tensor, value, emit(aten.view.default, at(bias), shape))
        return value

    return Recipe(operands, write)


def _layer_norm(call: Node, elements: dict[tuple[Node, int], Node]) -> Recipe | None:
    x, _, weight, bias, _ = call.args
    mean, rstd = elements.get((call, 1)), elements.get((call, 2))
    if mean is None or rstd is None or mean.meta["val"].ndim != x.meta["val"].ndim:  # type: ignore[union-attr]
        return None
    operands = tuple([n for n in (x, mean, rstd, weight, bias) if isinstance(n, Node)])

    def write(emit: Callable[..., Node], at: Callable[[Node], Node]) -> Node:
        value = emit(aten.mul.Tensor, emit(aten.sub.Tensor, at(x), at(mean)), at(rstd))  # type: ignore[arg-type]
        if isinstance(weight, Node):
            value = emit(aten.mul.Tensor, value, at(weight))
        return emit(aten.add.Tensor, value, at(bias)) if isinstance(bias, Node) else value

    return Recipe(operands, write)


_RECIPES: dict[Any, Callable[[Node, dict[tuple[Node, int], Node]], Recipe | None]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_layer_norm.default: _layer_norm,
}


def size_of(node: Node) -> int:
    """Bytes of a tensor node's elements."""
    meta = node.meta["val"]
    return meta.nbytes if isinstance(meta, TensorMeta) else 0


#: Operators whose second result are indices in an image of so many axes.
_IMAGE_AXES = {
    aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2, aten.adaptive_max_pool3d.default: 3,
}  # fmt: skip


def kept_dtype(node: Node) -> torch.dtype | None:
    """The smaller type in which a value may be kept: indices of the maxima of an image are small numbers of 64 bits."""
    call = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else None
    axes = _IMAGE_AXES.get(call.target) if isinstance(call, Node) else None
    if axes is None:
        return None
    image = math.prod(call.args[0].meta["val"].shape[-axes:])  # type: ignore[union-attr]
    return next((t for t in (torch.int16, torch.int32) if image <= torch.iinfo(t).max), None)


def kept_size(node: Node) -> int:
    """Bytes of what is kept of a tensor."""
    dtype = kept_dtype(node)
    return size_of(node) if dtype is None else node.meta["val"].numel * dtype.itemsize  # type: ignore[no-any-return]


def is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NumberMeta)


def tensors_before(node: Node) -> Iterator[Node]:
    """The operands of a node that are tensors or results of several, and the tensors that its numbers come out of."""
    return _through_numbers(node, lambda n: n.all_input_nodes)


def users_of(node: Node) -> Iterator[Node]:
    """The nodes that use a tensor, or a number out of it."""
    return _through_numbers(node, lambda n: n.users)


def _through_numbers(node: Node, neighbours: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    numbers, waiting = set(), [node]
    while waiting:
        for other in neighbours(waiting.pop()):
            if not is_number(other):
                yield other
            elif other not in numbers:
                numbers.add(other)
                waiting.append(other)
