"""What an exported program takes and gives: parameters, buffers, constants, the user's inputs, outputs, and what it changes.

The graph of a program is functional: it gets every tensor as an input, and what it changes of them are further outputs.
The signature says which input and output is what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ..ir.values import NumberMeta, TensorMeta

InputKind = Literal["parameter", "buffer", "constant", "gradient", "input"]
OutputKind = Literal["output", "parameter", "buffer", "input", "gradient"]

#: Inputs whose tensors belong to the program and are in its state, by name.
STATE: frozenset[str] = frozenset({"parameter", "buffer", "constant"})


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input of the graph: the placeholder `name`.

    `target` is the name of a parameter, buffer or constant in the state; of a "gradient", the parameter that it belongs to;
    of an "input", the path of the user's value: `x`, `batch['mask'][0]`. A buffer that is not `persistent` is no part of
    the `state_dict` of the module that it came from.
    """

    kind: InputKind
    name: str
    target: str
    meta: TensorMeta | NumberMeta
    persistent: bool = True


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """An output of the graph: the node `name`.

    An "output" is the user's, `target` its path in what the program returns. Others are the new contents of a "parameter",
    "buffer" or "input" of that name, or the new "gradient" of a parameter.
    """

    kind: OutputKind
    name: str
    target: str


@dataclass(slots=True)
class GraphSignature:
    """The inputs and outputs of a program's graph, in the graph's order. `cleared` are parameters without a gradient after
    a call."""

    inputs: list[InputSpec] = field(default_factory=list)
    outputs: list[OutputSpec] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)

    def _targets(self, kind: str) -> list[str]:
        return [spec.target for spec in self.inputs if spec.kind == kind]

    def _changed(self, kind: str) -> list[str]:
        return [spec.target for spec in self.outputs if spec.kind == kind]

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters that the program reads."""
        return self._targets("parameter")

    @property
    def buffers(self) -> list[str]:
        """Names of the buffers that the program reads."""
        return self._targets("buffer")

    @property
    def constants(self) -> list[str]:
        """Names of tensors that are neither parameters nor buffers, and that the program only reads."""
        return self._targets("constant")

    @property
    def user_inputs(self) -> list[str]:
        """Paths of the tensors and numbers among the arguments that the program uses."""
        return self._targets("input")

    @property
    def user_outputs(self) -> list[str]:
        """Paths of the tensors in what the program returns, as far as it computes them."""
        return self._changed("output")

    @property
    def changed_parameters(self) -> list[str]:
        """Names of the parameters that the program gives new contents."""
        return self._changed("parameter")

    @property
    def changed_buffers(self) -> list[str]:
        """Names of the buffers that the program gives new contents."""
        return self._changed("buffer")

    @property
    def changed_inputs(self) -> list[str]:
        """Paths of the tensors among the arguments that the program gives new contents."""
        return self._changed("input")

    @property
    def gradients(self) -> list[str]:
        """The parameters whose `grad` the program sets."""
        return self._changed("gradient")

    def lines(self) -> Iterator[str]:
        """The signature for readers."""
        for spec in self.inputs:
            kept = "" if spec.persistent else " (not persistent)"
            yield f"{spec.name}: {spec.meta}  # {spec.kind} {spec.target}{kept}"
        for out in self.outputs:
            what = {"output": "output", "gradient": "new gradient of"}.get(out.kind, f"changes {out.kind}")
            yield f"-> {out.name}  # {what} {out.target}".rstrip()
        for name in self.cleared:
            yield f"-> None  # new gradient of {name}"

    def __str__(self) -> str:
        return "\n".join(self.lines())
