"""The tail of a graph: what comes after the last gradient that the graph takes itself.

An optimizer's step, clipping, averages of parameters: no gradient flows through them. So they need no trace, in which
numbers that change have to be recognised by their values and operators on lists fall apart into their members. They go to
the forward graph as they were captured, and are lowered there like a graph that needs no gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ir.effects import Effects
from ..ir.gradients import takes_gradients
from ..ir.modes import MODE_CHANGES
from ..ir.nodes import copied_node
from ..ir.transforms import transformed_graph
from ..ir.values import NumberMeta, TensorMeta
from .outputs import is_lazy
from .recorder import Recorder
from .traced import Memory, TracedTensor, make_traced


class NoTail(Exception):
    """The end of a graph cannot be told apart from what is traced: the whole of it is traced."""


@dataclass(eq=False)
class Tail:
    """`nodes` in order; `uses` are the tensors from before that they read or change, of which they change `changed`.

    `skipped` are all nodes that the trace leaves out: these, and the numbers that nothing else uses.
    """

    nodes: list[Node]
    uses: list[Node] = field(default_factory=list)
    changed: set[Node] = field(default_factory=set)
    skipped: set[Node] = field(default_factory=set)
    #: Where the values of `uses` come from, and of numbers out of tensors: nodes of the joint graph.
    origin: dict[Node, Node] = field(default_factory=dict)
    _operands: dict[Node, list[Node]] = field(default_factory=dict)

    @property
    def changed_inputs(self) -> set[Node]:
        return {node for node in self.changed if node.op == "placeholder"}

    def root(self, node: Node) -> Node:
        """The node in whose memory the tensor of `node` lies: one of `nodes`, or of `uses`."""
        while node in self.skipped:
            call: Any = node
            index: Any = 0
            if node.target is operator.getitem and _has_several(node.args[0]):
                call, index = node.args
            effects: Effects | None = call.meta.get("effects")
            memory = effects.memory if effects is not None else ()
            if index >= len(memory) and any(operand is not None for operand in memory):
                raise NoTail
            operand = memory[index] if index < len(memory) else None
            if operand is None:
                return node
            node = self.operands(call)[operand]
        return node

    def operands(self, call: Node) -> list[Node]:
        """The tensor operands of a call, in the order in which `Effects` numbers them."""
        if call not in self._operands:
            self._operands[call] = _operands(call)
        return self._operands[call]

    def write(self, graph: Graph, made: dict[Node, Node]) -> None:
        """Add the nodes to the forward graph, whose copies of the joint graph's nodes are `made`."""

        def copied(node: Node) -> Node:
            if node in self.origin:
                return made[self.origin[node]]
            if node not in made:  # a number, which the trace may have had no use for
                made[node] = copied_node(graph, node, copied)
            return made[node]

        for node in self.nodes:
            made[node] = copied_node(graph, node, copied)


class TailResults:
    """The end of a trace that leaves out a tail: what the tail takes from it, and what the whole graph returns.

    `inputs` are the joint graph's, `values` those of the traced nodes, and `number_node` finds the joint graph's node of a
    number.
    """

    def __init__(
        self, tail: Tail, recorder: Recorder, inputs: list[Node], values: dict[Node, Any],
        number_node: Callable[[Any], Node | None],
    ) -> None:  # fmt: skip
        self._tail = tail
        self._recorder = recorder
        self._inputs = inputs
        self._values = values
        self._number_node = number_node
        #: The memory that the tail uses, what of it is changed, and what is returned by the trace and by the tail: by ids.
        self._used: set[int] = set()
        self._changed: set[int] = set()
        self._returned: set[int] = set()
        self._returned_late: list[int] = []
        self._numbers: set[Node] = set()

    def of(self, outputs: Any) -> list[Any]:
        """The values of the captured graph's outputs. Those that the tail computes are traced tensors of memory of their
        own, whose node is the captured graph's; numbers are this node itself.

        Raises:
            NoTail: where tensors share memory in ways that the two graphs could not tell each other.
        """
        for node in self._tail.uses:
            self._take(node, self._values[node])
        for node in self._tail.nodes:
            for operand in node.all_input_nodes:
                self._take_number(operand)
        if not all(isinstance(o, Node) and isinstance(o.meta.get("val"), TensorMeta | NumberMeta) for o in outputs):
            raise NoTail
        found = [self._number(output) if _is_number(output) else self._result(output) for output in outputs]
        if len({*self._returned_late} - self._returned) < len(self._returned_late):
            raise NoTail
        return found

    def _take(self, node: Node, value: Any) -> None:
        """Note where the tail finds a tensor."""
        changed = node in self._tail.changed
        if type(value) is not TracedTensor or id(value.memory) in self._used or is_lazy(value):
            raise NoTail
        self._used.add(id(value.memory))
        if node.op == "placeholder":
            self._tail.origin[node] = self._inputs[value.memory.input]
            return
        if value.memory.input is not None or (changed and value.requires_grad):
            raise NoTail
        origin = self._recorder.node_of(value)
        if changed:
            self._changed.add(id(value.memory))
            origin = self._recorder.emit(torch.ops.aten.clone.default, origin)
        self._tail.origin[node] = origin

    def _take_number(self, node: Node) -> None:
        """Note where the tail finds a number that it cannot compute again."""
        if node in self._numbers or not _is_number(node):
            return
        self._numbers.add(node)
        if node.op == "placeholder" or node.meta["val"].from_tensor and node not in self._tail.skipped:
            value = self._values[node]
            origin = value if isinstance(value, Node) else self._number_node(value)
            if origin is None:
                raise NoTail
            self._tail.origin[node] = origin
        else:
            for operand in node.all_input_nodes:
                self._take_number(operand)

    def _number(self, output: Node) -> Any:
        """A number that the graph returns: the captured graph's node, if the tail computes it."""
        if output in self._tail.skipped:
            if output not in self._tail.nodes:
                raise NoTail
            return output
        return self._values[output]

    def _result(self, output: Node) -> Any:
        tail, late = self._tail, output in self._tail.skipped
        if not late and (output.op == "placeholder" or output not in tail.changed):
            value = self._values[output]
            if id(value.memory) in self._changed:
                raise NoTail
            self._returned.add(id(value.memory))
            return value
        root = tail.root(output)
        if root.op == "placeholder" or (late and root in tail.changed):
            raise NoTail
        self._returned_late.append(id(root if root in tail.skipped else self._values[root].memory))
        node = output if late else tail.origin[output]
        meta = output.meta["val"]
        plain = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        return make_traced(plain, Memory(node, plain), (), node)


def tail_of(graph: Graph, grad_enabled: bool) -> Tail | None:
    """What comes after the last gradient, and all of a graph that takes none: it may be the end of one that was taken apart.
    None where that is nothing, or cannot be left out of the trace."""
    nodes = list(graph.nodes)
    last = max((k for k, node in enumerate(nodes) if _takes_gradients(node)), default=-1)
    inside = [node for node in nodes[last + 1 :] if node.op not in ("placeholder", "output")]
    late: set[Node] = set()
    for node in inside:
        source = node.args[0] if node.target is operator.getitem else None
        if not (isinstance(source, Node) and source not in late and _has_several(source)):
            late.add(node)
    tail = Tail([node for node in inside if node in late and node.target is not torch._C._set_grad_enabled])
    changes = [node.args[0] for node in nodes[: last + 1] if node.target is torch._C._set_grad_enabled]
    if not tail.nodes or not _may_follow(inside, bool(changes[-1]) if changes else grad_enabled):
        return None
    tail.skipped = late | _numbers_for(nodes, late)
    try:
        _note_uses(tail)
    except NoTail:
        return None
    return tail


def _takes_gradients(node: Node) -> bool:
    return takes_gradients(node) or transformed_graph(node.target) is not None


def _note_uses(tail: Tail) -> None:
    uses: dict[Node, None] = {}
    for node in tail.nodes:
        for operand in node.all_input_nodes:
            if operand not in tail.skipped and not _is_number(operand):
                uses[operand] = None
        effects: Effects | None = node.meta.get("effects")
        for number in effects.written if effects is not None else ():
            root = tail.root(tail.operands(node)[number])
            if root not in tail.skipped:
                tail.changed.add(root)
    tail.uses = list(uses)


def _may_follow(nodes: list[Node], grad_enabled: bool) -> bool:
    """Whether nodes may be left out of the trace: nothing that autograd or a setting of PyTorch has to do with."""
    for node in nodes:
        effects: Effects | None = node.meta.get("effects")
        written = effects is not None and effects.written
        if node.target is torch._C._set_grad_enabled:
            grad_enabled = bool(node.args[0])
        elif node.target in MODE_CHANGES or (effects is not None and effects.reshaped) or not _is_operator(node):
            return False
        elif any(meta.requires_grad for meta in _metas(node.meta.get("val"))):
            of_autograd = bool(node.args) and isinstance(node.args[0], Node) and takes_gradients(node.args[0])
            if not of_autograd and (grad_enabled or not written or not _needs_gradients(node)):
                return False  # without grad mode too, `x.requires_grad_()` makes a leaf
        elif grad_enabled and written and _needs_gradients(node):  # `x[0] = 1` returns nothing
            return False
    return True


def _needs_gradients(node: Node) -> bool:
    return any(operand.meta["val"].requires_grad for operand in _operands(node))


def _is_operator(node: Node) -> bool:
    """Whether a node is a call of PyTorch's, and not of a function of the user's, or arithmetic on numbers."""
    if node.op != "call_function" or _is_number(node):
        return True
    return (getattr(node.target, "__module__", None) or "torch").startswith(("torch", "_operator", "builtins"))


def _numbers_for(nodes: list[Node], late: set[Node]) -> set[Node]:
    """The numbers, inputs among them, that only nodes in `late` use: no value of theirs has to be told apart."""
    found: set[Node] = set()
    for node in reversed(nodes):
        meta = node.meta.get("val")
        if isinstance(meta, NumberMeta) and not meta.from_tensor and all(u in late or u in found for u in node.users):
            found.add(node)
    return found


def _metas(value: Any) -> Iterator[TensorMeta]:
    if isinstance(value, TensorMeta):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _metas(element)


def _has_several(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), list | tuple)


def _is_number(node: Node) -> bool:
    return isinstance(node.meta.get("val"), NumberMeta)


def _operands(node: Node) -> list[Node]:
    found: list[Node] = []

    def collect(value: Any) -> None:
        if isinstance(value, Node):
            if isinstance(value.meta.get("val"), TensorMeta):
                found.append(value)
        elif isinstance(value, list | tuple):
            for element in value:
                collect(element)
        elif isinstance(value, dict):
            for element in value.values():
                collect(element)

    collect((node.args, node.kwargs))
    return found
