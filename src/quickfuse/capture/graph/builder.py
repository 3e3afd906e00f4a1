"""What the parts of the graph builder see of it, and of one another through it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...ir.segment import GraphInput
from ..symbolic import Symbol, TensorProxy
from .history import History


class Builder(Protocol):
    """See `graph.GraphBuilder`."""

    #: The innermost graph that is being built, the outermost one, and what is between them.
    graph: torch.fx.Graph
    root: torch.fx.Graph
    nested: list[Any]
    inputs: list[GraphInput]
    examples: list[Any]
    history: History
    #: The grad mode of the captured program, and that of the running graph so far.
    grad_enabled: bool
    emitted_grad: bool
    keeps_history: bool
    only_pytorch: str
    #: See `contents.Contents`, which asks for this class, and `building.GraphBuilder`.
    contents: Any
    mutated: set[str]
    fails_unless: Callable[[Symbol], bool]
    may_break: bool
    concrete: Callable[[Any], Any]
    in_try: Callable[[], bool]
    in_library: Callable[[], bool]
    #: Whether something in the running graph needs gradients.
    differentiable: bool

    def node_of(self, value: TensorProxy | Symbol) -> torch.fx.Node: ...

    def mode_node(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None: ...

    def sync_modes(self) -> None: ...
