"""Values that are stored although nobody needs them in memory: formulas made of them would read too many tensors.

The sum that runs through all layers of a model reads one tensor more after each. As a formula it would be read from its
beginning by each layer, in a kernel unlike those of all others.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, Node

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import Expr, Load, Op, Place
from quickfuse.ir.loop import Buffer
from quickfuse.ir.nodes import is_view
from quickfuse.ir.values import TensorMeta

from .layout import costs_at_least

#: Where a value reads: in which buffers, from which offsets on.
_Places = frozenset[tuple[Buffer, int]]
_NOWHERE: _Places = frozenset()
#: Of what a value reads, so many of the largest inputs and of the largest other buffers tell whether that is too much.
_ENOUGH = 1 + max(
    COSTS.most_read, COSTS.most_read_again, COSTS.most_read_after_calls, COSTS.most_read_again_after_calls
)  # fmt: skip


class ValueReads:
    """What the values of one lowering read."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Expr, _Places]] = {}  # by the operation's id, with what keeps the id

    def are_too_many(self, value: Expr, size: int, users: int) -> bool:
        """Whether a value of `size` elements, which `users` nodes of the graph take, should be stored.

        Tensors that are much smaller than the value do not count: they stay in the cache. Nor do inputs, such as what an
        optimizer reads: formulas of layers are made of what other layers store.
        """
        if not isinstance(value, Op):
            return False
        most = COSTS.most_read_again if users > 1 else COSTS.most_read
        return self._reads_more(value, size, most, with_inputs=False)

    def are_too_many_after_calls(self, value: Expr, size: int, users: int) -> bool:
        """Whether a value that was formed before a call and is used after it should be stored before."""
        if not isinstance(value, Op) or size * value.dtype.itemsize < COSTS.large_bytes:
            return False
        most = COSTS.most_read_again_after_calls if users > 1 else COSTS.most_read_after_calls
        return self._reads_more(value, size, most, with_inputs=True)

    def are_of_one_input(self, value: Expr, size: int, choices: int) -> bool:
        """Whether a value is as good as stored: it is soon computed from as much memory as it would take, of inputs.

        What computes gradients reads these anyway: that of a layer with an activation reads the layer's operand.
        """
        if not isinstance(value, Op):
            return True
        if costs_at_least(value, COSTS.few_additions * choices):
            return False
        places = self._places(value)
        large = [b for b, _ in places if b.meta.ndim > 1]
        if len(places) >= _ENOUGH or any(b.kind != "input" for b in large):
            return False
        return 4 * sum(b.meta.numel for b in large) <= 5 * size

    def _reads_more(self, value: Op, size: int, most: int, *, with_inputs: bool) -> bool:
        places = self._places(value)
        if len(places) <= most:
            return False
        return sum(2 * b.meta.numel >= size and (with_inputs or b.kind != "input") for b, _ in places) > most

    def _places(self, root: Op) -> _Places:
        known = self._known
        stack: list[Op] = [root]
        while stack:
            node = stack[-1]
            missing = [arg for arg in node.args if isinstance(arg, Op) and id(arg) not in known]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            if id(node) not in known:
                known[id(node)] = (node, _largest(_NOWHERE.union(*map(self._read_by, node.args))))
        return known[id(root)][1]

    def _read_by(self, argument: Expr) -> _Places:
        if isinstance(argument, Op):
            return self._known[id(argument)][1]
        if isinstance(argument, (Load, Place)):
            buffer = argument.access.buffer
            if buffer.meta.shape:
                return frozenset([(buffer, argument.access.offset)])
        return _NOWHERE


def _largest(places: _Places) -> _Places:
    """Those that count: a formula that grows with the program reads more and more, most of it small."""
    if len(places) <= 2 * _ENOUGH:
        return places
    ordered = sorted(places, key=lambda place: -place[0].meta.numel)
    inputs = [place for place in ordered if place[0].kind == "input"]
    others = [place for place in ordered if place[0].kind != "input"]
    return frozenset(inputs[:_ENOUGH] + others[:_ENOUGH])


# --- values that are compared for equality ---

aten = torch.ops.aten

_EQUALITIES = frozenset({aten.eq.Tensor, aten.ne.Tensor, torch.eq, torch.ne, operator.eq, operator.ne, "eq", "ne"})


def compared_for_equality(graph: Graph) -> frozenset[Node]:
    """The nodes whose values are compared for equality, directly or by a view, and used elsewhere, too."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.target in _EQUALITIES and len(node.all_input_nodes) > 1:
            for operand in node.all_input_nodes:
                whole = _viewed(operand)
                meta = whole.meta.get("val")
                if not isinstance(meta, TensorMeta) or not meta.dtype.is_floating_point or meta.numel == 1:
                    continue
                if len(whole.users) > 1 or len(operand.users) > 1:
                    found.add(whole)
    return frozenset(found)


def _viewed(node: Node) -> Node:
    """The node of which a node is a view, or the node itself."""
    while node.all_input_nodes and is_view(node.target):
        node = node.all_input_nodes[0]
    return node
