"""Cutting a joint graph into a forward and a backward graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.failing import may_refuse_elements
from ..ir.gradients import Differentiated, Saved
from ..ir.nodes import copied_node, new_input
from ..ir.values import TensorMeta, overlaps_itself, span_of
from .drawing import draws_random_numbers
from .joint import Joint
from .partition import Plan, needs_tangents
from .recompute import is_number
from .recorder import Recorder

aten = torch.ops.aten

#: Operators without results that raise: `linalg.inv`, say, is `linalg_inv_ex` and such a check to autograd.
_CHECKS = (aten._assert_async.default, aten._linalg_check_errors.default)


def split(joint: Joint, plan: Plan) -> Differentiated:
    """The two graphs, with what `plan` keeps passed from one to the other."""
    forward, saved, bytes_saved = _Forward(joint, plan).build()
    backward, numbers, seen = build_backward(joint, plan)
    outputs = [*[t.meta for t in joint.plan.tensors], *[node.meta["val"] for node in joint.plan.numbers]]
    return Differentiated(
        forward, backward, outputs, joint.plan.differentiable, joint.plan.reached, joint.plan.clashing, saved,
        _needed_by(backward, joint, len(saved)), numbers, [node.meta["val"] for node in joint.tangents], joint.wanted,
        joint.plan.results, _changed_inputs(joint), joint.draws, bytes_saved, joint.bytes, used_up=joint.used_up,
        has_tail=joint.tail is not None, order=joint.order, read_before=_read_before_changed(joint),
        kept_inputs=joint.kept_inputs, latest_first=joint.plan.latest_first, dependence=joint.plan.dependence,
        in_memory=seen,
    )  # fmt: skip


def _needed_by(backward: Graph, joint: Joint, count: int) -> list[frozenset[int]]:
    """Which differentiable outputs, by number, need each saved tensor."""
    placeholders = [node for node in backward.nodes if node.op == "placeholder"]
    results = len(joint.plan.differentiable)
    if results == 1:
        return [frozenset([0])] * count
    behind: dict[Node, frozenset[int]] = {}
    for number in range(results):
        behind |= {node: frozenset([number]) for node in placeholders if node.name == f"tangent{number}"}
    nothing: frozenset[int] = frozenset()
    for node in backward.nodes:
        if found := nothing.union(*[behind[operand] for operand in node.all_input_nodes if operand in behind]):
            behind[node] = found
    needed = dict(behind)
    for node in reversed(backward.nodes):
        if node not in behind:  # it is computed from what is saved alone
            needed[node] = nothing.union(*[needed[user] for user in node.users])
    return [needed[node] for node in placeholders[:count]]


def _changed_inputs(joint: Joint) -> list[int]:
    """The positions of the inputs that are changed."""
    changed = {*joint.written, *joint.changed_later}
    if joint.tail is not None:
        late = {joint.tail.origin[node] for node in joint.tail.changed_inputs}
        changed.update(k for k, node in enumerate(joint.inputs) if node in late)
    return sorted(changed)


def _read_before_changed(joint: Joint) -> list[int]:
    """Those of the inputs that are changed on whose old contents gradients depend."""
    seen: set[Node] = set()
    waiting = [gradient for gradient in joint.gradients if gradient is not None]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes if not _is_batch_norm(node) else _nodes_in(node.args[:3])
    return [k for k in _changed_inputs(joint) if joint.inputs[k] in seen]


def _is_batch_norm(node: Node) -> bool:
    """Whether it is a batch norm in training, whose result does not depend on the averages that it updates."""
    return node.target is aten._native_batch_norm_legit_functional.default and node.args[5] is True


def _nodes_in(arguments: Any) -> list[Node]:
    return [argument for argument in arguments if isinstance(argument, Node)]


class _Copier:
    """Copies nodes of the joint graph into another one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made: dict[Node, Node] = {}

    def placeholder(self, node: Node, name: str) -> Node:
        made = new_input(self.graph, name)
        made.meta.update(node.meta)
        self.made[node] = made
        return made

    def copy(self, node: Node) -> Node:
        made = self.made[node] = copied_node(self.graph, node, self.made.__getitem__)
        return made


class _Forward(_Copier):
    def __init__(self, joint: Joint, plan: Plan) -> None:
        super().__init__(Graph())
        self.joint = joint
        self.plan = plan

    def build(self) -> tuple[Graph, list[Saved], int]:
        joint, plan = self.joint, self.plan
        late = [] if joint.tail is None else [*joint.tail.origin.values()]
        checks = {n for n in joint.graph.nodes if n.target in _CHECKS}
        if checks:
            checks -= needs_tangents(joint)  # those are in the backward graph
        effects = [n for n in joint.graph.nodes if draws_random_numbers(n) or n in checks]
        numbers = joint.plan.numbers
        wanted = _ancestors([*joint.traced_outputs, *numbers, *joint.written.values(), *plan.kept, *late, *effects])
        wanted |= _ancestors(_refusing_in_vain(joint, wanted))
        inputs = {node: position for position, node in enumerate(joint.inputs)}
        for node in joint.graph.nodes:
            if node in inputs:
                self.placeholder(node, node.name)
            elif node in wanted:
                self.copy(node)
        extra: list[Node] = []
        places = {node: k for k, node in reversed([*enumerate(joint.outputs)])}
        saved = []
        for node in plan.kept:
            if node in inputs and node not in plan.copied:
                saved.append(Saved(inputs[node], True))
            elif node in places and node not in plan.copied:
                saved.append(Saved(places[node], False))
            else:
                saved.append(Saved(len(joint.outputs) + len(numbers) + len(extra), False))
                extra.append(self._copied(node) if node in plan.copied else self.made[node])
        for position, node in sorted(joint.written.items()):
            if node is not joint.inputs[position]:
                target = self.made[joint.inputs[position]]
                store = self.graph.call_function(aten.copy_.default, (target, self.made[node]))
                store.meta["val"] = target.meta["val"]
        if joint.tail is not None:
            joint.tail.write(self.graph, self.made)
        self.graph.output((*[self.made[node] for node in (*joint.outputs, *numbers)], *extra))
        return self.graph, saved, plan.bytes

    def _copied(self, node: Node) -> Node:
        """A copy with the same strides. Elements that share memory do so in it too."""
        meta = node.meta["val"]
        made = self.made[node]
        if not overlaps_itself(meta.shape, meta.stride):
            return self._call(aten.clone.default, (made,), meta, meta.shape, meta.stride)
        shape = tuple([1 if step == 0 else size for size, step in zip(meta.shape, meta.stride, strict=True)])
        stride = meta.stride
        if overlaps_itself(shape, stride):
            shape, stride = (span_of(shape, stride),), (1,)
        part = self._call(aten.as_strided.default, (made, shape, stride), meta, shape, stride)
        copy = self._call(aten.clone.default, (part,), meta, shape, stride)
        return self._call(aten.as_strided.default, (copy, meta.shape, meta.stride), meta, meta.shape, meta.stride)

    def _call(self, function: Any, args: Any, like: TensorMeta, shape: tuple[int, ...], stride: tuple[int, ...]) -> Node:
        made = self.graph.call_function(function, args)
        made.meta["val"] = TensorMeta(like.dtype, shape, stride, like.device)
        return made


def _ancestors(nodes: Iterable[Node]) -> set[Node]:
    """What these are computed from, and these."""
    seen: set[Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.all_input_nodes
    return seen


def _refusing_in_vain(joint: Joint, wanted: set[Node]) -> list[Node]:
    """Nodes of forward that neither it nor backward needs, but that may raise an exception: an index out of range does so
    whether its element is used or not."""
    needed = wanted | _ancestors(gradient for gradient in joint.gradients if gradient is not None)
    later = needs_tangents(joint)
    return [node for node in joint.graph.nodes if node not in needed and node not in later and _may_refuse(node)]


def _may_refuse(node: Node) -> bool:
    if not isinstance(node.target, OpOverload):
        return False
    operands = [operand.meta["val"] for operand in node.all_input_nodes]
    dtypes = [meta.dtype for meta in operands if isinstance(meta, TensorMeta)]
    return may_refuse_elements(node.target._schema.name.partition("::")[2].strip("_"), dtypes)


def build_backward(joint: Joint, plan: Plan) -> tuple[Graph, list[int], list[int]]:
    """The backward graph, which of the captured inputs are numbers that it gets, and which of the kept values are inputs
    that it reads otherwise than eager, which has saved what was computed from them, or another tensor of their memory.

    Raises:
        Unsupported: where what is kept does not suffice, which only happens for a joint graph with other gradients than the
            one that `plan` was made for.
    """
    return _Backward(joint, plan).build()


class _Backward(_Copier):
    def __init__(self, joint: Joint, plan: Plan) -> None:
        super().__init__(Graph())
        self.joint = joint
        self.plan = plan
        self.late = needs_tangents(joint)
        self.position = {node: k for k, node in enumerate(joint.graph.nodes)}
        self.recorder = Recorder(self.graph, lambda value: None)

    def build(self) -> tuple[Graph, list[int], list[int]]:
        joint = self.joint
        for k, node in enumerate(self.plan.kept):
            self.placeholder(node, f"saved{k}").meta["saved"] = k
        for before, node in joint.later.items():
            if before in self.plan.kept and before not in self.plan.copied:
                self.placeholder(node, node.name).meta["saved"] = len(self.plan.kept) + self.plan.kept.index(before)
        numbers = [k for k, node in enumerate(joint.inputs) if is_number(node)]
        for k in numbers:
            self.placeholder(joint.inputs[k], joint.inputs[k].name)
        for node in joint.tangents:
            self.placeholder(node, node.name)
        for gradient in joint.gradients:
            if gradient is not None:
                self._compute(gradient)
        for check in [n for n in joint.graph.nodes if n.target in _CHECKS and n in self.late]:
            self._compute(check)
        self.graph.output(tuple([self.made[g] if g is not None else None for g in joint.gradients]))
        inputs = {*joint.inputs} - self.plan.copied
        return self.graph, numbers, [k for k, n in enumerate(self.plan.kept) if n in inputs and self._sees_memory_of(n)]

    def _sees_memory_of(self, node: Node) -> bool:
        """Whether there is a use of a kept input that does not read what eager finds in the tensor itself."""
        reading = {self.made[n] for n in self.joint.reading.get(node, ()) if n in self.made and n not in self.plan.recipes}
        return not {*self.made[node].users} <= reading

    def _compute(self, target: Node) -> None:
        """Add a node and all that it needs, operands first."""
        stack = [target]
        while stack:
            node = stack[-1]
            if node in self.made:
                stack.pop()
                continue
            recipe = None if node in self.late else self.plan.recipes.get(node)
            operands = recipe.operands if recipe is not None else node.all_input_nodes
            missing = [o for o in operands if o not in self.made]
            if missing:
                stack += sorted(missing, key=self.position.__getitem__, reverse=True)
                continue
            stack.pop()
            if node.op == "placeholder":
                raise Unsupported("gradients for which something else would have to be kept")
            if recipe is None:
                self.copy(node)
            else:
                self.made[node] = recipe.write(self.recorder.emit, self.made.__getitem__)


def describe(differentiated: Differentiated) -> str:
    """Both graphs, for a reader."""
    kept: list[Any] = [f"{'input' if s.of_input else 'output'} {s.index}" for s in differentiated.saved]
    return f"forward:\n{differentiated.forward}\nkept: {', '.join(kept)}\nbackward:\n{differentiated.backward}"
