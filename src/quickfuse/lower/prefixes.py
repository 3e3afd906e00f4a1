"""Concatenations that begin as others do: layers that each get all that the layers before them gave.

    x1 = cat([a, b])        x2 = cat([a, b, c])        x3 = cat([x2, d])

Each of these begins with the one before, so that the memory of the last one holds them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from quickfuse.ir.values import TensorMeta

_CONCATENATIONS = frozenset({torch.cat, torch.concat, torch.concatenate, torch.ops.aten.cat.default})


@dataclass(eq=False, slots=True)
class Chain:
    """Concatenations along one axis, each of which begins with the one before it."""

    axis: int
    nodes: list[Node]

    @property
    def last(self) -> TensorMeta:
        meta: TensorMeta = self.nodes[-1].meta["val"]
        return meta


def prefix_chains(graph: Graph) -> list[Chain]:
    """The chains of more than one concatenation in a graph whose nodes have metadata."""
    chains: dict[tuple[Node, int], Chain] = {}
    parts: dict[Node, list[Node]] = {}
    found = []
    for node in graph.nodes:
        joined = _joined(node) if node.op == "call_function" and node.target in _CONCATENATIONS else None
        if joined is None:
            continue
        first, axis = joined[0][0], joined[1]
        given = joined[0]
        if first in parts and _joined(first)[1] == axis:  # type: ignore[index]
            given = [*parts[first], *given[1:]]
        chain = chains.get((given[0], axis))
        if chain is not None and _begins(given, parts[chain.nodes[-1]]) and _alike(node, chain):
            chain.nodes.append(node)
            if len(chain.nodes) == 2:
                found.append(chain)
        else:
            chains[given[0], axis] = Chain(axis, [node])
        parts[node] = given
    return found


def _joined(node: Node) -> tuple[list[Node], int] | None:
    """The tensors that a node concatenates, and the axis."""
    meta: Any = node.meta.get("val")
    args = dict(zip(("tensors", "dim"), node.args, strict=False)) | dict(node.kwargs)
    tensors, axis = args.get("tensors"), args.get("dim", args.pop("axis", 0))
    if type(meta) is not TensorMeta or not meta.shape or type(axis) is not int or set(args) - {"tensors", "dim"}:
        return None
    if not isinstance(tensors, (list, tuple)) or not tensors or any(type(t) is not Node for t in tensors):
        return None
    if any(type(m := t.meta.get("val")) is not TensorMeta or len(m.shape) != len(meta.shape) for t in tensors):
        return None
    return list(tensors), axis % len(meta.shape)


def _begins(parts: list[Node], others: list[Node]) -> bool:
    return parts[: len(others)] == others


def _alike(node: Node, chain: Chain) -> bool:
    one, two = node.meta["val"], chain.last
    return (one.dtype, one.device) == (two.dtype, two.device)
