"""Changes in place, with gradients, of what was computed before a graph: an accumulator after a break, say.

PyTorch has to be told that such a tensor has another history from then on. A part of a captured graph that changes it works
on a copy, gives what that holds in the end as a result, and PyTorch copies this back, with gradients: to autograd, the part
is an operator that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.gradients import has_own_gradients
from ..ir.nodes import new_node, takes_a_result
from ..ir.sharing import base_of, count_changes, effects_in, memory_of, tensor_operands, written_operands
from ..ir.values import TensorMeta, is_dense

_creation_meta = torch._C._autograd._get_creation_meta
_DEFAULT = torch._C._autograd.CreationMeta.DEFAULT


def changed_by(call: Node, inside: set[Node], kept: Collection[Node]) -> list[Node]:
    """The tensors with a history from before a part that a call of the part changes in place, if these are all that it
    changes, and if eager minds that as PyTorch does here: it notices where a change spoils what it has kept of them for
    backward. Of what parts compute, these may keep something else: what eager has kept of that, `kept`, is not changed."""
    changed = [*dict.fromkeys(map(base_of, written_operands(call)))]
    known = all(tensor not in inside and tensor.meta["val"].requires_grad for tensor in changed)
    known = known and all(_is_of_pytorch(tensor) or memory_of(tensor) not in kept for tensor in changed)
    return changed if known and not effects_in(call).reshaped else []


def changed_as_well(nodes: Sequence[Node], known: set[Node], leaves: set[str], kept: Collection[Node]) -> list[Node]:
    """Further tensors that nodes of a part change with gradients, where that is sure as one of them does: to find them one
    by one takes a trace for each. `leaves` are the names of those that are no results; for `kept` see above."""
    if any(n.target is torch._C._set_grad_enabled for n in nodes):
        return []
    inside = set(nodes)
    found = dict.fromkeys(tensor for n in nodes for tensor in changed_by(n, inside, kept))
    return [tensor for tensor in found if tensor not in known and tensor.name not in leaves]


def end_of_part(nodes: Sequence[Node], changed: Iterable[Node]) -> int:
    """Up to where some nodes may work on copies of the tensors that they change. What reads one as it is in the end has
    gradients to the tensor itself, and one that gets another shape is to get it itself."""
    memories = set(changed)
    last: dict[Node, int] = {}
    end = next((k for k, node in enumerate(nodes) if _reshapes(node, memories)), len(nodes))
    while True:
        for k, node in enumerate(nodes[:end]):
            last |= {memory_of(operand): k for operand in written_operands(node) if memory_of(operand) in memories}
        too_late = (k for k, n in enumerate(nodes[:end]) if any(last.get(memory_of(o), end) < k for o in tensor_operands(n)))
        first = next(too_late, end)
        if first == end:
            return end
        end = first
        last.clear()


def _reshapes(node: Node, memories: set[Node]) -> bool:
    """Whether a call gives one of some tensors, or a view of one, another shape, other strides or another type."""
    operands = tensor_operands(node)
    return any(memory_of(operands[k]) in memories for k, _ in effects_in(node).reshaped)


def changed_among(nodes: Sequence[Node], tensors: Iterable[Node]) -> list[Node]:
    """Those of the tensors that some nodes change."""
    memories = {memory_of(operand) for node in nodes for operand in written_operands(node)}
    return [tensor for tensor in tensors if tensor in memories]


def views_again(nodes: Sequence[Node], changed: Iterable[Node]) -> list[Node]:
    """The views of tensors that some nodes change and others use: they are to be views of the tensors themselves.

    Raises:
        Unsupported: for one of several views that a call gives, of which PyTorch refuses some once their memory is changed.
    """
    memories, inside = set(changed), set(nodes)
    found: list[Node] = []
    for node in reversed(nodes):
        if memory_of(node) in memories and any(user in found or user not in inside for user in node.users):
            if takes_a_result(node):
                raise Unsupported("one of several views of what is changed in place with gradients")
            found.append(node)
    return found[::-1]


def added_copies(graph: Graph, tensors: Sequence[Node]) -> list[Node]:
    """Nodes that stand for what placeholders hold, with its history, and may be changed: the graph may begin where gradients
    are off."""
    switched = bool(tensors) and not torch.is_grad_enabled()
    if switched:
        new_node(graph, "call_function", torch._C._set_grad_enabled, (True,))
    made = [_added_copy(graph, tensor) for tensor in tensors]
    if switched:
        new_node(graph, "call_function", torch._C._set_grad_enabled, (False,))
    return made


def _added_copy(graph: Graph, tensor: Node) -> Node:
    meta: TensorMeta = tensor.meta["val"]
    if is_dense(meta.shape, meta.stride):
        copy = new_node(graph, "call_method", "clone", (tensor,))
    else:
        options = {"dtype": meta.dtype, "device": meta.device}
        empty = new_node(graph, "call_function", torch.empty_strided, (meta.shape, meta.stride), options)
        empty.meta.update(val=replace(meta, requires_grad=False))
        copy = new_node(graph, "call_method", "copy_", (empty, tensor))
    copy.meta.update(val=meta, trace=tensor.meta.get("trace", ()))
    return copy


class ChangingBack:
    """A part that gives, after its results, what tensors are to hold that were there before it. `changed` has these, by
    their positions among the operands, and how often the part changes each. `natively` is the part as it was captured."""

    def __init__(self, call: Callable[..., Any], natively: Callable[..., Any], changed: dict[int, int]) -> None:
        self.call = call
        self.natively = natively
        self.changed = changed

    def __call__(self, values: tuple[Any, ...]) -> Any:
        """The results. Where PyTorch may refuse a change, or memory belongs to two operands, it runs as it was captured."""
        changed = [values[k] for k in self.changed]
        if any(map(_may_refuse, changed)) or _share_memory(changed, values):
            return self.natively(*values)
        operands = [*values]
        for k, tensor in zip(self.changed, changed, strict=True):
            operands[k] = _with_history_of(tensor)
        made = self.call(operands)
        results = len(made) - len(changed)
        with torch.enable_grad():
            for tensor, contents, times in zip(changed, made[results:], self.changed.values(), strict=True):
                if tensor._is_view():  # the gradient of what it is a view of takes one of zeros here
                    tensor.copy_(contents)
                else:
                    _Changed.apply(tensor, contents)
                count_changes(tensor, times - 1)
        return made[:results]


class _Changed(torch.autograd.Function):
    """`tensor.copy_(contents)`, of which no zeros flow to what the tensor was before."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(tensor)  # which counts the change
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            return tensor.copy_(contents)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return None, gradient


def _with_history_of(tensor: torch.Tensor) -> torch.Tensor:
    """What autograd knows of a tensor before it is changed, in the same memory: to autograd, it is no view."""
    with torch.enable_grad():
        return torch.ops.aten._unsafe_view.default(tensor, tensor.shape)


def _may_refuse(tensor: torch.Tensor) -> bool:
    """Whether PyTorch may refuse to change a tensor with gradients."""
    if tensor.is_leaf or type(tensor) is not torch.Tensor or tensor.is_inference():
        return True
    return tensor._is_view() and _creation_meta(tensor) != _DEFAULT


def _share_memory(changed: Sequence[torch.Tensor], values: Sequence[Any]) -> bool:
    """Whether the memory of a tensor that is changed belongs to another operand as well."""
    places = [t.untyped_storage().data_ptr() for t in values if isinstance(t, torch.Tensor)]
    return any(places.count(tensor.untyped_storage().data_ptr()) > 1 for tensor in changed)


def _is_of_pytorch(tensor: Node) -> bool:
    """Whether a tensor has the history that PyTorch gave it: from outside, or of a call that has gradients of its own."""
    return tensor.op == "placeholder" or has_own_gradients(tensor.args[0] if takes_a_result(tensor) else tensor)
