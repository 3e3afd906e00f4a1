"""Calls of functional transforms in a trace.

PyTorch's transforms run on traced tensors as on others, and the recorder sees the operators that are left of them, below all
of their levels. But they refuse to run under hooks for what autograd saves: that is looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph

from ..ir.autograd_graph import nodes_behind
from ..ir.transforms import transformed_graph
from .numbers import check_use
from .traced import TracedTensor, traced_in


def check_numbers_in(graph: Graph) -> None:
    """Refuse numbers that change where a transformed function does not use them as plain operands."""
    for node in graph.nodes:
        if node.op in ("call_function", "call_method"):
            inner = transformed_graph(node.target)
            if inner is None:
                check_use(node, True)
            else:
                check_numbers_in(inner)


@contextmanager
def hooks_set_aside(pack: Any, unpack: Any) -> Iterator[None]:
    """The hooks for what autograd saves, which were set last, are not in effect meanwhile."""
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def saved_for(results: Iterable[TracedTensor], operands: Iterable[TracedTensor]) -> Iterator[TracedTensor]:
    """What autograd has saved on the way from some tensors to others."""
    for node in nodes_behind(results, [operand.grad_fn for operand in operands]):
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from traced_in(getattr(node, name))
