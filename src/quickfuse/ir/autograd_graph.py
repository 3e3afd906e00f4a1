"""Walks through the graph that autograd keeps behind tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def nodes_behind(tensors: Iterable[torch.Tensor], until: Iterable[Any] = ()) -> Iterator[Any]:
    """The nodes of autograd's graph that some tensors have a history to, each once, without those of `until` and what only
    these lead to."""
    seen: set[Any] = set(until)
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def leaves_behind(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves that some tensors have a history to."""
    return (node.variable for node in nodes_behind(tensors) if hasattr(node, "variable"))
