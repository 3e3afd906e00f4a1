"""From a captured graph that needs gradients to a body: differentiate, compile both halves, join them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph

from . import logs
from .differentiate import describe, differentiate
from .emit import glue as glue_source
from .emit.body import joined_body
from .emit.halves import kernel_half, operator_half
from .emit.sources import emit_cpu, emit_gpu
from .errors import Unsupported
from .fuse import fuse
from .ir.gradients import NothingToDifferentiate
from .ir.modes import MODE_CHANGES
from .ir.segment import Segment
from .ir.values import NumberMeta, TensorMeta
from .launch import bind, tensor_check
from .launch.joined import Half, JoinedCall
from .lower import lower

#: A graph leaves grad mode as it was; of autocast it is the caller that leaves it.
_STAYING_MODES = MODE_CHANGES - {torch._C._set_grad_enabled}


def joined(segment: Segment, checked: list[TensorMeta], run: Any) -> tuple[glue_source.Body, int]:
    """The body of a segment that needs gradients, and how many kernels its forward half has. `run` is the graph in eager.

    Raises:
        NothingToDifferentiate: where no result has a gradient, so that the captured graph may be lowered as it is.
        Unsupported: with the reason, where gradients are left to eager.
    """
    made = differentiate(segment.graph)
    if not segment.only_eager and not made.differentiable and not any(r.with_grad and r.of_input for r in made.results):
        raise NothingToDifferentiate("no output has a gradient")
    if logs.enabled("joint"):
        logs.emit("joint", describe(made))
    order = {source: k for k, source in enumerate(glue_source.tensor_order(segment))}
    picks = [order[i.source] for i in segment.inputs if isinstance(i.meta, TensorMeta)]
    forward = _half("forward", made.forward, picks, checked)
    forward_half = Half(forward[0], None, forward[1], forward[2], [])

    def make_backward(absent: frozenset[int]) -> Half:
        if not absent:
            return _backward_half(made.backward)
        assert made.variant is not None
        return _backward_half(made.variant(absent).backward)

    examples = [e for e, i in zip(segment.examples, segment.inputs, strict=True) if isinstance(i.meta, TensorMeta)]
    keeps = [bool(e.is_leaf and e.requires_grad) for e in examples]
    is_number = [isinstance(i.meta, NumberMeta) for i in segment.inputs]
    modes: list[Any] = [(n.target, n.args) for n in segment.graph.nodes if n.target in _STAYING_MODES]
    call = JoinedCall(made, forward_half, make_backward, run, is_number, keeps, modes)
    return joined_body(segment, call, forward[1]), forward[2]


def _half(name: str, graph: Graph, picks: list[int], checked: list[TensorMeta]) -> tuple[Any, Any, int]:
    """A function of the graph's tensors and numbers, what places the addresses of its inputs, and its number of kernels.

    `picks` are the positions of the tensor inputs among the `checked` tensors.
    """
    try:
        with logs.stage("lower"):
            program = lower(graph)
        if logs.enabled("loops"):
            logs.emit("loops", str(program))
        with logs.stage("fuse"):
            schedule = fuse(program)
        position = dict(zip([b for b in program.inputs if b is not None], picks, strict=True))
        with logs.stage("kernels"):
            calls, placer = bind(schedule, position, checked, emit_cpu, emit_gpu)
        with logs.stage("glue"):
            return kernel_half(name, graph, schedule, calls, placer), placer, len(calls)
    except Unsupported as unsupported:
        logs.emit("graph_breaks", f"a {name} graph runs operator by operator: {unsupported.reason}")
        return operator_half(name, graph), None, 0


def _backward_half(graph: Graph) -> Half:
    metas = [n.meta["val"] for n in graph.nodes if n.op == "placeholder" and isinstance(n.meta["val"], TensorMeta)]
    function, placer, kernels = _half("backward", graph, [*range(len(metas))], metas)
    check = tensor_check([(torch.Tensor, meta) for meta in metas]) if metas and placer is not None else None
    return Half(function, check, placer, kernels, metas)
