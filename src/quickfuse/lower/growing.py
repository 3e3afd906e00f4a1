"""Concatenations that begin as others do are kept in one piece of memory: that of the last of them.

Each stores only what it adds, where a copy of its own would hold all that came before once more. So a block of DenseNet,
each of whose layers gets the concatenation of all layers before it, takes as much memory as its last concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer
from quickfuse.ir.values import TensorMeta, contiguous_stride, stride_in_order

from .context import Context
from .joining import part
from .memory_order import axes_as_read
from .prefixes import Chain, prefix_chains
from .promotion import SUPPORTED
from .rules import ALL_DEVICES
from .symbolic import Storage, Tensor


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
class _Growing:
    """The memory of a chain, and what it holds so far."""

    chain: Chain
    buffer: Buffer | None = None
    parts: list[_Part] = field(default_factory=list)
    end: int = 0
    #: The last concatenation so far.
    whole: _Part | None = None
    count: int = 0


class GrowingConcatenations:
    """The concatenations of a graph that share memory. `needs_memory` tells of a node whether it reads its operands as
    dense memory, not as formulas: then sharing would mean another copy."""

    def __init__(self, graph: Graph, needs_memory: Callable[[Node], bool]) -> None:
        self._of: dict[Node, _Growing] = {}
        for chain in prefix_chains(graph):
            if _is_worth_it(chain, needs_memory):
                self._of.update(dict.fromkeys(chain.nodes, _Growing(chain)))

    def __contains__(self, node: Node) -> bool:
        return node in self._of

    def joined(self, ctx: Context, node: Node, tensors: Any, meta: TensorMeta) -> Tensor | None:
        """The result of one of these concatenations, of `tensors`; None where it has no part in this any more."""
        growing = self._of[node]
        if growing.chain.nodes[growing.count] is not node:
            return None
        added = _added(growing, list(tensors))
        if added is None:
            return None
        for tensor in added:
            self._add(ctx, growing, tensor)
        buffer = growing.buffer
        assert buffer is not None and growing.end == meta.shape[growing.chain.axis]
        storage = Storage(meta, Load(Access(buffer, 0, buffer.meta.stride), meta.dtype))
        result = Tensor(storage, meta)
        growing.whole = _Part(result, storage.mutated)
        growing.count += 1
        return result

    def _add(self, ctx: Context, growing: _Growing, tensor: Tensor) -> None:
        axis, last = growing.chain.axis, growing.chain.last
        value = part(ctx, tensor, last.dtype)
        if growing.buffer is None:
            axes = axes_as_read(value, last.shape, contiguous_stride(last.shape))
            stride = stride_in_order(last.shape, axes)
            growing.buffer = ctx.temp(TensorMeta(last.dtype, last.shape, stride, last.device))
        shape = tensor.meta.shape
        ctx.store(growing.buffer, value, shape, growing.end * growing.buffer.meta.stride[axis])
        growing.parts.append(_Part(tensor, tensor.storage.mutated))
        growing.end += shape[axis]


def _is_worth_it(chain: Chain, needs_memory: Callable[[Node], bool]) -> bool:
    last = chain.last
    copied = sum(node.meta["val"].numel for node in chain.nodes[:-1])
    if last.device.type not in ALL_DEVICES or last.dtype not in SUPPORTED or last.dtype.is_complex:
        return False
    if last.numel * last.dtype.itemsize < COSTS.least_shared_concatenation or copied < last.numel:
        return False
    users = {user for node in chain.nodes for user in node.users} - set(chain.nodes)
    return not any(needs_memory(user) for user in users if user.op != "output")


def _added(growing: _Growing, tensors: list[Any]) -> list[Tensor] | None:
    """The tensors that are not there yet; None where those before them are not what they were."""
    if any(type(tensor) is not Tensor or tensor.is_number or not tensor.meta.numel for tensor in tensors):
        return None
    if growing.whole is not None and growing.whole.is_still(tensors[0]):
        return tensors[1:]
    known = len(growing.parts)
    if len(tensors) < known or not all(p.is_still(t) for p, t in zip(growing.parts, tensors, strict=False)):
        return None
    return tensors[known:]
