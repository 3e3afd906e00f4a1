"""Smaller values from which backward can compute what it needs: forward may keep these in its place.

A loss of classes needs the logarithms of probabilities, which take as much memory as the scores that they come from. They
are the scores less the largest of the row and less the logarithm of a sum: where backward can read the scores, forward need
not store the logarithms, for which it would have to go through each row once more. Scores that are an input are kept as a
copy, which pays for long rows alone on the CPU.

Where the largest element of a window is, is an int64 in eager. It takes as many bits as an index in one image needs.

What is kept is decided in `partition`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..ir.cost_model import COSTS
from ..ir.expr import HALF_TYPES
from ..ir.target import costs_on
from .joint import Joint
from .recompute import ONLY_KEPT, SMALLER, Recipe, memory_root, size_of
from .recorder import Recorder

aten = torch.ops.aten

#: Operators whose second result are indices -> how many axes these count, from the last on.
_POOLS = {
    aten.max_pool2d_with_indices.default: 2, aten.max_pool3d_with_indices.default: 3,
    aten.adaptive_max_pool2d.default: 2, aten.adaptive_max_pool3d.default: 3,
}  # fmt: skip


def offer_smaller_forms(joint: Joint) -> None:
    """Add smaller forms of large values of forward to the joint graph, where forward may keep them.

    For which ones does not depend on what backward computes: graphs of fewer gradients have to begin with the same nodes.
    """
    visible = {memory_root(node) for node in joint.traced_outputs}
    for node in list(joint.graph.nodes):
        if node.op != "call_function" or node.meta.get("backward") or size_of(node) < COSTS.large_bytes:
            continue
        if node.target is aten._log_softmax.default:
            costs = costs_on(node.meta["val"].device)
            copied = memory_root(node.args[0]).op == "placeholder"
            least = costs.least_row_of_copied_scores if copied else costs.least_row_of_statistics
            if node.meta["val"].shape[node.args[1]] >= least:
                node.meta[SMALLER] = _statistics(joint, node)
        elif node.target is operator.getitem and node.args[1] == 1 and node.args[0].target in _POOLS and node not in visible:
            node.meta[SMALLER] = _narrow(joint, node)


def _statistics(joint: Joint, node: Node) -> Recipe:
    """The largest element of each row, and the logarithm of the sum, as the rule of the operator computes them."""
    x: Any = node.args[0]
    dim, dtype = [node.args[1]], node.meta["val"].dtype
    compute = torch.float32 if dtype in HALF_TYPES else dtype
    emit = _emitter(joint, node)
    with joint.graph.inserting_before(node.next):
        value = x if x.meta["val"].dtype is compute else emit(aten._to_copy.default, x, dtype=compute)
        largest = emit(aten.amax.default, value, dim, True)
        powers = emit(aten.exp.default, emit(aten.sub.Tensor, value, largest))
        logarithm = emit(aten.log.default, emit(aten.sum.dim_IntList, powers, dim, True))

    def write(emit: Callable[..., Node], at: Callable[[Node], Node]) -> Node:
        value = at(x) if x.meta["val"].dtype is compute else emit(aten._to_copy.default, at(x), dtype=compute)
        value = emit(aten.sub.Tensor, emit(aten.sub.Tensor, value, at(largest)), at(logarithm))
        return value if dtype is compute else emit(aten._to_copy.default, value, dtype=dtype)

    return Recipe((x, largest, logarithm), write)


def _narrow(joint: Joint, node: Node) -> Recipe:
    """Indices in as many bits as the largest one needs."""
    call: Any = node.args[0]
    last = math.prod(call.args[0].meta["val"].shape[-_POOLS[call.target] :]) - 1
    dtype = next(dtype for dtype in (torch.int8, torch.int16, torch.int32, torch.int64) if last <= torch.iinfo(dtype).max)
    with joint.graph.inserting_before(node.next):
        narrow = _emitter(joint, node)(aten._to_copy.default, node, dtype=dtype)
    narrow.meta[ONLY_KEPT] = True

    def write(emit: Callable[..., Node], at: Callable[[Node], Node]) -> Node:
        return emit(aten._to_copy.default, at(narrow), dtype=torch.int64)

    return Recipe((narrow,), write)


def _emitter(joint: Joint, node: Node) -> Callable[..., Node]:
    recorder = Recorder(joint.graph, lambda value: None)
    recorder.trace = node.meta["trace"]
    return recorder.emit
