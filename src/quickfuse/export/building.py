"""From a call to an exported program: capture it whole, trace it, and say what its inputs and outputs are."""

from __future__ import annotations

import contextlib
import inspect
import platform
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.fx import Node

from .. import logs
from ..capture import capture
from ..capture.branches.assertions import UNUSUAL
from ..capture.branches.input_conditions import BY_INPUTS
from ..differentiate.recompute import memory_root
from ..errors import ExportError, GraphBreak, Unsupported, kind_of
from ..explain.hints import hint_for
from ..ir.gradients import takes_gradients
from ..ir.marks import kept_from_peer, mark_of, without_peer
from ..ir.nodes import outputs_of
from ..ir.segment import GraphInput, Segment
from ..ir.trace import location_of, summary
from ..ir.values import NumberMeta, TensorMeta
from ..module import CompiledModule
from ..pipeline.callables import plain_function
from ..pipeline.compiled import Compiled
from .arguments import arguments_of
from .assumptions import Relied
from .effects import Changes
from .first_step import make_state
from .module import is_taken
from .nesting import Container, leaves_of
from .program import Program, Returned
from .results import Results
from .running import shared_memory
from .signature import STATE, GraphSignature, InputKind, InputSpec, OutputSpec
from .sources import Call
from .tracing import Traced, simplify, trace


def build(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool) -> Program:
    """The program that a call of `function` runs.

    Raises:
        GraphBreak: where something has to happen in Python.
        ExportError: for arguments, results and side effects that a graph cannot have.
    """
    function = _user_callable(function)
    called = function.__call__ if isinstance(function, torch.nn.Module) else function
    named = function.forward if isinstance(function, torch.nn.Module) else function
    arguments, values, paths = arguments_of(named, args, kwargs)
    _check_signature(named, args, kwargs)
    plain, bound = plain_function(called)
    if plain is None:
        raise ExportError(f"a {type(function).__name__} is no Python function, whose bytecode could be read")
    _check_marks(plain)
    call = Call(plain, (*bound, *args), kwargs, len(bound), paths)
    segment = _captured(plain, (*bound, *args), kwargs)
    if make_state(call, segment.effects):
        call = Call(plain, (*bound, *args), kwargs, len(bound), paths)
        segment = _captured(plain, (*bound, *args), kwargs)
    if segment.draws:
        raise ExportError("Python's random numbers, which a graph does not draw")
    if segment.begins:
        raise ExportError("a tensor from outside that begins to require gradients")
    building = _Building(segment, call, dict(zip(arguments.leaves, values, strict=True)))
    with logs.stage("export"):
        try:
            program = building.program(_name(function), arguments, strict)
        except Unsupported as reason:
            raise _graph_break(reason, plain) from None
    program.training = bool(getattr(function, "training", False))
    return program


def _captured(plain: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Segment:
    with logs.stage("capture"):
        try:
            return capture(plain, args, kwargs, whole=True, volatile=frozenset({UNUSUAL, BY_INPUTS}))
        except Unsupported as reason:
            raise _graph_break(reason, plain) from None


def _user_callable(function: Any) -> Any:
    """What a user would name: the original of what was compiled."""
    function = without_peer(function)
    if isinstance(function, CompiledModule):
        return function._original
    if isinstance(function, Compiled):
        return function.function
    if isinstance(function, (FunctionType, MethodType, torch.nn.Module)):
        return function
    own = inspect.getattr_static(type(function), "__call__", None)
    if isinstance(own, FunctionType):
        return MethodType(own, function)
    if not callable(function):
        raise TypeError(f"quickfuse.export needs a callable, not {kind_of(function)}")
    if isinstance(function, type):
        raise TypeError(f"quickfuse.export needs an object of the class {function.__qualname__}, not the class")

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    with contextlib.suppress(ValueError):  # some native functions have none
        call.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return call


def _check_signature(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises: TypeError, for arguments that a function does not take."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"the example does not fit {_name(function)}{signature}: {error}") from None


def _check_marks(plain: FunctionType) -> None:
    mark = mark_of(plain)
    if (mark is not None and mark.kind == "disabled") or kept_from_peer(plain) is not None:
        raise ExportError(f"{plain.__qualname__} is kept from the compiler by disable()")


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _graph_break(reason: Unsupported, plain: FunctionType) -> GraphBreak:
    location = reason.location or f"{plain.__code__.co_filename}:{plain.__code__.co_firstlineno}"
    cause = reason.__cause__
    node = getattr(reason, "node", None)
    trace = () if node is None else node.meta.get("trace", ())
    if trace:
        hint = hint_for(reason.reason, getattr(cause, "hint", "") or reason.hint)
        return GraphBreak(reason.reason, hint, location_of(trace), summary(trace))
    return GraphBreak(reason.reason, hint_for(reason.reason, reason.hint), location, summary(reason.trace))


class _Building:
    def __init__(self, segment: Segment, call: Call, values: dict[str, Any]) -> None:
        self.segment = segment
        self.call = call
        self.values = values
        self.names: dict[int, str] = {}
        self.kinds: dict[int, tuple[InputKind, bool]] = {}
        self.aliases: dict[str, str] = {}
        self.state: dict[str, torch.Tensor] = {}
        self._taken: set[str] = set()
        self._keep: list[Any] = []
        for root, module in call.modules():
            self._name_tensors(root, module)

    # names ------------------------------------------------------------------------------------------------------

    def _name_tensors(self, root: str, module: torch.nn.Module) -> None:
        """Give parameters and buffers the names that they have in a module. All of an exported module's are its state."""
        whole = not root
        for path, owner in module.named_modules(remove_duplicate=False):
            for kind, table in (("parameter", owner._parameters), ("buffer", owner._buffers)):
                for name, tensor in table.items():
                    if tensor is not None:
                        full = ".".join(part for part in (root, path, name) if part)
                        persistent = name not in owner._non_persistent_buffers_set
                        self._name(tensor, full, kind, persistent, whole)  # type: ignore[arg-type]

    def _name(self, tensor: torch.Tensor, name: str, kind: InputKind, persistent: bool, whole: bool) -> None:
        known = self.names.get(id(tensor))
        if known is not None:
            if known != name and known in self.state:
                self.aliases[name] = known
            return
        self.names[id(tensor)] = name
        self.kinds[id(tensor)] = kind, persistent
        self._taken.add(name)
        if whole:
            self.state[name] = tensor

    def _input_name(self, given: GraphInput, tensor: torch.Tensor) -> tuple[InputKind, str, bool]:
        """Kind and name of a tensor that is no argument."""
        source = given.source
        if source.kind == "attr" and source.key == "grad" and source.base is not None:
            parameter = self.call.value_at(source.base)
            return "gradient", self.names.get(id(parameter)) or self.call.name_of(source.base, self.names), True
        known = self.names.get(id(tensor))
        if known is None:
            parts = self.call.name_of(source, self.names).split(".")
            known = name = ".".join(f"{part}_" if is_taken(part) else part for part in parts)
            count = 1
            while known in self._taken or any(other.startswith(f"{known}.") for other in self._taken):
                known, count = f"{name}_{count}", count + 1
            self._taken.add(known)
            self.names[id(tensor)] = known
            changed = given.name in self.segment.mutated
            needs_grad = isinstance(tensor, torch.nn.Parameter) or (tensor.is_leaf and tensor.requires_grad)
            kind: InputKind = "parameter" if needs_grad else "buffer" if changed else "constant"
            self.kinds[id(tensor)] = kind, True
        kind, persistent = self.kinds[id(tensor)]
        plain = kind == "parameter" and not isinstance(tensor, torch.nn.Parameter)
        self.state[known] = torch.nn.Parameter(tensor) if plain else tensor
        return kind, known, persistent

    # the program ------------------------------------------------------------------------------------------------

    def program(self, name: str, arguments: Any, strict: bool) -> Program:
        self._refuse_subclasses()
        relied = Relied(self.call, self.values, self.names)
        examples = self.segment.examples
        specs = [self._spec(given, value) for given, value in self._by_name(examples)]
        changes = Changes(self.call, self.names, self.kinds, self.state, strict)
        changes.note(self.segment.effects)
        changes.note_locks(self.segment.locks)
        specs = [
            replace(spec, kind="buffer", persistent=False)
            if spec.kind != "input" and spec.target in changes.attributes else spec
            for spec in specs
        ]  # fmt: skip
        relied.note(self.segment)
        if any(map(takes_gradients, self.segment.graph.nodes)):
            relied.note_gradients({s.target: self.state[s.target] for s in specs if s.kind in STATE and s.target})
        traced, fixed = self._traced(specs, relied)
        relied.finish()
        results = Results(self.call, self.names, self.values, arguments, self.state, relied.resolve)
        tree = results.tree(self.segment.result)
        _check_returned(tree, changes)
        signature = GraphSignature(cleared=changes.cleared)
        signature.inputs = self._ordered(traced, [spec for spec in specs if spec.name not in fixed])
        nodes = self._outputs(traced, signature, results, changes, tree)
        _close(traced, nodes)
        _leave_out_unused(traced, signature)
        relied.assumptions += changes.assumptions
        numbers = {path: value for path, value in self.values.items() if isinstance(value, (int, float, bool))}
        program = Program(
            name, traced.graph, signature, arguments, relied.checks(), relied.conditions, relied.settings, tree, self.state,
            {alias: target for alias, target in self.aliases.items() if target in self.state}, signature.changed_inputs,
            relied.assumptions, examples=numbers, made_with=versions(),
            transient=[
                name for name, tensor in self.state.items()
                if name in changes.attributes or not self.kinds.get(id(tensor), ("", True))[1]
            ],
        )  # fmt: skip
        _check_state(program, self.values)
        return program

    def _by_name(self, examples: list[Any]) -> list[tuple[GraphInput, Any]]:
        """The graph's inputs with their values: parameters first, by whose names others are named."""
        pairs = list(zip(self.segment.inputs, examples, strict=True))
        return sorted(pairs, key=lambda pair: not isinstance(pair[1], torch.nn.Parameter))

    def _refuse_subclasses(self) -> None:
        for given in self.segment.inputs:
            if isinstance(given.meta, TensorMeta) and given.cls not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
                described = self.call.described(given.source, self.names)
                raise ExportError(f"{described} is a {given.cls.__qualname__}: an exported program takes plain tensors")
            if not isinstance(given.meta, (TensorMeta, NumberMeta)):
                raise ExportError(
                    f"{self.call.described(given.source, self.names)} is a {given.cls.__qualname__}, which no graph can take"
                )

    def _spec(self, given: GraphInput, value: Any) -> InputSpec:
        assert isinstance(given.meta, (TensorMeta, NumberMeta))
        path = self.call.argument(given.source)
        if path is not None and path in self.values:
            return InputSpec("input", given.name, path, given.meta)
        if isinstance(given.meta, NumberMeta):
            return InputSpec("constant", given.name, "", given.meta)
        kind, name, persistent = self._input_name(given, value)
        return InputSpec(kind, given.name, name, given.meta, persistent)

    def _traced(self, specs: list[InputSpec], relied: Relied) -> tuple[Traced, dict[str, Any]]:
        """The traced graph, and the numbers that became constants in it: those that are no arguments, and all others if
        operators need to know them."""
        inputs = {given.name: given for given in self.segment.inputs}
        values = dict(zip(inputs, self.segment.examples, strict=True))
        numbers = [spec for spec in specs if isinstance(spec.meta, NumberMeta)]
        fixed = {s.name: values[s.name] for s in numbers if s.kind != "input" or s.target in relied.fixed}
        for spec in numbers:
            if spec.kind != "input":
                relied.note_number(inputs[spec.name].source)
        may_need_grad = frozenset(
            spec.name for spec in specs
            if isinstance(spec.meta, TensorMeta) and (spec.kind in ("parameter", "input") or spec.meta.requires_grad)
            and (spec.meta.dtype.is_floating_point or spec.meta.dtype.is_complex)
        )  # fmt: skip

        def run() -> Traced:
            grad = next((g.value[1] for g in self.segment.guards if g.value[:1] == ("torch.is_grad_enabled()",)), True)
            return trace(self.segment.graph, grad, self.segment.inference, fixed, may_need_grad)

        try:
            return run(), fixed
        except Unsupported:
            free = [spec for spec in numbers if spec.name not in fixed]
            if not free:
                raise
        for spec in free:
            fixed[spec.name] = values[spec.name]
            relied.fix(spec.target)
        return run(), fixed

    def _ordered(self, traced: Traced, specs: list[InputSpec]) -> list[InputSpec]:
        """The inputs in their order, and the graph's placeholders in the same. Inputs that nothing uses are left out."""
        nodes = {node.name: node for node in traced.graph.nodes if node.op == "placeholder"}
        order = {kind: k for k, kind in enumerate(("parameter", "buffer", "constant", "gradient", "input"))}
        ordered = sorted(specs, key=lambda spec: order[spec.kind])
        first = next(iter(traced.graph.nodes), None)
        for spec in ordered if first is not None else []:
            assert first is not None
            if nodes[spec.name] is first:
                first = first.next
            else:
                first.prepend(nodes[spec.name])
        return ordered

    def _outputs(
        self, traced: Traced, signature: GraphSignature, results: Results, changes: Changes, tree: Container | Returned
    ) -> list[Node]:
        """What the graph returns, noted in the signature."""
        captured = traced.results
        assert len(captured) == len(outputs_of(self.segment.graph))
        nodes = [captured[index] for index in results.outputs]
        for node, path in zip(nodes, results.paths(tree), strict=True):
            signature.outputs.append(OutputSpec("output", node.name, path))
        by_name = {spec.name: spec for spec in signature.inputs}
        replaced = {(kind, target) for kind, target, _ in changes.new}
        for name, node in traced.written.items():
            spec = by_name[name]
            kind: Any = "buffer" if spec.kind == "constant" else spec.kind
            if (kind, spec.target) not in replaced:
                nodes.append(node)
                signature.outputs.append(OutputSpec(kind, node.name, spec.target))
        for kind, target, value in changes.new:
            node = captured[value] if isinstance(value, int) else self._input_node(traced, value)
            old, new = self.state[target], node.meta["val"]
            if kind == "buffer" and (old.dtype, tuple(old.shape)) != (new.dtype, new.shape):
                found = f"{target} is {TensorMeta(old.dtype, tuple(old.shape), old.stride(), old.device)}"
                raise ExportError(f"{found}, and the program replaces it by {new}: a buffer keeps its shape and dtype")
            nodes.append(node)
            signature.outputs.append(OutputSpec(kind, node.name, target))
        self._keep_apart(traced, signature, nodes)
        return nodes

    def _keep_apart(self, traced: Traced, signature: GraphSignature, nodes: list[Node]) -> None:
        """Copy outputs that lie in the memory of inputs which the program changes: that is written to before they are
        read."""
        places: dict[tuple[str, str], str] = {(spec.kind, spec.target): spec.name for spec in signature.inputs}
        changed = {places.get((spec.kind, spec.target)) for spec in signature.outputs}
        for k, (node, spec) in enumerate(zip(nodes, signature.outputs, strict=True)):
            root = memory_root(node)
            if root.op == "placeholder" and root.name in changed and isinstance(node.meta["val"], TensorMeta):
                nodes[k] = copy = traced.graph.call_function(torch.ops.aten.clone.default, (node,))
                copy.meta.update(val=node.meta["val"])
                signature.outputs[k] = OutputSpec(spec.kind, copy.name, spec.target)

    def _input_node(self, traced: Traced, tensor: torch.Tensor) -> Node:
        for given, example in zip(self.segment.inputs, self.segment.examples, strict=True):
            if example is tensor:
                return next(node for node in traced.graph.nodes if node.name == given.name)
        raise ExportError("the program stores a tensor that it did not compute")


def _check_state(program: Program, arguments: dict[str, Any]) -> None:
    """Names that no module can have, and memory that tensors share with what the program changes, are errors now, not in a
    call."""
    for name in (*program.state, *program.aliases):
        if any(map(is_taken, name.split("."))):
            raise ExportError(f"{name}: modules have an attribute of that name, so an exported one can have no such tensor")
    problem = shared_memory(program, arguments)
    if problem:
        raise ExportError(f"{problem}. Give them memory of their own: clone()")


def _check_returned(tree: Any, changes: Changes) -> None:
    """A buffer that the program replaced, and returns, would have the new contents."""
    replaced = {name for kind, name, _ in changes.new if kind == "buffer"}
    for leaf in leaves_of(tree):
        if leaf.kind == "state" and leaf.value in replaced:
            raise ExportError(f"the program returns {leaf.value} as it was before it was replaced: return a clone() of it")


def _close(traced: Traced, nodes: list[Node]) -> None:
    """Let the graph return these nodes, and take out what nothing needs."""
    traced.graph.output(tuple(nodes)).meta["val"] = None
    simplify(traced.graph, set(nodes))


def _leave_out_unused(traced: Traced, signature: GraphSignature) -> None:
    """Take out inputs for tensors of the program's own that it only asked what they are like. They stay in its state."""
    unused = {node.name: node for node in traced.graph.nodes if node.op == "placeholder" and not node.users}
    for spec in [spec for spec in signature.inputs if spec.kind in STATE and spec.name in unused]:
        signature.inputs.remove(spec)
        traced.graph.erase_node(unused[spec.name])


def versions() -> dict[str, str]:
    """What a program is made with."""
    from .. import __version__  # which imports this package

    return {"quickfuse": __version__, "torch": torch.__version__, "python": platform.python_version()}


