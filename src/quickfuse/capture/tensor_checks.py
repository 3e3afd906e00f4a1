"""The questions of `ir.tensor_checks`, asked by the program: guards hold what is answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import Unsupported
from ..ir.source import Source
from ..ir.tensor_checks import TensorChecks, first_overlap, first_unlike, is_like, overlapping
from .contents import owners
from .interpreter import Interpreter
from .symbolic import TENSOR_TYPES, FromOutside, TensorProxy


def _first_unlike(i: Interpreter, checks: Any, values: Any) -> int | None:
    """What is known of tensors is guarded, but for `requires_grad`."""
    expected = _real(i, checks).expected
    for position, (value, wanted) in enumerate(zip(i.outside.contents(values), expected, strict=True)):
        if wanted is None:
            continue
        if type(value) is not TensorProxy or value.cls not in TENSOR_TYPES:
            return position
        meta, needs_grad = wanted
        if not is_like(value.meta, value.meta.shape, value.meta.stride, meta):
            return position
        if needs_grad is not None:
            i.outside.guard_requires_grad(value)
            if value.meta.requires_grad != needs_grad:
                return position
    return None


def _overlapping(i: Interpreter, checks: Any, values: Any) -> None:
    """No tensors share memory, or the question is asked in Python."""
    asked, tensors = _real(i, checks), i.outside.contents(values)
    changed, others = ([_memory(i, tensors[k]) for k in positions] for positions in (asked.changed, asked.others))
    seen: set[torch.fx.Node] = set()
    for nodes in changed:
        if not seen.isdisjoint(nodes):
            raise Unsupported("a question about tensors that may share memory")
        seen |= nodes
    if not all(seen.isdisjoint(nodes) for nodes in others):
        raise Unsupported("a question about tensors that may share memory")
    inputs = [_inputs(i, changed), _inputs(i, others)]
    given = [tensor for found in inputs for tensor in found.values()]
    if first_overlap(given, range(len(inputs[0])), range(len(inputs[0]), len(given))) is not None:
        raise Unsupported("a question about tensors that share memory")
    if inputs[0] and len(given) > 1:
        i.outside.guard("apart", None, tuple(map(tuple, inputs)))


def _real(i: Interpreter, checks: Any) -> TensorChecks:
    if not isinstance(checks, FromOutside) or not isinstance(checks.real, TensorChecks):
        raise Unsupported("a question about tensors that is put together in the program")
    i.outside.guard("is", checks.source, checks.real)
    return checks.real


def _memory(i: Interpreter, tensor: Any) -> set[torch.fx.Node]:
    """The nodes of the graph in whose memory a tensor may lie."""
    if type(tensor) is not TensorProxy:
        raise Unsupported("a question about the memory of what is no tensor")
    return {*owners(i.graph.node_of(tensor))}


def _inputs(i: Interpreter, memories: list[set[torch.fx.Node]]) -> dict[Source, Any]:
    """The tensors from outside in whose memory nodes may lie, by where they come from."""
    return dict(i.graph.contents.example(n) for nodes in memories for n in nodes if n.op == "placeholder")


HANDLERS: dict[Any, Callable[..., Any]] = {first_unlike: _first_unlike, overlapping: _overlapping}
