"""Values that a program still holds where its graph failed, but that no operator of the graph needed any more.

Generated code lets go of them, and of those inside of a compiled subgraph it has only what leaves it. They are computed
again, from inputs of the graph and from values that are known, where that gives the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.gradients import takes_gradients
from ..ir.modes import MODE_CHANGES, DispatchMode
from ..ir.sharing import effects_in, memory_of, written_operands
from ..ir.values import TensorMeta

#: The modules of functions that depend on nothing but their operands.
_OF_PYTORCH = frozenset({"torch", "_operator", "math", "builtins"})
#: Methods that make a tensor itself another one, for autograd.
_KEPT_BY_TENSORS = frozenset({"register_hook", "retain_grad", "requires_grad_"})


class LostValues:
    """Computes nodes of the graph that ran until an operator failed. `known` has values by the names of nodes."""

    def __init__(self, graph: Graph, known: dict[str, Any]) -> None:
        self._nodes = [node for node in graph.nodes if node.op != "output"]
        self._known = known
        self._place = {node: k for k, node in enumerate(self._nodes)}
        #: Which node changes a piece of memory last: of nodes, and of inputs, of which several may have the same.
        self._last_change: dict[Any, int] = {}
        for k, node in enumerate(self._nodes):
            changed = {*map(memory_of, _changed(node))}
            self._last_change |= dict.fromkeys([*changed, *self._memory(changed)], k)

    def compute(self, wanted: Iterable[Node]) -> list[Any]:
        """The values of nodes.

        Raises:
            Unsupported: where what is computed now could be another value, or would not share memory with the same tensors.
        """
        wanted, known = list(wanted), dict(self._known)
        try:
            while self._forget_results_of(needed := self._collect(wanted)):
                pass
            return self._compute(wanted, needed)
        except Unsupported:  # what was computed from lost values cannot be computed again: it keeps its history
            self._known = known
            return self._compute(wanted, self._collect(wanted))

    def _compute(self, wanted: list[Node], needed: set[Node]) -> list[Any]:
        if needed and any(n.target in MODE_CHANGES and n.target is not torch._C._set_grad_enabled for n in self._nodes):
            raise Unsupported("a lost value in a graph that changes settings")
        with _WithoutRandomNumbers():
            for node in sorted(needed, key=self._place.__getitem__):
                self._known[node.name] = self._computed(node)
        return [self._known[node.name] for node in wanted]

    def _collect(self, wanted: list[Node]) -> set[Node]:
        """The nodes that have to be computed for those that are wanted."""
        needed = set[Node]()
        kept = {memory_of(node) for node in self._nodes if node.name in self._known}
        stack = [*wanted]
        while stack:
            node = stack.pop()
            if node.name in self._known or node in needed:
                continue
            if not self._gives_the_same(node, kept):
                raise Unsupported("a value that generated code has let go of")
            needed.add(node)
            stack += node.all_input_nodes
        return needed

    def _forget_results_of(self, needed: set[Node]) -> bool:
        """Let known values be lost, too, whose history leads to nodes that are to be computed: gradients would flow from
        them to other tensors than the program gets. Returns whether there are any."""
        leading = {node for node in needed if _is_recorded(node)}
        forgotten = False
        for node in self._nodes if leading else ():
            if node not in leading and _is_recorded(node) and not leading.isdisjoint(node.all_input_nodes):
                leading.add(node)
                forgotten |= self._known.pop(node.name, None) is not None
        return forgotten

    def _computed(self, node: Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: self._known[operand.name])
        with torch.set_grad_enabled(_is_recorded(node)):
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _gives_the_same(self, node: Node, kept: set[Node]) -> bool:
        """Whether a call gives now what it gave when the graph ran: it has no effects, no known value has its memory, as
        `kept` tells, and nothing has changed its operands or itself."""
        if node.op not in ("call_function", "call_method") or takes_gradients(node) or _is_of_others(node):
            return False
        effects = effects_in(node)
        if effects.written or effects.reshaped or any(user.target in _KEPT_BY_TENSORS for user in node.users):
            return False
        own = memory_of(node)
        if own.op != "placeholder" and own.name not in self._known and own in kept:
            return False
        seen = {own, *map(memory_of, node.all_input_nodes)}
        return all(self._last_change.get(memory, 0) <= self._place[node] for memory in (*seen, *self._memory(seen)))

    def _memory(self, nodes: Iterable[Node]) -> set[int]:
        """The memory of those that are inputs."""
        values = [self._known.get(node.name) for node in nodes if node.op == "placeholder"]
        return {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}


def _is_recorded(node: Node) -> bool:
    """Whether autograd has a history of what a call gave."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    return any(isinstance(m, TensorMeta) and m.requires_grad for m in metas)


def _is_of_others(node: Node) -> bool:
    """Whether a node calls a function that is none of PyTorch's, so that a call may do anything."""
    if node.op == "call_method":
        return False
    module = getattr(node.target, "__module__", None) or "torch"
    return "own_gradients" in node.meta or module.partition(".")[0] not in _OF_PYTORCH


def _changed(node: Node) -> list[Node]:
    reshaped = effects_in(node).reshaped
    return node.all_input_nodes if reshaped else written_operands(node)


class _WithoutRandomNumbers(DispatchMode):
    """Refuses operators that draw random numbers: others would come than before."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in function.tags:
            raise Unsupported("a lost value made of random numbers")
        return function(*args, **(kwargs or {}))
