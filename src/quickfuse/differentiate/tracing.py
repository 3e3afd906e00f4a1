"""Tracing a captured graph and its gradients into one graph of ATen operators."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, Node

from ..errors import InternalError, Unsupported
from ..ir.arguments import map_leaves
from ..ir.autograd_graph import leaves_behind
from ..ir.gradients import Layouts, UnsupportedAt, registers_hook, replacing_grad, takes_gradients
from ..ir.guard import added
from ..ir.modes import MODE_CHANGES, autocast_devices, modes_restored, without_autocast
from ..ir.nodes import has_sparse_gradients, new_input, outputs_of
from ..ir.number_operands import is_tensor_of_numbers
from ..ir.own_gradients import own_gradients
from ..ir.transforms import transformed_graph
from ..ir.values import NumberMeta, ObjectMeta, TensorMeta
from .checked import checking
from .custom_functions import traced
from .drawing import leave_out_states
from .joint import Joint
from .numbers import Marks, check_use, number_in, reconcile
from .outputs import OutputPlan, is_lazy, is_mixed, is_view_of_others
from .recompute import memory_root
from .recorder import Recorder
from .recurrent_cells import composed
from .recurrent_layers import composed as layer
from .selected import selected
from .tail import NoTail, Tail, TailResults, tail_of
from .tangents import CHANGED, gradients_of, is_added, tangent_layout, used_up_of
from .traced import Memory, TracedTensor, is_leaf, traced_in
from .transforms import check_numbers_in, hooks_set_aside, saved_for

#: Operators whose formulas of gradients look at contents, to raise an exception, but not for tensors in a trace.
_CHECKED_IN_BACKWARD = frozenset({"linalg_eig"})
_INNER_LEAF = "a tensor made inside that is a leaf of autograd's graph"

#: Where autograd looks for what to do about an operator.
_KEYS: Any = torch._C.DispatchKey
_FORMULAS = (_KEYS.Autograd, _KEYS.AutogradCPU, _KEYS.AutogradCUDA, _KEYS.CompositeImplicitAutograd)


@functools.cache
def _has_formula(target: OpOverload | OpOverloadPacket) -> bool:
    """Whether autograd knows an operator of a library: it looks into the kernels of others."""
    if isinstance(target, OpOverloadPacket):
        return all(_has_formula(getattr(target, name)) for name in target.overloads())
    return target.namespace in ("aten", "prims") or any(map(target.has_kernel_for_dispatch_key, _FORMULAS))


def trace(
    graph: Graph, grad_enabled: bool, absent: frozenset[int] = frozenset(), whole: bool = False, moved: bool = False,
    layouts: Layouts = (),
) -> Joint:
    """Trace a captured graph forward and backward; `grad_enabled` is the grad mode that it begins with. `absent` are the
    differentiable outputs, by number, that have no gradient: nothing is computed for them. With `whole` there is no tail.
    `moved`: between forward and backward, inputs may have got other memory (see `Joint.later`). `layouts` has the strides of
    the gradients of differentiable outputs that have others than these.

    Raises:
        Unsupported: with the reason, where gradients are left to eager.
    """
    try:
        whole = whole or any(_is_made_leaf(node) for node in outputs_of(graph))
        return _traced(graph, grad_enabled, absent, None if whole else tail_of(graph, grad_enabled), moved, layouts)
    except NoTail:
        return _traced(graph, grad_enabled, absent, None, moved, layouts)


def _is_made_leaf(output: Any) -> bool:
    return isinstance(output, Node) and output.op != "placeholder" and bool(output.meta.get("leaf"))


def _traced(
    graph: Graph, grad_enabled: bool, absent: frozenset[int], tail: Tail | None, moved: bool, layouts: Layouts
) -> Joint:
    first = Tracing(graph, grad_enabled, absent, 0, tail, moved, dict(layouts))
    joint = first.run()
    if first.marks.nodes:
        tail = None if tail is None else replace(tail, origin={})
        second = Tracing(graph, grad_enabled, absent, 1, tail, moved, dict(layouts))
        reconcile(joint.graph, first.marks, second.run().graph, second.marks)
    leave_out_states(joint.graph)
    return joint


@dataclass(eq=False, slots=True)
class _Kept:
    """What autograd saves of a tensor, and how often its memory had been changed then, as far as PyTorch notices."""

    tensor: TracedTensor
    changes: int


@dataclass(eq=False)
class Tracing:
    """One run of a captured graph on traced tensors, which records it."""

    source: Graph
    grad_enabled: bool
    absent: frozenset[int]
    seed: int
    tail: Tail | None = None
    moved: bool = False
    layouts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    values: dict[Node, Any] = field(default_factory=dict)
    traced_inputs: list[Any] = field(default_factory=list)
    saved: dict[Node, Memory] = field(default_factory=dict)
    #: Leaves of autograd's graph that a node gives: inputs, what `requires_grad_()` is called for, views under `no_grad()`.
    leaves: list[tuple[Node, TracedTensor]] = field(default_factory=list)
    #: Views that a function with gradients of its own returned of what it was given, with the call.
    own_views: list[tuple[Node, TracedTensor]] = field(default_factory=list)
    #: Whether what is recorded may have other strides than in the captured graph: see `custom_functions`.
    any_strides: bool = False
    #: Inputs as backward finds them, by position.
    later: dict[int, TracedTensor] = field(default_factory=dict)
    #: What is computed for gradients that are taken once more, with some replaced: see `Recorder.taken`.
    taken: dict[tuple[Any, str], Node] = field(default_factory=dict)

    def run(self) -> Joint:
        """Record the graph and its gradients."""
        return self.record(self._backward)

    def record(self, finish: Callable[[list[Any]], Any]) -> Any:
        """Record the graph; what `finish` makes of its results, while it is still recorded.

        Raises:
            Unsupported: where an operator cannot be recorded.
        """
        self.graph = Graph()
        self.marks = Marks(self.seed)
        self.recorder = self.make_recorder()
        self.replaces = any(node.target is replacing_grad for node in self.source.nodes)
        self.inputs: list[Node] = []
        grad_enabled = torch.is_grad_enabled()
        try:
            with torch.autograd.set_multithreading_enabled(False), torch.autograd.set_detect_anomaly(False), self.recorder:
                torch._C._set_grad_enabled(self.grad_enabled)
                with self.saving(), modes_restored():
                    results = self.forward()
                torch._C._set_grad_enabled(True)
                return finish(results)
        except (Unsupported, InternalError, NoTail):
            raise
        except Exception as error:
            raise Unsupported(f"tracing for gradients failed: {type(error).__name__}: {error}") from error
        finally:
            torch._C._set_grad_enabled(grad_enabled)

    # forward ----------------------------------------------------------------------------------------------------

    def saving(self) -> Any:
        """Follow what autograd saves, while the graph is recorded."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def make_recorder(self) -> Recorder:
        made = Recorder(self.graph, self.marks.node_of)
        made.number_in = lambda tensor: number_in(self.graph, tensor, made.captured_node, self.marks)
        return made

    def forward(self) -> list[Any]:
        skipped = self.tail.skipped if self.tail is not None else frozenset()
        for node in self.source.nodes:
            if node.op == "placeholder":
                self.values[node] = self.input(node, node in skipped)
            elif node.op == "output":
                if self.tail is not None:
                    results = TailResults(self.tail, self.recorder, self.inputs, self.values, self.marks.node_of)
                    return results.of(node.args[0])
                return [self.of(value) for value in node.args[0]]
            elif node not in skipped:
                self.values[node] = self._call_or_fail(node)
        return []

    def _call_or_fail(self, node: Node) -> Any:
        try:
            return self.call(node)
        except InternalError:
            raise
        except Unsupported as unsupported:
            if isinstance(unsupported, UnsupportedAt) and unsupported.node.graph is self.source:
                raise  # of a call before, whose gradients are taken here
            raise UnsupportedAt(unsupported.reason, node) from unsupported
        except Exception as error:
            raise UnsupportedAt(f"tracing for gradients failed: {type(error).__name__}: {error}", node) from error

    def input(self, node: Node, unused: bool = False) -> Any:
        """The value of a placeholder; `unused`: of a number that does not occur in the trace."""
        meta = node.meta["val"]
        made = new_input(self.graph, node.name)
        made.meta["val"] = meta
        made.meta["trace"] = node.meta.get("trace", ())
        position = len(self.inputs)
        self.inputs.append(made)
        if isinstance(meta, NumberMeta):
            self.traced_inputs.append(None)
            return made if unused or meta.kind is bool else self.marks.number(made, meta.kind)
        if isinstance(meta, ObjectMeta):
            self.traced_inputs.append(None)
            stand_in = torch.Generator(meta.device)
            self.recorder.generators[stand_in._cdata] = made
            return stand_in
        if type(meta) is not TensorMeta:
            raise Unsupported("an input that is no plain tensor")
        tensor = self.recorder.input(made, meta, position, meta.requires_grad)
        self.traced_inputs.append(tensor)
        return tensor

    def call(self, node: Node) -> Any:
        target: Any = node.target
        self.check_target(target)
        meta = node.meta.get("val")
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        self.recorder.trace = node.meta.get("trace", ())
        self.recorder.captured_node = node
        self.recorder.autocast = autocast_devices()
        if isinstance(meta, NumberMeta):
            return self._number(node, args, meta)
        picks = target is operator.getitem and type(args[0]) is not TracedTensor  # of a call's results, which may be many
        grad = not picks and torch.is_grad_enabled() and any(t.requires_grad for t in traced_in((args, kwargs)))
        self.check_numbers(node, grad)
        if grad and isinstance(target, (OpOverload, OpOverloadPacket)) and not _has_formula(target):
            raise Unsupported(f"{target}, whose gradients are those of what its kernel calls")
        if grad and getattr(target, "__name__", "") in _CHECKED_IN_BACKWARD:
            raise Unsupported(f"{target.__name__}, of whose gradients eager checks whether there are any")
        if grad and has_sparse_gradients(node):
            raise Unsupported(f"{node.name}, which makes sparse gradients")
        if isinstance(meta, TensorMeta) and node.all_input_nodes and is_tensor_of_numbers(node):
            return self.recorder.tensor_of_numbers(map_leaves(self._number_operand, args[0]), meta)
        if node.op == "call_method":
            made = getattr(args[0], target)(*args[1:], **kwargs)
        elif transformed_graph(target) is not None:
            made = self._transformed(target, args)
        elif (own := own_gradients(target)) is not None:
            made = traced(self, own, node, args)
        else:
            made = selected(node, *args) if target is operator.getitem else None
            if self.replaces and takes_gradients(node):
                self.recorder.taken = self.taken
            if made is None:
                made = checking(layer(target, args) or composed(target, args), args)(*args, **kwargs)
            self.recorder.taken = None
        if type(made) is TracedTensor and isinstance(meta, TensorMeta):
            if made.meta.stride != meta.stride and is_added(node):
                meta = node.meta["val"] = replace(meta, stride=made.meta.stride)
            made = self._agreeing(node, made, meta)
        for tensor in traced_in(made):
            if tensor.requires_grad and is_leaf(tensor):
                self.leaves.append((node, tensor))
        return made

    def _transformed(self, target: Any, args: Any) -> Any:
        """What a functional transform gives."""
        with hooks_set_aside(self._pack, self._unpack):
            made = target(*args)
            for tensor in saved_for(traced_in(made), traced_in(args)):
                self.saved.setdefault(self.recorder.node_of(tensor), tensor.memory)
        self.recorder.found_later = self._found_later
        return made

    def check_numbers(self, node: Node, differentiated: bool) -> None:
        """Refuse numbers that change where they are no plain operands."""
        graph = transformed_graph(node.target)
        if graph is None:
            check_use(node, differentiated)
        else:
            check_numbers_in(graph)

    def check_target(self, target: Any) -> None:
        """Refuse functions that are no operators of PyTorch's."""
        plain = target in MODE_CHANGES or target is added or not isinstance(target, FunctionType)
        plain = plain or transformed_graph(target) is not None or target is replacing_grad or registers_hook(target)
        plain = plain or own_gradients(target) is not None
        if not plain and not (target.__module__ or "").startswith("torch"):
            raise Unsupported(f"{target.__name__}, which has gradients of its own")

    def _agreeing(self, node: Node, made: TracedTensor, meta: TensorMeta) -> TracedTensor:
        """What a node gives, as capture knows it."""
        if self.any_strides and made.meta.shape == meta.shape:
            meta = replace(meta, stride=made.meta.stride)
        lazy = (getattr(meta, "conj", False), getattr(meta, "neg", False))
        if is_lazy(made) and not any(lazy) and not is_mixed(made):  # `resolve_conj` does nothing to a tensor in a trace
            made = made.clone()
        if not made.meta.looks_like(meta) or (is_lazy(made) != any(lazy) and not is_mixed(made)):
            raise Unsupported(f"{node.name} is {meta} in the captured graph and {made.meta} in the trace")
        return made

    def _number(self, node: Node, args: Any, meta: NumberMeta) -> Any:
        """Arithmetic on numbers stays as it is. Its result has a mark of its own, not what it gives for the operands' marks:
        `abs(n)` and `n` are equal for these, and not for all numbers."""
        if node.target == "item":
            made = self.graph.create_node("call_method", "item", (self.recorder.node_of(args[0]),), {})
        else:
            made = self.graph.create_node("call_function", node.target, tuple(map(self._number_operand, args)), {})
        made.meta.update(node.meta)
        return made if meta.kind is bool else self.marks.number(made, meta.kind, args)  # no operator on tensors takes a bool

    def _number_operand(self, value: Any) -> Any:
        """A number among a node's arguments, as it stands in the trace."""
        return value if isinstance(value, Node) or (known := self.marks.node_of(value)) is None else known

    def of(self, arguments: Any) -> Any:
        """A node's arguments, with what operands came to in this trace."""
        return map_leaves(lambda leaf: self.values[leaf] if type(leaf) is Node else leaf, arguments)

    # what autograd saves ----------------------------------------------------------------------------------------

    def _pack(self, tensor: Any) -> Any:
        if type(tensor) is not TracedTensor:
            return tensor
        node = self.recorder.node_of(tensor)
        self.saved.setdefault(node, tensor.memory)
        return _Kept(tensor, tensor.memory.changes)

    def _unpack(self, kept: Any) -> Any:
        if type(kept) is not _Kept:
            return kept
        if kept.tensor.memory.changes != kept.changes:
            raise Unsupported(CHANGED)
        return self._found_later(kept.tensor) if self.recorder.in_backward else kept.tensor

    def _found_later(self, tensor: TracedTensor) -> TracedTensor:
        """What backward finds where eager has saved a tensor: of an input that it saves as it is not its memory, which is
        another one once its `data` is set."""
        position = None if tensor.memory.version else tensor.memory.input
        if position is None or tensor is not self.traced_inputs[position]:
            return tensor
        if position not in self.later:
            before = self.inputs[position]
            node = new_input(self.graph, f"{before.name}_later")
            node.meta.update(before.meta)
            self.later[position] = self.recorder.input(node, self.traced_inputs[position].meta, None, False)
        return self.later[position]

    def _told_apart(self, nodes: list[Any]) -> tuple[dict[Node, set[Node]], dict[Node, Node]]:
        """`Joint.reading` and `Joint.later`; `nodes` are those of the gradients."""
        later = {self.inputs[position]: tensor.memory.node for position, tensor in self.later.items()}
        reading = {before: {n for n in node.users if before not in n.all_input_nodes} for before, node in later.items()}
        if self.moved:
            return reading, later
        for before, node in later.items():
            node.replace_all_uses_with(before)
            self.graph.erase_node(node)
            nodes[:] = [before if n is node else n for n in nodes]
        return reading, {}

    # backward ---------------------------------------------------------------------------------------------------

    def _check_views(self, plan: OutputPlan, results: list[Any]) -> None:
        """Refuse results that are made as views of others, where eager has them from a function with a `backward` of its
        own: none of PyTorch's operators gives them its gradient."""
        own = {tensor.grad_fn: node for node, tensor in self.own_views}
        for result, given in zip(results, plan.results, strict=True) if own else ():
            if given.path and given.with_grad:
                made_by = result.grad_fn
                while made_by is not None and made_by not in own:  # views before the result, each of one tensor
                    before = made_by.next_functions
                    made_by = before[0][0] if len(before) == 1 else None
                if made_by is not None:
                    node = own[made_by]
                    raise UnsupportedAt(f"{node.name}, which returns a view with gradients of its own", node)

    def _backward(self, results: list[Any]) -> Joint:
        metas = [i.meta["val"] for i in self.inputs]
        for tensor, meta in zip(self.traced_inputs, metas, strict=True):
            if tensor is not None and tensor.requires_grad != meta.requires_grad:
                raise Unsupported("an input that begins to require gradients")
        leaves = self._made_leaves(results)
        plan = OutputPlan(results, self.marks.node_of, leaves)
        self._check_views(plan, results)
        outputs = self._output_nodes(plan, results)
        differentiable = [plan.tensors[k] for k in plan.differentiable]
        wanted = self._reached(metas, differentiable)
        if differentiable and not wanted:  # a node of autograd without an input that requires gradients has none itself
            behind = {id(leaf) for leaf in leaves_behind(differentiable)}
            if (made := next((node for node, leaf in self.leaves if id(leaf) in behind), None)) is not None:
                raise UnsupportedAt(f"{made.name}, {_INNER_LEAF}", made)
            raise Unsupported("a result whose gradients reach no input, such as one of a view made without gradients")
        tangents, values = [], []
        recorder = self.recorder
        recorder.in_backward = True
        recorder.autocast = frozenset()
        inputs = [self.traced_inputs[k] for k in wanted]
        used_up = used_up_of(differentiable, inputs) if inputs and self._takes_gradients() else {}
        if self.tail is not None and len(used_up) < len(differentiable):
            raise NoTail  # which might change what backward needs
        for number, tensor in enumerate(differentiable):
            if number in self.absent or number in used_up:
                continue
            node = new_input(self.graph, f"tangent{number}")
            meta = node.meta["val"] = tangent_layout(tensor.meta, self.layouts.get(number))
            tangents.append(node)
            values.append((tensor, recorder.input(node, meta, None, False)))
        plan.find_paths(inputs, None if self.tail is not None else self.source)
        gradients: Sequence[Any] = [None] * len(wanted)
        order: list[int] = []
        if values and wanted:
            with without_autocast():  # which may be on where forward is traced, around the captured program
                gradients = gradients_of([tensor for tensor, _ in values], inputs, [tangent for _, tangent in values], order)
        nodes = [recorder.node_of(g) if type(g) is TracedTensor else None for g in gradients]
        self._keep_apart(gradients, nodes)
        reading, later = self._told_apart(nodes)
        written = {
            t.memory.input: t.memory.node
            for t in self.traced_inputs if t is not None and t.memory.version
        }  # fmt: skip
        return Joint(
            self.graph, self.inputs, tangents, outputs, plan, wanted, nodes,
            written, {*self.saved}, self._bytes(), recorder.draws, used_up,
            [*dict.fromkeys([*order, *range(len(wanted))])], self.tail, self._kept_inputs(),
            reading, later,
        )  # fmt: skip

    def _kept_inputs(self) -> list[int]:
        """The inputs in whose memory there is something that eager saves for backward. Those that need gradients are left
        out: they are no inference tensors, which is what is asked about these."""
        kept = {memory.input for memory in self.saved.values() if memory.input is not None}
        return sorted(k for k in kept if not self.inputs[k].meta["val"].requires_grad)

    def _made_leaves(self, results: list[Any]) -> set[int]:
        """The leaves that the graph made among its results, by identity: none of the results has gradients to these. Others
        may have gradients to such a leaf where that is no result: nobody sees it, and it is gone.

        Raises:
            UnsupportedAt: where others have, or share memory with such a leaf.
        """
        inputs = {id(tensor) for tensor in self.traced_inputs}
        made = {id(leaf): (node, leaf) for node, leaf in self.leaves if id(leaf) not in inputs}
        memories = {id(leaf.memory): node for node, leaf in made.values() if not is_view_of_others(leaf)}
        found = [t for t in traced_in(results) if t.requires_grad and id(t) not in inputs] if made else []
        others = [tensor for tensor in found if id(tensor) not in made]
        behind = {id(leaf) for leaf in leaves_behind(others)}
        for tensor in found:
            node, _ = made.get(id(tensor), (memories.get(id(tensor.memory)), None))
            if node is not None and (id(tensor) not in made or id(tensor) in behind):
                raise UnsupportedAt(f"{node.name}, {_INNER_LEAF}", node)
        return {id(tensor) for tensor in found if id(tensor) in made}

    def _reached(self, metas: Sequence[Any], outputs: Sequence[TracedTensor]) -> list[int]:
        """The inputs, by position, to which gradients flow from some output: others, such as one that is only detached, have
        nothing to do with these outputs for autograd, which would visit what computed them."""
        leaves = {id(leaf) for leaf in leaves_behind(outputs)}
        return [k for k, (meta, tensor) in enumerate(zip(metas, self.traced_inputs, strict=True))
                if isinstance(meta, TensorMeta) and meta.requires_grad
                and (id(tensor) in leaves or not tensor.is_leaf)]  # fmt: skip

    def _takes_gradients(self) -> bool:
        return any(map(takes_gradients, self.source.nodes))

    def _output_nodes(self, plan: OutputPlan, results: list[Any]) -> list[Node]:
        """The nodes of forward's results. Tensors that do not share memory in eager get memory of their own, and all have
        the strides that capture found, on axes with one element, too."""
        captured = outputs_of(self.source)
        metas = {id(result): node.meta["val"] for result, node in zip(results, captured, strict=True)}
        nodes = []
        owners: dict[Node, Any] = {}
        for tensor in plan.tensors:
            node = self.recorder.node_of(tensor)
            if self.tail is not None and node in self.tail.skipped:
                nodes.append(node)
                continue
            root = memory_root(node)
            if root.op == "placeholder" or owners.setdefault(root, tensor.memory) is not tensor.memory:
                node = self.recorder.emit(torch.ops.aten.clone.default, node)
            meta = metas.get(id(tensor))
            if isinstance(meta, TensorMeta) and meta.stride != tensor.meta.stride and tensor.meta.looks_like(meta):
                node = self.recorder.copy_laid_out(node, meta.stride)
            nodes.append(node)
        return nodes

    def _keep_apart(self, gradients: Sequence[Any], nodes: list[Any]) -> None:
        """Gradients that share memory without being the same are copied: each becomes some tensor's `grad`."""
        owners: dict[int, Node] = {}
        for k, (gradient, node) in enumerate(zip(gradients, nodes, strict=True)):
            if node is None:
                continue
            owner = owners.setdefault(id(gradient.memory), node)
            if owner is not node:
                nodes[k] = self.recorder.emit(torch.ops.aten.clone.default, node)

    def _bytes(self) -> int:
        memories = {id(m): m for m in self.saved.values() if m.input is None}
        return sum(m.meta.span_bytes for m in memories.values())
