"""A captured graph with calls that have gradients of their own: subgraphs of operators, joined, with the calls between.

A `torch.autograd.Function` of the user's runs its own `backward`, and some operators of PyTorch keep for backward what
only they understand. Optimizers with `fused=True` call one operator that changes all parameters in place, and autograd has
to be told of changes in place of what was computed before. Such a call stays as it is, and the operators before it and
after it are compiled as graphs. Each of them begins with the changes of PyTorch's settings that stand before it in the
captured graph, and leaves the settings as it found them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from .. import logs
from ..differentiate import differentiate
from ..emit import glue as glue_source
from ..emit.body import graph_body
from ..errors import Unsupported
from ..ir.generated import graph_module
from ..ir.gradients import Differentiated, UnsupportedAt, has_own_gradients, registers_hook, takes_gradients
from ..ir.modes import (  # fmt: skip
    MODE_CHANGES,
    STAYING_MODES,
    Modes,
    enter_inference,
    leave_inference,
    modes_restored,
)
from ..ir.nodes import copied_node, is_fused_update, new_input, outputs_of
from ..ir.segment import Segment
from ..ir.sharing import (
    base_of,
    changed_as_another_type,
    effects_in,
    memory_of,
    takes_data,
    tensor_operands,
    written_operands,
)
from ..ir.values import TensorMeta
from ..launch import tensor_check
from ..launch.joined import Subgraph
from .changed_before import ChangingBack, added_copies, changed_among, changed_as_well, changed_by, end_of_part, views_again
from .joining import compile_forward_backward, has_hooks_later
from .numbers_between import keep_numbers, note_given
from .parts import (  # fmt: skip
    changes,
    differentiated,
    hooks_first,
    is_near_gradients,
    is_number,
    is_used_outside,
    is_view_from_outside,
    last_change,
    may_stay,
    requires_grad,
    results_first,
    with_results,
)

#: A graph of more subgraphs than this is not worth it.
_MOST_CALLS = 16


def in_subgraphs(segment: Segment, restoring: Callable[[Any], Any]) -> tuple[glue_source.Body, int]:
    """The body of a segment that needs gradients, as subgraphs, and how many kernels their forward graphs have. `restoring`
    makes of a function that runs them one that leaves settings as it found them where it raises.

    Raises:
        Unsupported: with the reason, where the graph cannot be taken apart.
    """
    return _Splitter(segment).body(restoring)


def asked_inside(segment: Segment) -> list[Node]:
    """The results, if Python asks for gradients of such as others depend on: for these, one graph would run once more."""
    if segment.pause is None or not segment.pause.watches:
        return []
    results = {n for n in outputs_of(segment.graph) if isinstance(n, Node) and n.op != "placeholder" and requires_grad(n)}
    return [*results] if any(requires_grad(user) for n in results for user in n.users) else []


class _Splitter:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.calls = 0
        #: Whether there are calls of fused optimizers.
        self.updates = False
        #: The nodes that change settings of PyTorch, and the places of all nodes.
        self.changes: list[Node] = []
        self.order: dict[Node, int] = {}
        #: The nodes that show memory as another type, where it is changed.
        self.retyped: set[Node] = set()
        #: The tensors of whose memory eager keeps something for the gradients of compiled parts.
        self.kept: set[Node] = set()
        self.notes: list[str] = []
        self.kernels = 0
        self.class_of = {i.name: i.cls for i in segment.inputs}
        tensors = [(i.name, e) for i, e in zip(segment.inputs, segment.examples, strict=True) if isinstance(e, torch.Tensor)]
        self.leaves = {name for name, example in tensors if example.is_leaf}

    def body(self, restoring: Callable[[Any], Any]) -> tuple[glue_source.Body, int]:
        segment = self.segment
        keep_numbers(segment.graph)
        nodes = [n for n in segment.graph.nodes if n.op not in ("placeholder", "output")]
        if segment.inference or any(n.target in (enter_inference, leave_inference) for n in nodes):
            raise Unsupported("inference mode")
        self.changes = [n for n in nodes if n.target in MODE_CHANGES]
        self.order = {n: k for k, n in enumerate(segment.graph.nodes)}
        self.retyped = changed_as_another_type(nodes)
        parts = self._split_at(asked_inside(segment), hooks_first(results_first(nodes)))
        if len(parts) > 1 and any(map(self._changes_data, nodes)):
            raise Unsupported("what is computed with gradients is changed through its data, unseen by autograd")
        if all(isinstance(part, list) for part in parts) and (self.notes or not any(map(has_own_gradients, nodes))):
            raise Unsupported("nothing else to compile")
        for note in self.notes:
            logs.emit("graph_breaks", note)
        return graph_body(segment, restoring(self._assembled(parts))), self.kernels

    def _changes_data(self, node: Node) -> bool:
        """Whether a call changes what is no leaf through its `data`: backward of a part has not saved that tensor itself."""
        for operand in written_operands(node):
            while (origin := operand.meta.get("view_of")) is not None:
                is_leaf = origin[0].meta.get("leaf") or memory_of(operand).name in self.leaves
                if takes_data(operand) and requires_grad(origin[0]) and not is_leaf:
                    return True
                operand = origin[0]
        return False

    def _split(self, nodes: list[Node]) -> list[Any]:
        """The parts: lists of nodes that stay calls, and (callable, operands, results)."""
        fused = next((k for k, n in enumerate(nodes) if is_fused_update(n)), None)
        if fused is not None:
            self.updates = True
            return [*self._split(nodes[:fused]), [nodes[fused]], *self._split(nodes[fused + 1 :])]
        further = next((n for n in nodes if takes_gradients(n) and self._flows_further(n, nodes)), None)
        if further is not None:
            return self._around(nodes, further, "its gradients flow through more than one graph")
        inside = set(nodes)
        if any(n in self.retyped for n in nodes):
            return self._around_other_types(nodes)
        if views := [n for n in nodes if is_view_from_outside(n, inside)]:
            return [views, *self._split([n for n in nodes if n not in views])]
        if hooks := [n for n in nodes if registers_hook(n.target) and self._is_hook_of_result(n, inside)]:
            return [*self._split([n for n in nodes if n not in hooks]), hooks]
        if sum(isinstance(n.meta.get("val"), TensorMeta) or bool(effects_in(n).written) for n in nodes) < 2:
            return [nodes] if any(n.target not in MODE_CHANGES for n in nodes) else []
        return self._compiled_part(nodes)

    def _compiled_part(self, nodes: list[Node]) -> list[Any]:
        """The parts of nodes that are compiled together as far as they go."""
        found: list[Node] = []  # tensors from before that are changed with gradients
        while True:
            part = nodes[: end_of_part(nodes, found)]
            if not part:
                raise Unsupported("another shape of what is changed in place with gradients")
            changed = changed_among(part, found)
            views = views_again(part, changed)
            if views and not set(self.changes).isdisjoint(part):
                raise Unsupported("a view of what is changed in place with gradients, made in another mode")
            graph, operands, results, copies = self._subgraph(part, changed, views)
            try:
                made = differentiate(graph, changed=[k for k, n in enumerate(operands) if n in changed])
                break
            except UnsupportedAt as failure:
                original = next(n for n, copy in copies.items() if copy is failure.node)
                if original not in part:
                    raise
                if may_stay(original):
                    return self._around(nodes, original, failure.reason)
                self.calls += 1
                more = changed_by(original, {*nodes}, self.kept)
                if not more or not set(more).isdisjoint(found) or self.calls > _MOST_CALLS:
                    raise
                found += [*more, *changed_as_well(nodes, {*found, *more}, self.leaves, self.kept)]
        try:
            compiled = self._compiled(graph, made, part, operands, results, changed, views)
        except Unsupported as unsupported:
            if not self.updates:
                raise
            self.notes.append(f"the graph around a fused optimizer runs operator by operator: {unsupported.reason}")
            return [nodes]
        given = [*results, *[n for n in operands if n in changed]]  # as `_subgraph` returns them
        self.kept |= {memory_of(given[k]) for k in made.kept_results} | {memory_of(operands[k]) for k in made.kept_operands}
        return [(compiled, operands, results), *([views] if views else []), *self._split(nodes[len(part) :])]

    def _around(self, nodes: list[Node], call: Node, reason: str) -> list[Any]:
        """The parts before and after a call that stays one, and the call."""
        if self.calls >= _MOST_CALLS:
            raise Unsupported(reason)
        self.calls += 1
        if not has_own_gradients(call):
            self.notes.append(f"{call.name} stays a call between graphs: {reason}")
        at, behind = with_results(call, nodes)
        tensors = [t for n in [call, *filter(takes_gradients, nodes[at:])] for t in differentiated(n)]
        return [*self._split_behind(tensors, nodes[:at]), nodes[at:behind], *self._split(nodes[behind:])]

    def _around_other_types(self, nodes: list[Node]) -> list[Any]:
        """The parts, where memory is changed that is seen as two types: no part sees it as both. What shows it as the other
        type are calls in front of the part that takes it so; those of a part are made together, which is no other than one
        by one, as they only look at memory."""
        if self.calls >= _MOST_CALLS:
            raise Unsupported("memory that is seen as two types")
        self.calls += 1
        first = self._first_that_sees_another_type(nodes)
        there, views, bases = {*nodes[:first]}, [], set()
        used: set[Node] = set()  # the memory that the part looks at as what it was
        end = len(nodes)
        for k, node in enumerate(nodes[first:], first):
            operands = tensor_operands(node)
            if node in self.retyped:
                if base_of(node) in used or any(n in nodes and n not in there for n in operands):
                    end = k
                    break
                views.append(node)
                bases.add(base_of(node))
                there.add(node)
            else:
                plain = {base_of(n) for n in operands if not self._is_of_another_type(n)}
                if plain & bases:
                    end = k
                    break
                used |= plain
        part = [n for n in nodes[first:end] if n not in views]
        return [*self._split(nodes[:first]), views, *self._split(part), *self._split(nodes[end:])]

    def _first_that_sees_another_type(self, nodes: list[Node]) -> int:
        """The place of the first node that may follow the calls which show memory as another type: these as early as what
        they look at is there, and is looked at no more as what it was. Gradients are taken and copied before."""
        places = {n: k for k, n in enumerate(nodes)}
        views = [n for n in nodes if n in self.retyped]
        bases = set(map(base_of, views))
        before = nodes[: places[views[0]]]
        seen = [n for n in before if n in bases or is_near_gradients(n) or bases & set(map(base_of, tensor_operands(n)))]
        return places[seen[-1]] + 1 if seen else 0

    def _is_of_another_type(self, node: Node) -> bool:
        """Whether a tensor is a view of memory as another type."""
        while node not in self.retyped:
            origin = node.meta.get("view_of")
            if origin is None or not origin[1]:
                return False
            node = origin[0]
        return True

    def _between(self, calls: Sequence[Node], nodes: list[Node]) -> list[Any]:
        """The parts between some calls that stay calls, and these."""
        parts: list[Any] = []
        done = 0
        for call in sorted(calls, key=nodes.index):
            at, behind = with_results(call, nodes)
            if at >= done:
                parts += [*self._split(nodes[done:at]), nodes[at:behind]]
                done = behind
        return [*parts, *self._split(nodes[done:])]

    def _split_behind(self, tensors: list[Node], nodes: list[Node]) -> list[Any]:
        """The parts, one of which ends where each of some tensors is computed: gradients to what is computed on the way in a
        part take a second run of it."""
        parts: list[Any] = []
        ends = {last_change(n, nodes) + 1 for n in tensors if n in nodes}
        for begin, end in itertools.pairwise(sorted({0, *ends, len(nodes)})):
            parts += self._split(nodes[begin:end])
        return parts

    def _split_at(self, asked: list[Node], nodes: list[Node]) -> list[Any]:
        """The parts, where Python asks for gradients of what is computed on the way. The calls that compute it stay calls:
        second derivatives flow through the results that these keep."""
        if len(asked) > _MOST_CALLS:
            raise Unsupported("many of them")
        last = [last_change(n, nodes) for n in asked]
        ends = [k + 1 for k in last if nodes[k] not in asked]  # after a change in place
        parts: list[Any] = []
        for begin, end in itertools.pairwise(sorted({0, *ends, len(nodes)})):
            parts += self._between([nodes[k] for k in last if begin <= k < end and nodes[k] in asked], nodes[begin:end])
        return parts

    def _is_hook_of_result(self, hook: Node, inside: set[Node]) -> bool:
        """Whether a hook is on what is computed before a part, or on what others use besides: it sees all of a gradient."""
        tensor = hook.args[0]
        return tensor not in inside or is_used_outside(tensor, inside)  # type: ignore[arg-type]

    def _flows_further(self, grad: Node, nodes: list[Node]) -> bool:
        """Whether the gradients that a node of a part takes may flow through what another part computed. Inside of a
        graph, they would be taken to end there."""
        before = nodes[: nodes.index(grad) + 1]
        taken = {operand for node in before for operand in node.all_input_nodes}.difference(before)
        return any(requires_grad(operand) for operand in taken if operand.op != "placeholder")

    def _changes_before(self, nodes: list[Node]) -> list[Node]:
        """The changes of settings before some nodes, which are in order."""
        return [n for n in self.changes if self.order[n] < self.order[nodes[0]]]

    def _subgraph(
        self, nodes: list[Node], changed: Collection[Node] = (), views: Collection[Node] = ()
    ) -> tuple[Graph, list[Node], list[Node], dict[Node, Node]]:
        """A graph of some nodes, the nodes that it takes and returns, and what each node is in it. It works on copies of the
        tensors `changed`, which it returns after the others, in the order of its operands, and none of the `views`."""
        inside = set(nodes)
        ordered = [n for node in nodes for n in (*self._numbers_for(node, inside), node)]
        ordered = [*self._changes_before(nodes), *ordered]
        ordered = list(dict.fromkeys(ordered))
        graph = Graph()
        copies = _Copies()
        operands = []
        wanted = {operand for node in ordered for operand in node.all_input_nodes}.difference(ordered)
        for node in self.segment.graph.nodes:
            if node in wanted:
                operands.append(node)
                made = copies[node] = new_input(graph, node.name)
                made.meta.update(node.meta)
                if node.meta.get("leaf") and any(n.target == "requires_grad_" and n < nodes[0] for n in node.users):
                    made.meta["val"] = replace(node.meta["val"], requires_grad=True)
                note_given(made)
        replaced = [node for node in operands if node in changed]
        for node, made in zip(replaced, added_copies(graph, [copies[node] for node in replaced]), strict=True):
            copies[node] = made
        for node in ordered:
            made = copies[node] = copied_node(graph, node, copies.__getitem__)
            note_given(made)
        inside -= {*views}
        results = [n for n in nodes if n not in views and not is_number(n) and is_used_outside(n, inside)]
        graph.output(tuple([copies[n] for n in (*results, *[n for n in operands if n in changed])]))
        return graph, operands, results, copies

    def _numbers_for(self, node: Node, inside: set[Node]) -> list[Node]:
        """The calculations of numbers that a node needs and that are not among its own nodes, in order."""
        found: list[Node] = []
        for operand in node.all_input_nodes:
            if operand.op == "call_function" and is_number(operand) and operand not in inside:
                found += [*self._numbers_for(operand, inside), operand]
        return found

    def _compiled(
        self, graph: Graph, made: Differentiated, part: list[Node], operands: list[Node], results: list[Node],
        changed: Collection[Node], views: Collection[Node],
    ) -> Callable[..., Any]:  # fmt: skip
        """A function of a part, which changes the tensors `changed` by copies and makes none of the `views` of them."""
        tensors = [n for n in operands if not is_number(n)]
        metas = [n.meta["val"] for n in tensors]
        run = self._leaving_modes(graph)
        numbers = [is_number(n) for n in operands]
        classes = [self.class_of[n.name] if n.op == "placeholder" else torch.Tensor for n in operands]
        hooked = {n.args[0] for n in self.segment.graph.nodes if registers_hook(n.target)}
        call, placer, kernels = compile_forward_backward(
            made, [*range(len(metas))], metas, run, numbers, [True] * len(metas), [], classes, tuned=self.segment.tuned,
            alone=not hooked.isdisjoint(results) or has_hooks_later(self.segment),
        )  # fmt: skip
        times = changes(part, results)
        call.changed = [(r.index, times[k]) for k, r in enumerate(made.results) if k in times and not r.of_input]
        times = changes(part, operands)
        if placer is not None:
            placer.count_changes({k: count for k, count in times.items() if tensors[k] not in changed})
        self.kernels += kernels
        expected = [(cls, n.meta["val"]) for cls, n in zip(classes, operands, strict=True) if not is_number(n)]
        check = tensor_check(expected, [meta.requires_grad for meta in metas]) if metas else None
        subgraph: Callable[..., Any] = Subgraph(call, check, placer)
        if changed:
            natively, *_ = self._subgraph(part, views=views)
            counts = {operands.index(n): times.get(k, 0) for k, n in enumerate(tensors) if n in changed}
            subgraph = ChangingBack(subgraph, self._leaving_modes(natively), counts)

        def run_subgraph(*values: Any) -> Any:
            return subgraph(values)

        run_subgraph.__name__ = run_subgraph.__qualname__ = f"subgraph{id(subgraph):x}"
        return run_subgraph

    def _leaving_modes(self, graph: Graph) -> Callable[..., Any]:
        run: Callable[..., Any] = graph_module(graph).forward
        return _leaving_modes(run) if self.changes else run

    def _assembled(self, parts: list[Any]) -> Callable[..., Any]:
        """A function that runs the parts one after the other."""
        graph = Graph()
        made = _Copies()
        for node in self.segment.graph.nodes:
            if node.op == "placeholder":
                made[node] = new_input(graph, node.name)

        def at(node: Node) -> Node:
            if node not in made:
                if not is_number(node):
                    raise Unsupported("a number out of a tensor that no subgraph returns")
                made[node] = copied_node(graph, node, at)  # parts compute numbers for themselves
            return made[node]

        for part in parts:
            if isinstance(part, list):
                settings = graph.call_function(Modes) if self.changes else None
                for node in (*self._changes_before(part), *part):
                    made[node] = copied_node(graph, node, at)
                if settings is not None:
                    graph.call_method("restore", (settings,))
                continue
            function, operands, results = part
            call = graph.call_function(function, tuple([at(n) for n in operands]))
            for index, node in enumerate(results):
                made[node] = graph.call_function(operator.getitem, (call, index))
        for node in self.changes:
            if node.target in STAYING_MODES:
                copied_node(graph, node, at)
        graph.output(torch.fx.map_arg(outputs_of(self.segment.graph), at))
        return graph_module(graph).forward


class _Copies(dict[Node, Node]):
    """The nodes in place of captured ones. Each notes of which one it has the value, for going on where one fails."""

    def __setitem__(self, captured: Node, node: Node) -> None:
        node.meta["captured"] = captured.name
        super().__setitem__(captured, node)


def _leaving_modes(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes settings, made to leave them as it found them."""

    def run_and_restore(*inputs: Any) -> Any:
        with modes_restored():
            return run(*inputs)

    return run_and_restore
