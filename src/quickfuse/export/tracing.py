"""From a captured graph, of PyTorch's functions, to a functional graph of ATen operators."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes

from ..differentiate.numbers import check_use, number_in, reconcile
from ..differentiate.outputs import is_lazy, is_mixed
from ..differentiate.recompute import memory_root
from ..differentiate.recorder import Recorder
from ..differentiate.traced import TracedTensor
from ..differentiate.tracing import Tracing
from ..errors import Unsupported
from ..ir.gradients import takes_gradients
from ..ir.modes import MODE_CHANGES, SETTERS, enter_inference, leave_inference
from ..ir.nodes import new_input
from ..ir.own_gradients import own_gradients
from ..ir.trace import as_text, location_of
from ..ir.transforms import transformed_graph
from ..ir.values import NumberMeta, TensorMeta
from .numbers import item
from .recording import ProgramRecorder

aten = torch.ops.aten


@dataclass(slots=True)
class Traced:
    """A functional graph. Its placeholders are those of the captured graph, but for numbers that were fixed; it returns
    nothing yet. `results` are the nodes of the captured graph's outputs, `written` the new contents of inputs that are
    changed, by name."""

    graph: Graph
    results: list[Node]
    written: dict[str, Node]


def trace(
    graph: Graph, grad_enabled: bool, inference: bool, fixed: Mapping[str, Any], may_need_grad: frozenset[str]
) -> Traced:
    """Trace a captured graph, which begins in the grad mode `grad_enabled` and runs in inference mode if `inference`.

    `fixed` has the values of numbers that are no inputs of the program, and `may_need_grad` names the inputs that may be
    given tensors which need gradients.

    Raises:
        Unsupported: for operators that have no place in such a graph.
    """

    def once(seed: int) -> tuple[ProgramTracing, Traced]:
        tracing = ProgramTracing(graph, grad_enabled, frozenset(), seed)
        tracing.inference, tracing.fixed, tracing.may_need_grad = inference, fixed, may_need_grad
        return tracing, tracing.record(tracing.finish)

    first, traced = once(0)
    if first.marks.nodes:
        second, again = once(1)
        reconcile(traced.graph, first.marks, again.graph, second.marks)
    return traced


@dataclass(eq=False)
class ProgramTracing(Tracing):
    """Records the program alone; with autograd only where the program takes gradients itself."""

    inference: bool = False
    fixed: Mapping[str, Any] = field(default_factory=dict)
    may_need_grad: frozenset[str] = frozenset()

    def make_recorder(self) -> Recorder:
        self.with_autograd = any(_needs_autograd(node) for node in self.source.nodes)
        self.double = any(node.kwargs.get("create_graph") for node in self.source.nodes)
        self._regions: list[bool] = []
        if self.with_autograd:
            made = super().make_recorder()
        else:
            made = ProgramRecorder(self.graph, self.marks.node_of)
            made.grad = not self.inference
            made.number_in = lambda tensor: number_in(self.graph, tensor, made.captured_node, self.marks)
        return made

    def saving(self) -> Any:
        return super().saving() if self.with_autograd else nullcontext()

    def forward(self) -> list[Any]:
        with nullcontext() if self.with_autograd else torch._C._AutoDispatchBelowAutograd():
            return super().forward()

    def input(self, node: Node, unused: bool = False) -> Any:
        if node.name in self.fixed:
            self.traced_inputs.append(None)
            return self.fixed[node.name]
        meta = node.meta["val"]
        if isinstance(meta, NumberMeta) or type(meta) is not TensorMeta:
            return super().input(node, unused)
        made = new_input(self.graph, node.name)
        made.meta["val"] = meta
        made.meta["trace"] = node.meta.get("trace", ())
        position = len(self.inputs)
        self.inputs.append(made)
        recorder = self.recorder
        if isinstance(recorder, ProgramRecorder):
            if node.name in self.may_need_grad:
                recorder.may_need_grad.add(made)
            if meta.requires_grad:
                recorder.needs_grad.add(made)
        tensor = recorder.input(made, meta, position, meta.requires_grad and self.with_autograd)
        self.traced_inputs.append(tensor)
        return tensor

    # calls ------------------------------------------------------------------------------------------------------

    def check_target(self, target: Any) -> None:
        if isinstance(target, FunctionType) and target.__module__ == "quickfuse.capture.pytorch.checkpoints":
            return
        try:
            super().check_target(target)
            if own_gradients(target) is not None:  # a saved program's gradients are those of PyTorch's operators
                raise Unsupported(f"{target.__name__}, which has gradients of its own")
        except Unsupported as unsupported:
            hint = "under torch.no_grad() a program is exported without the gradients that its functions define"
            raise Unsupported(unsupported.reason, hint) from None

    def check_numbers(self, node: Node, differentiated: bool) -> None:
        numbers = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), NumberMeta)]
        if any(self.marks.node_of(self.values[n]) is not None for n in numbers):  # others are constants
            check_use(node, differentiated)

    def call(self, node: Node) -> Any:
        target: Any = node.target
        if target in SETTERS:
            raise Unsupported(f"a change of a setting by {target.__name__}", "change it outside of the exported program")
        if target in MODE_CHANGES and self._changed_mode(target, node.args):
            return None
        self.recorder.captured_node = node
        if self.with_autograd:
            return super().call(node)
        self.check_target(target)
        meta = node.meta.get("val")
        args, kwargs = self.of(node.args), self.of(node.kwargs)
        self.recorder.trace = node.meta.get("trace", ())
        if isinstance(meta, NumberMeta):
            return self._number(node, args, meta)
        self.check_numbers(node, False)
        if isinstance(self.recorder, ProgramRecorder):
            self.recorder.captured = (str(getattr(target, "__name__", target)), meta)
        made = getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
        if type(made) is TracedTensor and isinstance(meta, TensorMeta):
            made = self._agreeing(node, made, meta)
        elif isinstance(made, (list, tuple)) and isinstance(meta, (list, tuple)):
            made = self._all_agreeing(made, meta)
        return made

    def _number(self, node: Node, args: Any, meta: NumberMeta) -> Any:
        """Arithmetic on numbers that are constants of the program is done now."""
        target: Any = node.target
        if node.target != "item" and all(self.marks.node_of(a) is None for a in args if type(a) in (int, float)):
            return target(*args)
        if node.target == "item":
            return super()._number(node, args, meta)
        operands = tuple([a if (known := self.marks.node_of(a)) is None else known for a in args])
        made = self.graph.create_node("call_function", target, operands, {})
        made.meta.update(node.meta)
        return self.marks.number(made, meta.kind)  # what it comes to for marks may be any usual number

    def _changed_mode(self, target: Any, args: Any) -> bool:
        """Whether a change of a setting is one of autograd, which is noted instead of done."""
        recorder = self.recorder
        if target in (enter_inference, leave_inference):
            if target is enter_inference:
                self._regions.append(recorder.grad if isinstance(recorder, ProgramRecorder) else torch.is_grad_enabled())
            grad = not args[0] if target is enter_inference else self._regions.pop()
        elif target is torch._C._set_grad_enabled:
            grad = bool(args[0])
        else:
            return False
        if isinstance(recorder, ProgramRecorder):
            recorder.grad = grad or not self.grad_enabled  # what is around the call is no part of the program
        else:
            torch._C._set_grad_enabled(grad)
        return True

    def _agreeing(self, node: Node, made: TracedTensor, meta: TensorMeta) -> TracedTensor:
        recorder = self.recorder
        if isinstance(recorder, ProgramRecorder) and not made.meta.looks_like(meta):
            made = recorder.laid_out(made, meta)
        return super()._agreeing(node, made, meta)

    def _all_agreeing(self, made: Any, metas: Any) -> Any:
        """Several results, where operators stay whole (others are seen to agree when they are taken out)."""
        assert isinstance(self.recorder, ProgramRecorder)
        found = [
            self.recorder.laid_out(tensor, meta)
            if type(tensor) is TracedTensor and isinstance(meta, TensorMeta) and not tensor.meta.looks_like(meta)
            else tensor
            for tensor, meta in zip(made, metas, strict=False)
        ]
        if all(a is b for a, b in zip(found, made, strict=False)):
            return made
        return found if isinstance(made, list) else tuple(found)

    # the end ----------------------------------------------------------------------------------------------------

    def finish(self, results: list[Any]) -> Traced:
        with _disable_current_modes():  # what is looked up now is no operator of the program
            return self._finished(results)

    def _finished(self, results: list[Any]) -> Traced:
        recorder = self.recorder
        if isinstance(recorder, ProgramRecorder):
            recorder.finishing, recorder.grad = True, True
        self._give_own_memory([t for t in results if type(t) is TracedTensor])
        nodes = []
        for result in results:
            if type(result) is not TracedTensor:
                known = self.marks.node_of(result)
                if known is None:
                    raise Unsupported("a result that is a number computed from a tensor")
                nodes.append(known)
                continue
            if is_lazy(result) or is_mixed(result):
                raise Unsupported("a result that is a view of conjugated or negated numbers", "resolve_conj() computes it")
            node = recorder.node_of(result)
            if self.with_autograd and not self.double and node.op != "placeholder":
                node = recorder.emit(aten.detach.default, node)
            nodes.append(node)
        written = {
            self.inputs[t.memory.input].name: recorder.node_of(t) if not t.path else t.memory.node
            for t in self.traced_inputs if t is not None and t.memory.version
        }  # fmt: skip
        for node in self.graph.nodes:
            _describe(node)
        return Traced(self.graph, nodes, written)


    def _give_own_memory(self, results: list[TracedTensor]) -> None:
        """Copy results that are new tensors in the original, and lie in the memory of an input or of another result here: a
        copy to a tensor is not recorded, but what was copied."""
        owners: dict[Node, Any] = {}
        for tensor in results:
            memory = tensor.memory
            root = memory_root(memory.node)
            if memory.input is None and (root.op == "placeholder" or owners.setdefault(root, memory) is not memory):
                memory.node = self.recorder.emit(aten.clone.default, memory.node)
                memory.version += 1
                owners[memory.node] = memory


def _needs_autograd(node: Node) -> bool:
    """Whether a node of a captured graph takes gradients."""
    return takes_gradients(node) or transformed_graph(node.target) is not None


def _describe(node: Node) -> None:
    """Note on a node what tools for torch.fx look for, and replace methods by functions."""
    trace = node.meta.pop("trace", ())
    node.meta.pop("backward", None)
    if trace:
        node.meta["stack_trace"] = as_text(trace)
        node.meta["location"] = location_of(trace)
    if node.op == "call_method" and node.target == "item":
        node.op, node.target = "call_function", item


def simplify(graph: Graph, kept: set[Node]) -> None:
    """Take out nodes that nothing uses, but for those that draw random numbers: later ones would get other numbers."""
    for node in reversed(list(graph.nodes)):
        if node.users or node in kept or node.op != "call_function":
            continue
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags or getattr(node.target, "namespace", "aten") != "aten":
            continue
        graph.erase_node(node)


