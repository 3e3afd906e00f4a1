"""Calls of `torch.autograd.Function` whose `forward` and `backward` are known as nodes, in a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch.fx import Node

from ..errors import Unsupported
from ..ir.gradients import UnsupportedAt
from ..ir.own_gradients import OwnGradients, applied, check_once
from ..ir.values import TensorMeta
from .traced import traced_in

if TYPE_CHECKING:
    from .tracing import Tracing


def traced(tracing: Tracing, own: OwnGradients, node: Node, arguments: Sequence[Any]) -> Any:
    """What the call `node` gives. What cannot be recorded of its `backward` is a fault of the call, and not of who takes
    gradients: the class is called then."""

    def run(nodes: tuple[Node, ...]) -> None:
        try:
            check_once(own, nodes)
            _record(tracing, nodes, any_strides=nodes is own.backward)
        except Unsupported as unsupported:
            if nodes is not own.backward:
                raise
            own.failed = True
            raise UnsupportedAt(unsupported.reason, node) from unsupported

    made = applied(own, tracing.values, run, arguments, not isinstance(node.meta["val"], TensorMeta))
    results = {id(tensor) for tensor in traced_in(made)}  # a view looked like a leaf before autograd had a node for the call
    tracing.leaves = [(at, leaf) for at, leaf in tracing.leaves if id(leaf) not in results]
    given = {tensor.memory for tensor in traced_in(arguments)}
    views = [tensor for tensor in traced_in(made) if tensor.memory in given]
    tracing.own_views += [(node, tensor) for tensor in views if tensor.requires_grad]
    tracing.recorder.unchanging |= {tensor.memory for tensor in views}
    return made


def _record(tracing: Tracing, nodes: Sequence[Node], any_strides: bool) -> None:
    """Record nodes as a part of what is being recorded. With `any_strides`, what they compute may have other strides than in
    the capture: there a gradient has those of the result, and here those that whatever took the result gives it."""
    recorder = tracing.recorder
    before = recorder.captured_node, recorder.trace, recorder.taken
    tracing.any_strides = any_strides and not any(_asks_for_strides(node) for node in nodes)
    try:
        for node in nodes:
            tracing.values[node] = tracing.call(node)
            recorder.taken = before[2]
    finally:
        tracing.any_strides = False
        recorder.captured_node, recorder.trace, recorder.taken = before


def _asks_for_strides(node: Node) -> bool:
    return str(getattr(node.target, "__name__", node.target)).startswith("as_strided")
