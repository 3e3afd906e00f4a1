"""Running an exported program: the checks of a call, the graph's function, and what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ..errors import ExportedCallError
from ..ir.tensor_checks import TensorChecks, first_unlike, overlapping
from ..ir.values import TensorMeta
from .checks import Surroundings, failure_of_argument, failure_of_tensor
from .code import NORMALISE, function_of
from .nesting import built
from .numbers import Ref, evaluate, text_of
from .program import Program, Returned
from .signature import STATE, InputKind, InputSpec


class Runner:
    """Runs a program whose tensors are parameters and buffers of modules: `places` has, for each name, the module and the
    name there."""

    def __init__(self, program: Program, places: dict[str, tuple[nn.Module, str]]) -> None:
        self.program = program
        self.relies_on_mode = any(a.text.startswith("training ==") for a in program.assumptions)
        self._places = places
        inputs = program.signature.inputs
        inside, normalisations = running_statistics(program)
        self._changed_inside = dict.fromkeys(sorted(inside))  # no set: the order of one is nothing that guards can rely on
        self._function = function_of(program.graph, program.name, normalisations)
        self._specs = _specs(program)
        self._sources = [self._place(spec) for spec in self._specs]
        changed = {("input", path) for path in program.signature.changed_inputs}
        changed |= {(kind, name) for kind in STATE for name in {*program.signature.changed_buffers} - inside}
        self._kept_for_backward = [k for k, spec in enumerate(inputs) if (spec.kind, spec.target) in changed]
        self._surroundings = Surroundings(program)
        self._tensor_checks = _tensor_checks(program, self._specs)
        self._needs_gradients = [(c.path, c.value) for c in program.checks if c.kind == "state_requires_grad"]
        self._takes_gradients = bool(program.signature.gradients)

    def _place(self, spec: InputSpec) -> tuple[str, Any, str]:
        """Where an input of the graph comes from."""
        if spec.kind == "input":
            return "argument", self.program.arguments.leaves.index(spec.target), ""
        owner, name = self._places[spec.target]
        return "gradient" if spec.kind == "gradient" else "state", owner, name

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> Any:
        """What the program gives for a call's arguments, in training mode or in evaluation.

        Raises:
            ExportedCallError: for a call that does not fit; nothing has been changed then.
        """
        leaves = self.program.arguments.bind(args, kwargs)
        problem = self._surroundings.failure() or self._failure_of_mode(training) or self._failure_of_arguments(leaves)
        if problem:
            raise ExportedCallError(problem)
        given = [self._given(place, leaves) for place in self._sources]
        problem = self._failure_of_tensors(given)
        if problem:
            raise ExportedCallError(problem)
        if self._kept_for_backward and torch.is_grad_enabled():
            for k in self._kept_for_backward:  # autograd keeps another tensor than the one that is changed
                given[k] = given[k].clone()
        outputs = self._function(*given[: len(self.program.signature.inputs)])
        self._change(outputs, leaves)
        return built(self.program.result, lambda leaf: self._returned(leaf, outputs, leaves))

    def _given(self, place: tuple[str, Any, str], leaves: list[Any]) -> Any:
        kind, owner, name = place
        if kind == "argument":
            return leaves[owner]
        tensor = tensor_at(owner, name)
        return tensor.grad if kind == "gradient" and tensor is not None else tensor

    def tensor(self, name: str) -> Any:
        """The parameter or buffer of that name; None where there is none any more."""
        owner, last = self._places[name]
        return tensor_at(owner, last)

    # checks -----------------------------------------------------------------------------------------------------

    def _failure_of_mode(self, training: bool) -> str:
        if self.relies_on_mode and training != self.program.training:
            return f"training is {self.program.training} in the exported program, got {training}"
        return ""

    def _failure_of_arguments(self, leaves: list[Any]) -> str:
        program = self.program
        for check in program.checks:
            problem = failure_of_argument(check, leaves, program.arguments.leaves)
            if problem:
                return problem
        for condition in program.conditions:
            found = bool(evaluate(condition.expression, lambda ref: self._number(ref, leaves)))
            if found != condition.outcome:
                return f"{text_of(condition.expression)} is {condition.outcome} in the exported program, got {found}"
        return ""

    def _failure_of_tensors(self, given: list[Any]) -> str:
        """Why the program's own tensors are no longer those that it can work with, or why what it changes is a part of
        another tensor that it has; "" where all is well. `given` are the inputs of its graph, and what else is in its
        state."""
        specs = self._specs
        unlike = first_unlike(self._tensor_checks, given)
        if unlike is not None:
            return _unlike(specs[unlike], given[unlike])
        for name, wanted in self._needs_gradients:
            tensor = self.tensor(name)
            if tensor.requires_grad != wanted:
                return f"{name}.requires_grad is {wanted} in the exported program, got {tensor.requires_grad}"
            if self._takes_gradients and (tensor._backward_hooks or tensor._post_accumulate_grad_hooks):
                return f"{name} has hooks, which the gradients that the exported program takes do not pass"
        for alias, name in self.program.aliases.items():
            if self.tensor(alias) is not self.tensor(name):
                return f"{alias} is {name} in the exported program, got two tensors"
        return _overlap(specs, overlapping(self._tensor_checks, given))

    def _number(self, ref: Ref, leaves: list[Any]) -> Any:
        paths = self.program.arguments.leaves
        value = leaves[paths.index(ref.path)] if ref.path in paths else self.tensor(ref.path)
        return value.item() if ref.contents else value

    # what comes of it -------------------------------------------------------------------------------------------

    def _change(self, outputs: Any, leaves: list[Any]) -> None:
        """Store the new contents of what the program changes."""
        signature = self.program.signature
        for spec, value in zip(signature.outputs, outputs, strict=True):
            if spec.kind == "input":
                leaves[self.program.arguments.leaves.index(spec.target)].copy_(value)
            elif spec.kind == "gradient":
                self.tensor(spec.target).grad = value.detach()
            elif spec.kind != "output" and spec.target not in self._changed_inside:
                with torch.no_grad():
                    self.tensor(spec.target).copy_(value)
        for name in signature.cleared:
            self.tensor(name).grad = None

    def _returned(self, leaf: Returned, outputs: Any, leaves: list[Any]) -> Any:
        if leaf.kind == "output":
            return outputs[leaf.value]
        if leaf.kind == "argument":
            return leaves[self.program.arguments.leaves.index(leaf.value)]
        if leaf.kind == "state":
            return self.tensor(leaf.value)
        if leaf.kind == "constant":
            return leaf.value
        if leaf.kind == "item":
            return outputs[leaf.value].item()

        def number(ref: Ref) -> Any:
            if ref.path.startswith("output "):
                found = outputs[int(ref.path.removeprefix("output "))]
                return found.item() if ref.contents else found
            return self._number(ref, leaves)

        return evaluate(leaf.value, number)


def shared_memory(program: Program, arguments: Mapping[str, Any]) -> str:
    """Which tensor that a program changes shares memory with another one of its state, or of its `arguments` by path; ""
    where none does."""
    specs = _specs(program)
    tensors = [program.state[s.target] if s.kind in STATE else arguments.get(s.target) for s in specs]
    return _overlap(specs, overlapping(_tensor_checks(program, specs), tensors))


def _overlap(specs: list[InputSpec], found: tuple[int, int] | None) -> str:
    if found is None:
        return ""
    return f"{specs[found[0]].target}, which the program changes, shares memory with {specs[found[1]].target}"


def _specs(program: Program) -> list[InputSpec]:
    """The inputs of a program's graph, and after them what else is in its state: it may have asked what that is like."""
    taken = {spec.target for spec in program.signature.inputs if spec.kind in STATE}
    specs = list(program.signature.inputs)
    for name, tensor in program.state.items():
        kind: InputKind = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
        meta = TensorMeta(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, tensor.requires_grad)
        if name not in taken:
            specs.append(InputSpec(kind, "", name, meta))
    return specs


def _tensor_checks(program: Program, specs: list[InputSpec]) -> TensorChecks:
    """What each call asks of the tensors that a program takes: of its own what they are like, of all whether what it
    changes shares memory with others. What arguments are like is checked before."""
    signature = program.signature
    twice = {check.path for check in program.checks if check.kind == "same"}
    written = {(spec.kind, spec.target) for spec in signature.outputs if spec.kind in ("parameter", "buffer", "input")}
    expected: list[Any] = []
    changed: list[int] = []
    others: list[int] = []
    for k, spec in enumerate(specs):
        own = spec.kind != "input" and isinstance(spec.meta, TensorMeta)
        either = spec.kind in ("parameter", "gradient")
        expected.append((spec.meta, None if either else spec.meta.requires_grad) if own else None)  # type: ignore[union-attr]
        one = spec.kind in STATE or (spec.kind == "input" and spec.target not in twice)
        if one and isinstance(spec.meta, TensorMeta):
            kind = "buffer" if spec.kind == "constant" else spec.kind
            (changed if (kind, spec.target) in written else others).append(k)
    return TensorChecks(tuple(expected), tuple(changed), tuple(others) if changed else ())


def _unlike(spec: InputSpec, value: Any) -> str:
    """Why the program cannot work with what is in place of a tensor of its own."""
    assert isinstance(spec.meta, TensorMeta)
    if spec.kind == "gradient":
        if value is None:
            return f"{spec.target}.grad is a tensor in the exported program, got None: set it before the call"
        return failure_of_tensor(spec.meta, f"{spec.target}.grad", value)
    wanted = f"{spec.target}.requires_grad is {spec.meta.requires_grad}"
    return failure_of_tensor(spec.meta, spec.target, value) or f"{wanted} in the exported program, got {value.requires_grad}"


def running_statistics(program: Program) -> tuple[set[str], frozenset[Node]]:
    """The buffers that are nothing but running statistics of one batch normalisation, and these normalisations: as in eager
    mode, they change the buffers without autograd, which does not need them."""
    changed = {spec.name: spec.target for spec in program.signature.outputs if spec.kind == "buffer"}
    places = {spec.name: spec.target for spec in program.signature.inputs if spec.kind == "buffer"}
    found: dict[Node, set[str]] = {}
    for node in program.graph.nodes:
        if node.target is not NORMALISE or not all(isinstance(a, Node) for a in node.args[3:5]):
            continue
        results = {user.args[1]: user for user in node.users}
        ours = [(results.get(k), node.args[k]) for k in (3, 4)]
        if {*results} <= {0, 3, 4} and all(
            new is not None and {*map(_op, new.users)} == {"output"} and len(old.users) == 1
            and places.get(old.name) == changed.get(new.name, "") for new, old in ours
        ):  # fmt: skip
            found[node] = {places[old.name] for _, old in ours}
    return {name for names in found.values() for name in names}, frozenset(found)


def _op(node: Node) -> str:
    return node.op


def tensor_at(owner: nn.Module, name: str) -> Any:
    """A parameter or buffer of a module itself; None where it has none of that name."""
    return owner._parameters[name] if name in owner._parameters else owner._buffers.get(name)
