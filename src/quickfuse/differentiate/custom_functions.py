"""Calls of `torch.autograd.Function` whose `forward` and `backward` are known as nodes, in a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..errors import Unsupported
from ..ir.gradients import UnsupportedAt
from ..ir.own_gradients import OwnGradients
from ..ir.values import TensorMeta
from .traced import traced_in

if TYPE_CHECKING:
    from .tracing import Tracing


def applied(tracing: Tracing, own: OwnGradients, node: Node, arguments: Sequence[Any]) -> Any:
    """What a call gives. Autograd has a node for it, as for the user's class, that runs the nodes of `backward`."""
    values = tracing.values

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Any) -> Any:
            values.update(zip(own.operands, operands, strict=True))
            _run(tracing, own.forward)
            results = tuple([values[result] for result in own.results])
            ctx.save_for_backward(*[values[tensor] for tensor in own.saved])
            ctx.mark_non_differentiable(*[results[k] for k in own.not_differentiable])
            return results[0] if isinstance(node.meta["val"], TensorMeta) else results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            values.update(zip(own.saved, ctx.saved_tensors, strict=True))
            values.update(zip(own.gradients, gradients, strict=True))
            try:
                if own.once and torch.is_grad_enabled():
                    raise Unsupported("gradients of gradients that are differentiable once")
                _run(tracing, own.backward)
            except Unsupported as unsupported:
                own.failed = True
                raise UnsupportedAt(unsupported.reason, node) from unsupported
            return tuple([None if made is None else values[made] for made in own.given])

    operands = [arguments[k] for k in own.positions]
    made = Applied.apply(*operands)
    given = {tensor.memory for tensor in traced_in(operands)}
    tracing.recorder.unchanging |= given.intersection(tensor.memory for tensor in traced_in(made))
    return made


def _run(tracing: Tracing, nodes: Iterable[Node]) -> None:
    """Record nodes as a part of what is being recorded."""
    recorder = tracing.recorder
    before = recorder.captured_node, recorder.trace, recorder.taken
    try:
        for node in nodes:
            tracing.values[node] = tracing.call(node)
            recorder.taken = before[2]
    finally:
        recorder.captured_node, recorder.trace, recorder.taken = before
