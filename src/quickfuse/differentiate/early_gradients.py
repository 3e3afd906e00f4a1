"""Gradients of large products that forward computes: those of a language model's output layer.

Backward needs a score for each word and place, the largest tensor of the model, to compute the gradient of the scores, of
which it makes two products: the gradients of the layer's input and weight. All of these are linear in the gradient of the
loss, which is one number. So forward computes them for a loss whose gradient is 1, and backward multiplies by what that
gradient is. What is kept is as large as the layer's operands, and forward, which now has all readers of the scores, computes
them in chunks (`lower/chunked_products.py`): they are never in memory as a whole.

Results are the same where the gradient is a power of two, and one more rounding away from it elsewhere. In float16 small
gradients would be lost before they are scaled, which is what scaling is for: there nothing is moved.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.fx import Node

from ..ir.nodes import copied_node, is_view
from ..ir.target import costs_on
from ..ir.values import TensorMeta
from .joint import Joint
from .partition import needs_tangents
from .recompute import size_of

aten = torch.ops.aten

_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
_TYPES = frozenset({torch.float32, torch.bfloat16})

#: Operators that are linear in their first operand, if no other depends on the gradient.
_LINEAR = frozenset({
    aten.nll_loss_backward.default, aten.nll_loss2d_backward.default, aten._log_softmax_backward_data.default,
    aten._softmax_backward_data.default, aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar,
    aten.neg.default, aten._to_copy.default, aten.clone.default, aten.sum.dim_IntList, aten.sum.default,
    aten.view.default, aten._unsafe_view.default, aten.reshape.default,
})  # fmt: skip


def compute_early(joint: Joint) -> bool:
    """Let forward compute the gradients that are products of the gradient of a large product, where a graph has one loss.
    Changes the joint graph; returns whether it did."""
    if len(joint.tangents) != 1 or joint.tail is not None or joint.tangents[0].meta["val"].shape != ():
        return False
    least = _size_of_large_product(joint)
    if least is None:
        return False
    late = needs_tangents(joint)
    ends = [node for node in joint.graph.nodes if node in late and _is_end(node, late, least)]
    chain = _between(joint.tangents[0], ends, late)
    if not ends or not all(_is_linear(node, late) for node in chain):
        return False
    known = {*chain, *ends}
    large = [node for node in chain if size_of(node) >= least]
    if any(user not in known for node in large for user in node.users):
        return False
    if 2 * sum(map(size_of, ends)) > least:
        return False
    _move(joint, chain, ends)
    return True


def _size_of_large_product(joint: Joint) -> int | None:
    """The bytes of the largest product of forward, in 16 bits, if that is worth chunks; None if there is none."""
    sizes = []
    for node in joint.graph.nodes:
        meta = node.meta.get("val")
        if node.target in _PRODUCTS and not node.meta.get("backward") and meta.dtype in _TYPES:
            least = costs_on(meta.device).least_chunked
            if least and meta.nbytes >= least:
                sizes.append(meta.numel * 2)
    return max(sizes, default=None)


def _is_end(node: Node, late: set[Node], least: int) -> bool:
    """Whether a node makes a small tensor of one large tensor that depends on the gradient of the loss."""
    meta = node.meta.get("val")
    if node.target not in _PRODUCTS and node.target is not aten.sum.dim_IntList:
        return False
    operands = [operand for operand in node.all_input_nodes if operand in late]
    if len(operands) != 1 or not isinstance(meta, TensorMeta) or meta.dtype not in _TYPES:
        return False
    if node.target is aten.addmm.default and node.args[0] is operands[0]:
        return False
    return size_of(operands[0]) >= least > size_of(node)


def _between(tangent: Node, ends: Iterable[Node], late: set[Node]) -> list[Node]:
    """The nodes that lead from the gradient of the loss to some others."""
    found: set[Node] = set()
    waiting = [operand for end in ends for operand in end.all_input_nodes if operand in late]
    while waiting:
        node = waiting.pop()
        if node is not tangent and node not in found:
            found.add(node)
            waiting += [operand for operand in node.all_input_nodes if operand in late]
    return [node for node in tangent.graph.nodes if node in found]


def _is_linear(node: Node, late: set[Node]) -> bool:
    if node.target not in _LINEAR and not is_view(node.target):
        return False
    meta = node.meta["val"]
    if not isinstance(meta, TensorMeta) or meta.dtype not in _TYPES:
        return False
    operands = [operand for operand in node.all_input_nodes if operand in late]
    return operands == [node.args[0]] and sum(arg is operands[0] for arg in node.args) == 1


def _move(joint: Joint, chain: list[Node], ends: list[Node]) -> None:
    graph, (tangent,) = joint.graph, joint.tangents
    meta = tangent.meta["val"]
    made: dict[Node, Node] = {}
    with graph.inserting_after(tangent):
        made[tangent] = graph.call_function(aten.full.default, ([], 1.0), {"dtype": meta.dtype, "device": meta.device})
    made[tangent].meta.update({"val": meta, "trace": (), "backward": False})
    replaced: dict[Node, Node] = {}
    moved = {*chain, *ends}
    for node in [node for node in graph.nodes if node in moved]:
        with graph.inserting_after(node):
            copy = made[node] = copied_node(graph, node, lambda operand: made.get(operand, operand))
        copy.meta["backward"] = False
        if node in ends:
            with graph.inserting_after(copy):
                scaled = graph.call_function(aten.mul.Tensor, (copy, tangent))
            scaled.meta.update({**node.meta, "backward": True})
            replaced[node] = scaled
    for node, scaled in replaced.items():
        node.replace_all_uses_with(scaled)
    joint.gradients = [None if node is None else replaced.get(node, node) for node in joint.gradients]
