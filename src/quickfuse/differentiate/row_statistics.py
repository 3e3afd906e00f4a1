"""Two numbers for each row by which logarithms of probabilities can be computed again.

Backward of a loss of classes needs the logarithms, which take as much memory as the scores that they come from. They are the
scores less the largest of the row and less the logarithm of a sum: where backward can read the scores, forward need not
store the logarithms, for which it would have to go through each row once more. What is kept is decided in `partition`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from ..ir.cost_model import COSTS
from ..ir.expr import HALF_TYPES
from .joint import Joint
from .recompute import STATISTICS, size_of
from .recorder import Recorder

aten = torch.ops.aten


def offer_statistics(joint: Joint) -> None:
    """Add the numbers for the logarithms of forward to the joint graph, where forward may keep them.

    For which ones does not depend on what backward computes: graphs of fewer gradients have to begin with the same nodes.
    """
    for node in list(joint.graph.nodes):
        if node.target is aten._log_softmax.default and not node.meta["backward"] and _is_large(node):
            node.meta[STATISTICS] = _statistics(joint, node)


def _is_large(node: Node) -> bool:
    meta, dim = node.meta["val"], node.args[1]
    return size_of(node) >= COSTS.large_bytes and meta.shape[dim] >= COSTS.least_row_of_statistics


def _statistics(joint: Joint, node: Node) -> tuple[Node, Node]:
    """The largest element of each row, and the logarithm of the sum, as the rule of the operator computes them."""
    x: Any = node.args[0]
    dim, dtype = [node.args[1]], node.meta["val"].dtype
    compute = torch.float32 if dtype in HALF_TYPES else dtype
    recorder = Recorder(joint.graph, lambda value: None)
    recorder.trace = node.meta["trace"]
    with joint.graph.inserting_before(node.next):
        value = x if x.meta["val"].dtype is compute else recorder.emit(aten._to_copy.default, x, dtype=compute)
        largest = recorder.emit(aten.amax.default, value, dim, True)
        powers = recorder.emit(aten.exp.default, recorder.emit(aten.sub.Tensor, value, largest))
        return largest, recorder.emit(aten.log.default, recorder.emit(aten.sum.dim_IntList, powers, dim, True))
