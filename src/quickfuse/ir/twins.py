"""Parts of a graph that do the same with other tensors, as an optimizer does with each parameter."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Graph


@dataclass(eq=False, slots=True)
class Part:
    """A part of a graph that shares no tensor with the others that it or they change.

    `inputs` are the positions of its own inputs among the placeholders of the whole graph, and `outputs` of what it computes
    among the results; `at` orders parts as their first nodes come in it. `twins` are the parts that were left out because
    they do the same: input or output k of each stands for that of this one.
    """

    at: int
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    twins: list[Part] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class WithoutTwins:
    """A graph without the twins of its parts. `whole` is the graph that it was made from, and `kept` and `given` are the
    positions, among the placeholders and the results of that, of those that are left."""

    graph: Graph
    whole: Graph
    kept: list[int]
    given: list[int]
    parts: list[Part]

    @property
    def left_out(self) -> int:
        return sum(len(part.twins) for part in self.parts)
