"""The joint graph of a captured graph and its gradients, which `tracing` makes."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Graph, Node

from .outputs import OutputPlan
from .tail import Tail


@dataclass(eq=False, slots=True)
class Joint:
    """The joint graph. Its placeholders are the captured graph's, then the gradients of the differentiable outputs.

    `outputs` are the forward graph's results for the user, and `plan` says how the captured outputs come from them;
    `gradients` are the nodes of the gradients of `wanted` (inputs by position), None for those that none reaches;
    `written` the new contents of inputs that are changed, by position; `saved` the nodes that eager saves for backward,
    and `bytes` the bytes of their memory, inputs' not counted. `order` are the indices in `wanted`, in the order in which
    autograd has the gradients. `used_up` are the differentiable outputs, by number, whose
    gradients the graph took itself, with the message of the exception that taking them again raises.
    `kept_inputs` are those inputs without gradients that eager saves, by position. `reading` has, for inputs that eager
    saves as they are, the nodes of backward that read what is there then: a program may have set the tensor's `data`. All
    others see the memory that the input had. `later` has placeholders of their own for what these nodes read, by input; it
    is empty where both are taken to be the same.
    `changed_later` are inputs that are changed, by position, once forward has run.
    `tail` follows in the forward graph as it was captured; its results among `outputs` are nodes of the captured graph.
    """

    graph: Graph
    inputs: list[Node]
    tangents: list[Node]
    outputs: list[Node]
    plan: OutputPlan
    wanted: list[int]
    gradients: list[Node | None]
    written: dict[int, Node]
    saved: set[Node]
    bytes: int
    draws: bool
    used_up: dict[int, str]
    order: list[int]
    tail: Tail | None = None
    kept_inputs: list[int] = field(default_factory=list)
    reading: dict[Node, set[Node]] = field(default_factory=dict)
    later: dict[Node, Node] = field(default_factory=dict)
    changed_later: frozenset[int] = frozenset()

    @property
    def traced_outputs(self) -> list[Node]:
        """The outputs that the trace computes."""
        return [node for node in self.outputs if self.tail is None or node not in self.tail.skipped]
