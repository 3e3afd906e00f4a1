"""`ExportedModule`: a plain module that runs an exported program."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import ExportedCallError
from .program import Program
from .running import Runner
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
        places = {name: self._register(name, tensor, kinds.get(name)) for name, tensor in state.items()}
        places |= {alias: self._register(alias, state[name], kinds.get(name)) for alias, name in program.aliases.items()}
        self._runner = Runner(program, places)
        super().train(program.training)

    def _register(self, name: str, tensor: torch.Tensor, spec: InputSpec | None) -> tuple[nn.Module, str]:
        """Make a tensor a parameter or buffer; the module that has it, and its name there."""
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
        return owner, last

    def train(self, mode: bool = True) -> ExportedModule:
        """Raises: ExportedCallError, if the program was exported in the other mode and depends on it."""
        if self._runner.relies_on_mode and mode != self._program.training:
            mine, other = ("training", "evaluation") if self._program.training else ("evaluation", "training")
            raise ExportedCallError(f"the program was exported in {mine} mode, and has no {other} mode: export it in both")
        return super().train(mode)

    def extra_repr(self) -> str:
        return f"{self._program.name}{self._program.arguments.described()}"

    def tensor(self, name: str) -> Any:
        """The parameter, buffer or constant of that name; None where there is none any more."""
        return self._runner.tensor(name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._runner.run(args, kwargs, self.training)


_OWN = frozenset({"_program", "_runner", *vars(nn.Module())})


def is_taken(name: str) -> bool:
    """Whether no parameter, buffer or module of a program can have a name, since modules have an attribute of that name."""
    return name in _OWN or hasattr(ExportedModule, name)


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
