"""`Exported`: what `quickfuse.export` returns."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..explain.graphs import described_for_readers
from .archive import write
from .module import ExportedModule, copied_state
from .program import Assumption, Program
from .signature import GraphSignature


class Exported:
    """One graph of ATen operators out of a Python program, with all that it needs to run."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._graph_module: GraphModule | None = None

    @property
    def name(self) -> str:
        """The name of the function, or of the class of the module, that was exported."""
        return self.program.name

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph of `graph_module`."""
        return self.graph_module.graph

    @property
    def graph_module(self) -> GraphModule:
        """The graph as a module of torch.fx. It is functional: it takes the inputs and gives the outputs that
        `graph_signature` tells, in that order, and changes nothing. Nodes carry `meta["val"]` (a `TensorMeta`),
        `meta["stack_trace"]` and `meta["location"]`, the user's line."""
        if self._graph_module is None:
            self._graph_module = GraphModule(torch.nn.Module(), described_for_readers(self.program.graph))
        return self._graph_module

    @property
    def graph_signature(self) -> GraphSignature:
        """Which input of the graph is which parameter, buffer, constant or argument, and what its outputs are."""
        return self.program.signature

    @property
    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors of the program by name: those of the original, not copies."""
        aliases = {alias: self.program.state[name] for alias, name in self.program.aliases.items()}
        return {**self.program.state, **aliases}

    @property
    def assumptions(self) -> list[Assumption]:
        """What the program was specialised on. What is `checked` is checked in each call."""
        return list(self.program.assumptions)

    def module(self) -> ExportedModule:
        """A module that runs the program on copies of its tensors, differentiable where the program is."""
        return ExportedModule(self.program, copied_state(self.program.state))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("an exported program is data: exported.module() makes a module of it, which can be called")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to one file: a zip archive with the graph as JSON, and the tensors as safetensors.

        Raises:
            errors.ExportError: for a program with a value that no file can describe.
        """
        write(self.program, path)

    def to_torch(self) -> Any:
        """The program as a `torch.export.ExportedProgram`, which `torch.export.save`, `torch.onnx.export(dynamo=True)`,
        ExecuTorch and AOTInductor take. Numbers among the arguments are fixed to those of the example there.

        Raises:
            errors.ExportError: for a program that `torch.export` has no form of.
        """
        from .torch_program import exported_program

        return exported_program(self.program)

    def print_readable(self, print_output: bool = True) -> str:
        """The program as code, with the user's lines as comments, and its signature."""
        signature = "\n".join(f"# {line}" for line in self.graph_signature.lines())
        text = f"{signature}\n{self.graph_module.print_readable(print_output=False)}"
        if print_output:
            print(text)
        return text

    def __str__(self) -> str:
        return self.print_readable(print_output=False)

    def __repr__(self) -> str:
        operators = sum(isinstance(node, Node) and node.op == "call_function" for node in self.program.graph.nodes)
        return f"<Exported {self.name}{self.program.arguments.described()}, {operators} operators>"
