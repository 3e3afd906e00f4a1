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
    """Computes nodes of the graph that ran until an operator failed. `known` has values by the names of nodes: it gets those
    that are computed."""

    def __init__(self, graph: Graph, known: dict[str, Any]) -> None:
        self._nodes = [node for node in graph.nodes if node.op != "output"]
        self._known = known
        self._kept = {memory_of(node) for node in self._nodes if node.name in known}
        self._inputs = [node for node in self._nodes if node.op == "placeholder"]

    def compute(self, wanted: Iterable[Node]) -> list[Any]:
        """The values of nodes.

        Raises:
            Unsupported: where what is computed now could be another value, or would not share memory with the same tensors.
        """
        needed: dict[Node, None] = {}
        wanted = list(wanted)
        self._collect(wanted, needed)
        if needed and any(n.target in MODE_CHANGES and n.target is not torch._C._set_grad_enabled for n in self._nodes):
            raise Unsupported("a lost value in a graph that changes settings")
        with _WithoutRandomNumbers():
            for node in sorted(needed, key=self._nodes.index):
                self._known[node.name] = self._computed(node)
        return [self._known[node.name] for node in wanted]

    def _collect(self, wanted: list[Node], needed: dict[Node, None]) -> None:
        stack = [*wanted]
        while stack:
            node = stack.pop()
            if node.name in self._known or node in needed:
                continue
            if not self._gives_the_same(node):
                raise Unsupported("a value that generated code has let go of")
            needed[node] = None
            stack += node.all_input_nodes

    def _computed(self, node: Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda operand: self._known[operand.name])
        meta = node.meta.get("val")
        metas = meta if isinstance(meta, (list, tuple)) else [meta]
        recorded = any(isinstance(m, TensorMeta) and m.requires_grad for m in metas)
        with torch.set_grad_enabled(recorded):
            if node.op == "call_method":
                return getattr(args[0], str(node.target))(*args[1:], **kwargs)
            return node.target(*args, **kwargs)  # type: ignore[operator]

    def _gives_the_same(self, node: Node) -> bool:
        """Whether a call gives now what it gave when the graph ran: it has no effects, no other value shares its memory, and
        nothing has changed its operands or itself."""
        if node.op not in ("call_function", "call_method") or takes_gradients(node) or _is_of_others(node):
            return False
        effects = effects_in(node)
        if effects.written or effects.reshaped or any(user.target in _KEPT_BY_TENSORS for user in node.users):
            return False
        own = memory_of(node)
        if own.op != "placeholder" and own.name not in self._known and own in self._kept:
            return False
        seen = {own, *map(memory_of, node.all_input_nodes)}
        later = self._nodes[self._nodes.index(node) + 1 :]
        changed = {memory_of(operand) for after in later for operand in _changed(after)}
        return seen.isdisjoint(changed) and self._memory(seen).isdisjoint(self._memory(changed))

    def _memory(self, nodes: Iterable[Node]) -> set[int]:
        """The memory of inputs, of which several may have the same."""
        values = [self._known.get(node.name) for node in nodes if node.op == "placeholder"]
        return {value.untyped_storage()._cdata for value in values if isinstance(value, torch.Tensor)}


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
