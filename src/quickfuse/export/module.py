"""`ExportedModule`: a plain module that runs an exported program."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import Node

from ..control import is_compiling
from ..errors import ExportedCallError
from ..ir.values import TensorMeta
from .assumptions import GRAD_MODE
from .code import NORMALISE, function_of
from .nesting import article, built
from .numbers import Ref, evaluate, text_of
from .program import Check, Program, Returned
from .signature import STATE, InputSpec


class ExportedModule(nn.Module):
    """Runs an exported program on its own parameters and buffers, which have the names that they had in the original.

    It takes the arguments that the program was exported with. Each call is checked for what the program relies on.
    Gradients flow as through the original, and buffers and inputs change as by the original.

    Raises:
        ExportedCallError: in a call that does not fit; nothing has been changed then.
    """

    def __init__(self, program: Program, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._program = program
        kinds = {spec.target: spec for spec in program.signature.inputs if spec.kind in STATE}
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for name, tensor in state.items():
            self._register(name, tensor, kinds.get(name))
        for alias, name in program.aliases.items():
            self._register(alias, state[name], kinds.get(name))
        changed = set(program.signature.changed_buffers)
        inside, normalisations = running_statistics(program)
        self._changed_inside = dict.fromkeys(sorted(inside))  # no set: the order of one is nothing that guards can rely on
        self._function = function_of(program.graph, program.name, normalisations)
        self._kept_for_backward = changed - inside
        self._changed_arguments = set(program.signature.changed_inputs)
        self._inputs = [self._place(spec) for spec in program.signature.inputs]
        self._relies_on_mode = any(a.text.startswith("training ==") for a in program.assumptions)
        super().train(program.training)

    def _register(self, name: str, tensor: torch.Tensor, spec: InputSpec | None) -> None:
        *path, last = name.split(".")
        owner: nn.Module = self
        for part in path:
            child = owner._modules.get(part)
            if child is None:
                child = nn.Module()
                owner.add_module(part, child)
            owner = child
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(last, tensor)
        else:
            kept = name not in self._program.transient and (spec is None or spec.kind != "constant")
            owner.register_buffer(last, tensor, persistent=kept)
        self._places[name] = owner, last

    def _place(self, spec: InputSpec) -> tuple[str, Any, str, str]:
        """Where an input of the graph comes from. What autograd may keep of it has to be another tensor than what is
        changed."""
        if spec.kind == "input":
            return "argument", self._program.arguments.leaves.index(spec.target), "", spec.target
        owner, name = self._places[spec.target]
        if spec.kind == "gradient":
            return "gradient", owner, name, spec.target
        return "changed" if spec.target in self._kept_for_backward else "state", owner, name, spec.target

    def train(self, mode: bool = True) -> ExportedModule:
        """Raises: ExportedCallError, if the program was exported in the other mode and depends on it."""
        if self._relies_on_mode and mode != self._program.training:
            mine, other = ("training", "evaluation") if self._program.training else ("evaluation", "training")
            raise ExportedCallError(f"the program was exported in {mine} mode, and has no {other} mode: export it in both")
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"{self._program.name}{self._program.arguments.described()}"

    # calls ------------------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        program = self._program
        leaves = program.arguments.bind(args, kwargs)
        self._check(leaves)
        inputs = [self._input(place, leaves) for place in self._inputs]
        outputs = self._function(*inputs)
        self._change(outputs, leaves)
        return built(program.result, lambda leaf: self._returned(leaf, outputs, leaves))

    def _input(self, place: tuple[str, Any, str, str], leaves: list[Any]) -> Any:
        kind, owner, name, target = place
        if kind == "argument":
            value = leaves[owner]
            return value.clone() if target in self._changed_arguments and torch.is_grad_enabled() else value
        tensor = tensor_at(owner, name)
        if kind == "gradient":
            if tensor.grad is None:
                wanted = f"{target}.grad is a tensor in the exported program"
                raise ExportedCallError(f"{wanted}, got None: set it before the call")
            return tensor.grad
        return tensor.clone() if kind == "changed" and torch.is_grad_enabled() else tensor

    def _check(self, leaves: list[Any]) -> None:
        program = self._program
        paths = program.arguments.leaves
        for check in program.checks:
            problem = failure(check, leaves, paths)
            if problem:
                raise ExportedCallError(problem)
        for name, value in program.settings.items():
            if name == GRAD_MODE and torch.is_grad_enabled() != value:
                raise ExportedCallError(f"{name} is {value} in the exported program, got {torch.is_grad_enabled()}")
        for condition in program.conditions:
            found = bool(evaluate(condition.expression, lambda ref: self._number(ref, leaves)))
            if found != condition.outcome:
                text = text_of(condition.expression)
                raise ExportedCallError(f"{text} is {condition.outcome} in the exported program, got {found}")
        if program.apart and not is_compiling():
            self._check_apart(leaves)

    def _check_apart(self, leaves: list[Any]) -> None:
        """What the program changes must be no part of another tensor that it takes."""
        tensors = {
            path: value for path, value in zip(self._program.arguments.leaves, leaves, strict=True)
            if isinstance(value, torch.Tensor)
        }  # fmt: skip
        for changed in self._program.apart:
            memory = tensors[changed].untyped_storage().data_ptr()
            for path, tensor in tensors.items():
                same = path == changed or tensor is tensors[changed] or not tensor.numel()
                if not same and tensor.untyped_storage().data_ptr() == memory:
                    raise ExportedCallError(f"{changed}, which the program changes, shares memory with {path}")

    def _number(self, ref: Ref, leaves: list[Any]) -> Any:
        paths = self._program.arguments.leaves
        value = leaves[paths.index(ref.path)] if ref.path in paths else self.tensor(ref.path)
        return value.item() if ref.contents else value

    def tensor(self, name: str) -> Any:
        """The parameter or buffer of that name."""
        owner, last = self._places[name]
        return tensor_at(owner, last)

    def _change(self, outputs: Any, leaves: list[Any]) -> None:
        """Store the new contents of what the program changes."""
        signature = self._program.signature
        for spec, value in zip(signature.outputs, outputs, strict=True):
            if spec.kind == "input":
                leaves[self._program.arguments.leaves.index(spec.target)].copy_(value)
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
            return leaves[self._program.arguments.leaves.index(leaf.value)]
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


def running_statistics(program: Program) -> tuple[set[str], frozenset[Node]]:
    """The buffers that are nothing but running statistics of one batch normalisation, and these normalisations: as in eager
    mode, they change the buffers behind autograd's back, which does not need them."""
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
    """A parameter or buffer of a module itself."""
    return owner._parameters[name] if name in owner._parameters else owner._buffers[name]


def failure(check: Check, leaves: list[Any], paths: list[str]) -> str:
    """Why a check of a call's arguments fails, in the user's terms; "" where it does not."""
    if check.kind == "any":
        return ""
    value, path = leaves[paths.index(check.path)], check.path
    if check.kind == "tensor":
        return _tensor_failure(check.value, path, value)
    if check.kind == "number":
        if type(value) is not check.value:
            return f"{path} is of type {check.value.__name__} in the exported program, got {article(value)}"
    elif check.kind == "equal":
        if type(value) is not type(check.value) or value != check.value:
            return f"{path} is {check.value!r} in the exported program, got {article(value)}"
    elif check.kind == "same":
        if value is not leaves[paths.index(check.value)]:
            return f"{path} is the same object as {check.value} in the exported program, got two objects"
    elif value.requires_grad != check.value:
        return f"{path}.requires_grad is {check.value} in the exported program, got {value.requires_grad}"
    return ""


def _tensor_failure(meta: TensorMeta, path: str, value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{path} is a Tensor in the exported program, got {article(value)}"
    if value.dtype != meta.dtype:
        return f"{path}.dtype is {meta.dtype} in the exported program, got {value.dtype}"
    if value.device != meta.device:
        return f"{path}.device is {meta.device} in the exported program, got {value.device}"
    shape = tuple(value.shape)
    if shape != meta.shape:
        if len(shape) != len(meta.shape):
            return f"{path}.ndim is {len(meta.shape)} in the exported program, got {len(shape)}"
        axis = next(k for k, (size, wanted) in enumerate(zip(shape, meta.shape, strict=True)) if size != wanted)
        return f"{path}.shape[{axis}] is {meta.shape[axis]} in the exported program, got {shape[axis]}"
    stride = value.stride()
    if stride != meta.stride and 0 not in shape:
        for size, step, wanted in zip(shape, stride, meta.stride, strict=True):
            if step != wanted and size > 1:
                hint = f": pass {path}.contiguous()" if meta.is_contiguous else ""
                return f"{path}.stride() is {meta.stride} in the exported program, got {stride}{hint}"
    if value.layout != torch.strided or value.is_conj() or value.is_neg():
        return f"{path} is a plain strided tensor in the exported program, got one that is not"
    return ""


def copied_state(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of tensors, with the strides and classes that they have. What shared memory shares it again."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[str, torch.Tensor] = {}
    for name, tensor in state.items():
        with torch.no_grad():
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in storages:
                storages[key] = storage.clone()
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            copy.set_(storages[key], tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
        if isinstance(tensor, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, tensor.requires_grad)
        else:
            copy.requires_grad_(tensor.requires_grad)
        made[name] = copy
    return made
