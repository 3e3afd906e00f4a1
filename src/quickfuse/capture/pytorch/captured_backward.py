"""The `forward` and `backward` of a `torch.autograd.Function` as nodes, to be differentiated with what is around the call.

The call itself stays a node that calls the user's class (`custom_functions.py`). What is found here takes its place where
gradients are traced: `forward` runs without gradients there, and `backward` for the gradients of its results, as autograd
has it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from ...errors import Unsupported
from ...ir.modes import MODE_CHANGES
from ...ir.nodes import copied_node, last_node, new_input, nodes_after
from ...ir.own_gradients import OwnGradients
from ...ir.values import TensorMeta
from ..graph.contents import seen_owners
from ..interpreter import Interpreter
from ..symbolic import Symbol, TensorProxy

#: The code of what `once_differentiable` makes, which gives the same wherever gradients of gradients are not recorded.
_ONCE = torch.autograd.function.once_differentiable(lambda ctx: None).__code__


def captured_backward(
    i: Interpreter, backward: Any, context: Any, operands: Sequence[Any], objects: Collection[int],
    outputs: Sequence[TensorProxy], last: Node | None,
) -> OwnGradients:  # fmt: skip
    """What is computed by the nodes after `last`, which are those of `forward`, and by `backward`, which is captured here.

    `operands` are those of the class, of which the call gets all but those at `objects`; `outputs` are what `forward`
    returned.

    Raises:
        Unsupported: with the reason why `backward` has to be called.
        Raised: what it raises.
    """
    graph = i.graph
    forward = _computed(i, last)
    made = [graph.call("call_function", torch.zeros_like, (output,), {}) for output in outputs]
    begin, effects, mutated = last_node(graph.graph), i.outside.noted(), set(graph.mutated)
    found = i.call_now(backward, (context, *made))
    found = found if isinstance(found, tuple) else (found,)
    backward_ = _computed(i, begin)
    if i.outside.has_changed(effects) or changes_others(i, begin, mutated):
        raise Unsupported("a backward pass with side effects")
    if len(found) != len(operands) or not all(f is None or type(f) is TensorProxy for f in found):
        raise Unsupported("a backward pass that gives other things than a gradient for each operand")
    passed = [k for k, operand in enumerate(operands) if type(operand) in (TensorProxy, Symbol)]
    given = [None if found[k] is None else graph.node_of(found[k]) for k in passed]
    taken, results = [graph.node_of(operands[k]) for k in passed], [graph.node_of(output) for output in outputs]
    gradients = [graph.node_of(gradient) for gradient in made]
    saved = dict.fromkeys(graph.node_of(t) for t in context.saved if type(t) is TensorProxy)
    for node in _used(backward_, given):
        if node in saved or node in gradients or not isinstance(node.meta.get("val"), TensorMeta):
            continue
        if node in taken or node in results or not set(seen_owners(node)) <= {*forward} - {*results}:
            raise Unsupported("a tensor that a backward pass uses, which was not saved for it")
        saved[node] = None  # nobody else has it, and so nobody changes it
    copies = _Copies()
    place = {k: place for place, k in enumerate(k for k in range(len(operands)) if k not in objects)}
    not_differentiable = [k for k, o in enumerate(outputs) if any(o is other for other in context.not_differentiable)]
    return OwnGradients(
        positions=tuple([place[k] for k in passed]), operands=copies.placeholders(taken), forward=copies.of_all(forward),
        results=copies.known_of(results), not_differentiable=tuple(not_differentiable), saved=copies.known_of(saved),
        gradients=copies.placeholders(gradients), backward=copies.of_all(backward_),
        given=tuple([None if node is None else copies.known_of([node])[0] for node in given]),
        once=backward.__code__ is _ONCE,
    )  # fmt: skip


def _computed(i: Interpreter, last: Node | None) -> list[Node]:
    """The calls after a node, in order."""
    return [node for node in reversed([*nodes_after(i.graph.graph, last)]) if node.op != "placeholder"]


def changes_others(i: Interpreter, last: Node | None, mutated: set[str]) -> bool:
    """Whether operators after a node changed tensors that they did not make; `mutated` are those changed before."""
    made = {*_computed(i, last)}
    changed = [node for node in made if node.name in i.graph.mutated]
    others = i.graph.mutated - mutated - {node.name for node in changed}
    return bool(others) or any(owner not in made for node in changed for owner in seen_owners(node))


def _used(nodes: Sequence[Node], returned: Sequence[Node | None]) -> list[Node]:
    """What nodes, and a result, take from before."""
    inside = set(nodes)
    operands = [operand for node in nodes for operand in node.all_input_nodes]
    return [*dict.fromkeys(n for n in [*operands, *returned] if n is not None and n not in inside)]


class _Copies:
    """A graph of copies of nodes."""

    def __init__(self) -> None:
        self._graph = Graph()
        self._known: dict[Node, Node] = {}

    def placeholders(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """One for each of the nodes, in their place."""
        for node in nodes:
            made = self._known[node] = new_input(self._graph, node.name)
            made.meta.update(node.meta)
        return self.known_of(nodes)

    def of_all(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Copies of calls. That gradients are off is said for the nodes of a capture, and not by them."""
        made = []
        for node in nodes:
            if node.target is torch._C._set_grad_enabled and node.args == (False,):
                continue
            if node.target in MODE_CHANGES:
                raise Unsupported("changes of modes")
            copy = self._known[node] = copied_node(self._graph, node, self._known_or_not)
            made.append(copy)
        return tuple(made)

    def known_of(self, nodes: Collection[Node]) -> tuple[Node, ...]:
        """The copies of nodes."""
        return tuple([self._known_or_not(node) for node in nodes])

    def _known_or_not(self, node: Node) -> Node:
        if node not in self._known:
            raise Unsupported("a tensor or number from outside that is no operand")
        return self._known[node]
