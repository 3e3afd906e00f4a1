"""An exported program as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph

from ..ir.values import TensorMeta
from .arguments import Arguments
from .nesting import Container
from .numbers import Expression
from .signature import GraphSignature

#: The version of the data's layout, in files. A change that older versions would misread makes it larger.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the program was specialised on.

    `text` says it in the user's terms. `checked`: it is about a call's arguments or settings, and each call is checked for
    it. Otherwise it is what the program found around it, and has become part of it: `where` are the modules that it was
    found in, if it was found in modules. `location` is the user's "file:line" that relied on it first.
    """

    text: str
    location: str = ""
    checked: bool = False
    where: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.where or self.where == ("",):
            return self.text
        more = f" and {len(self.where) - 1} more" if len(self.where) > 1 else ""
        return f"{self.text} in {self.where[0] or 'the module itself'}{more}"


@dataclass(frozen=True, slots=True)
class Check:
    """What a value of a call's arguments has to be, or a tensor of the program. `kind` is one of

    * "tensor": a tensor as `value` (a `TensorMeta`) says, but for its `requires_grad`
    * "requires_grad": a tensor whose `requires_grad` is `value`
    * "state_requires_grad": so is that of the tensor in the program's state whose name is `path`
    * "number": a number of the type `value` (int or float), which the program takes as it is
    * "equal": `value` itself, of the same type
    * "same": the very object that is at the path `value`
    * "any": whatever it is, the program does not look at it
    """

    kind: str
    path: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Condition:
    """An expression on a call's numbers that must be true (or false, as `outcome` says)."""

    expression: Expression
    outcome: bool


@dataclass(frozen=True, slots=True)
class Returned:
    """A leaf of what a program returns. `kind` is one of

    * "output": output number `value` of the graph; "item": the number in that one-element tensor
    * "argument": the value of the user's argument at the path `value`
    * "state": the tensor of that name
    * "constant": `value`
    * "number": the value of the expression `value`
    """

    kind: str
    value: Any


@dataclass(slots=True)
class Program:
    """A program: a functional `graph` of ATen operators, whose inputs and outputs `signature` tells.

    `state` are the tensors of parameters, buffers and constants by name, `aliases` further names of some of them. `settings`
    are what each call is checked for beside its arguments: the name of a setting of PyTorch's and its value. `apart` are
    the paths of tensors that must not share memory with other arguments, since the program changes them. `examples` are the
    numbers among the arguments that it was exported with, `transient` the buffers that are no part of a `state_dict`.
    """

    name: str
    graph: Graph
    signature: GraphSignature
    arguments: Arguments
    checks: list[Check]
    conditions: list[Condition]
    settings: dict[str, Any]
    result: Container | Returned
    state: dict[str, torch.Tensor]
    aliases: dict[str, str] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)
    assumptions: list[Assumption] = field(default_factory=list)
    training: bool = False
    examples: dict[str, Any] = field(default_factory=dict)
    made_with: dict[str, str] = field(default_factory=dict)
    transient: list[str] = field(default_factory=list)

    def input_metas(self) -> dict[str, TensorMeta]:
        """The metadata of each tensor among the arguments that the program uses, by path."""
        return {check.path: check.value for check in self.checks if check.kind == "tensor"}
