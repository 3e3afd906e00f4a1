"""Concatenations that begin as others do are kept in one piece of memory: that of the last of them.

Each stores only what it adds, where a copy of its own would hold all that came before once more. So a block of DenseNet,
each of whose layers gets the concatenation of all layers before it, takes as much memory as its last concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer
from quickfuse.ir.values import TensorMeta, contiguous_stride, stride_in_order

from .context import Context
from .joining import part
from .layout import axes_as_read
from .promotion import SUPPORTED
from .rules import ALL_DEVICES
from .symbolic import Storage, Tensor

# --- which concatenations begin as others do ---

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
        if chain is not None and _goes_on(chain, node, given, parts[chain.nodes[-1]]):
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


def _goes_on(chain: Chain, node: Node, parts: list[Node], others: list[Node]) -> bool:
    one, two = node.meta["val"], chain.last
    return parts[: len(others)] == others and (one.dtype, one.device) == (two.dtype, two.device)


@dataclass(eq=False, slots=True)
class _Part:
    """A tensor as it was when it became a part."""

    tensor: Tensor
    mutated: int

    def is_still(self, other: Tensor) -> bool:
        one = self.tensor
        same = one is other or (one.storage is other.storage and (one.meta, one.offset) == (other.meta, other.offset))
        return same and other.storage.mutated == self.mutated


@dataclass(eq=False, slots=True)
class _Shared:
    """The memory of a chain, and what it holds so far."""

    chain: Chain
    buffer: Buffer | None = None
    parts: list[_Part] = field(default_factory=list)
    end: int = 0
    #: The last concatenation so far.
    whole: _Part | None = None
    count: int = 0


class SharedConcatenations:
    """The concatenations of a graph that share memory. `needs_memory` tells of a node whether it reads its operands as
    dense memory, not as formulas: then sharing would mean another copy."""

    def __init__(self, graph: Graph, needs_memory: Callable[[Node], bool]) -> None:
        self._of: dict[Node, _Shared] = {}
        for chain in prefix_chains(graph):
            if _is_worth_it(chain, needs_memory):
                self._of.update(dict.fromkeys(chain.nodes, _Shared(chain)))

    def __contains__(self, node: Node) -> bool:
        return node in self._of

    def joined(self, ctx: Context, node: Node, tensors: Any, meta: TensorMeta) -> Tensor | None:
        """The result of one of these concatenations, of `tensors`; None where it has no part in this any more."""
        shared = self._of[node]
        if shared.chain.nodes[shared.count] is not node:
            return None
        added = _added(shared, list(tensors))
        if added is None:
            return None
        for tensor in added:
            self._add(ctx, shared, tensor)
        buffer = shared.buffer
        assert buffer is not None and shared.end == meta.shape[shared.chain.axis]
        storage = Storage(meta, Load(Access(buffer, 0, buffer.meta.stride), meta.dtype))
        result = Tensor(storage, meta)
        shared.whole = _Part(result, storage.mutated)
        shared.count += 1
        return result

    def _add(self, ctx: Context, shared: _Shared, tensor: Tensor) -> None:
        axis, last = shared.chain.axis, shared.chain.last
        value = part(ctx, tensor, last.dtype)
        if shared.buffer is None:
            axes = axes_as_read(value, last.shape, contiguous_stride(last.shape))
            stride = stride_in_order(last.shape, axes)
            shared.buffer = ctx.temp(TensorMeta(last.dtype, last.shape, stride, last.device))
        shape = tensor.meta.shape
        ctx.store(shared.buffer, value, shape, shared.end * shared.buffer.meta.stride[axis])
        shared.parts.append(_Part(tensor, tensor.storage.mutated))
        shared.end += shape[axis]


def _is_worth_it(chain: Chain, needs_memory: Callable[[Node], bool]) -> bool:
    last = chain.last
    copied = sum(node.meta["val"].numel for node in chain.nodes[:-1])
    if last.device.type not in ALL_DEVICES or last.dtype not in SUPPORTED or last.dtype.is_complex:
        return False
    if last.nbytes < COSTS.least_shared_concatenation or copied < last.numel:
        return False
    users = {user for node in chain.nodes for user in node.users} - set(chain.nodes)
    return not any(needs_memory(user) for user in users if user.op != "output")


def _added(shared: _Shared, tensors: list[Any]) -> list[Tensor] | None:
    """The tensors that are not there yet; None where those before them are not what they were."""
    if any(type(tensor) is not Tensor or tensor.is_number or not tensor.meta.numel for tensor in tensors):
        return None
    if shared.whole is not None and shared.whole.is_still(tensors[0]):
        return tensors[1:]
    known = len(shared.parts)
    if len(tensors) < known or not all(p.is_still(t) for p, t in zip(shared.parts, tensors, strict=False)):
        return None
    return tensors[known:]
