"""What `explain` found out, readable without knowing the compiler."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import dataclass, field

import torch

from ..ir.guard import Guard


@dataclass(frozen=True)
class BreakReason:
    """One place where a graph ended before the function did."""

    reason: str
    hint: str
    source_line: str
    location: str
    user_stack: traceback.StackSummary

    def __str__(self) -> str:
        inside = f", in {self.user_stack[-1].name}" if self.user_stack else ""
        lines = [self.reason, f"  at {self.location}{inside}" if self.location else ""]
        lines.append(f"      {self.source_line}" if self.source_line else "")
        lines += [f"  called from {f.filename}:{f.lineno}, in {f.name}" for f in reversed(self.user_stack[:-1])]
        lines.append(f"  Instead: {self.hint}")
        return "\n".join(line for line in lines if line)


@dataclass(frozen=True)
class Explanation:
    """What became of one call of a compiled function. `print(explanation)` tells it as a text.

    * `graphs`: the captured graphs, in the order in which they ran first
    * `ops_per_graph`: the calls of PyTorch in each, `kernels_per_graph`: how many kernels they became, and
      `without_kernels`: why a graph runs operator by operator, an empty string where it does not
    * `break_reasons`: why a graph ended before the function did, in the order in which they were met
    * `notes`: what was left to plain Python beyond single steps
    * `earlier_calls`: what became of sizes of tensors that earlier calls had, of a function that was compiled before
    * `out_guards`: the facts about the call that all this relies on: where one fails, it is compiled again
    * `compile_times`: seconds spent in each stage
    * `cuda_graphs` and `cuda_graph_bytes`: how many CUDA graphs the process has, and what memory they hold
    """

    name: str
    graphs: list[torch.fx.GraphModule]
    ops_per_graph: list[list[str]]
    kernels_per_graph: list[int]
    without_kernels: list[str]
    break_reasons: list[BreakReason]
    notes: list[str]
    out_guards: list[Guard]
    compile_times: dict[str, float] = field(default_factory=dict)
    earlier_calls: list[str] = field(default_factory=list)
    cuda_graphs: int = 0
    cuda_graph_bytes: int = 0

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(len(ops) for ops in self.ops_per_graph)

    def __str__(self) -> str:
        return "\n".join([*self._head(), *self._breaks(), *self._graphs(), *self._foot()])

    __repr__ = __str__

    def _head(self) -> list[str]:
        graphs = f"{_count(self.graph_count, 'graph')} with {_count(self.op_count, 'operator')}"
        return [f"{self.name}: {graphs}, {_count(self.graph_break_count, 'graph break')}", ""]

    def _breaks(self) -> list[str]:
        lines = []
        for number, broken in enumerate(self.break_reasons, 1):
            lines += [f"Graph break {number}: {broken}", ""]
        return lines

    def _graphs(self) -> list[str]:
        lines = []
        for k, graph in enumerate(self.graphs):
            kernels = _count(self.kernels_per_graph[k], "kernel")
            if self.without_kernels[k]:
                kernels = f"run operator by operator: {self.without_kernels[k]}"
            lines += [f"Graph {k + 1}, from {_first_location(graph)} on, {kernels}", f"  {_listed(self.ops_per_graph[k])}"]
        return [*lines, ""] if lines else []

    def _foot(self) -> list[str]:
        lines = [f"Left to Python: {note}" for note in self.notes]
        lines += [f"Of earlier calls: {note}" for note in self.earlier_calls]
        total = sum(self.compile_times.values())
        stages = ", ".join(f"{stage} {seconds:.3f}" for stage, seconds in self.compile_times.items())
        lines.append(f"Compiled in {total:.3f} s: {stages}")
        if self.cuda_graphs:
            graphs = _count(self.cuda_graphs, "CUDA graph")
            lines.append(f"The process has {graphs}, which {_hold(self.cuda_graphs)} {self.cuda_graph_bytes / 1e6:.1f} MB")
        if self.out_guards:
            lines.append(f"Compiled again where one of {len(self.out_guards)} guards fails (out_guards)")
        return lines


def _hold(number: int) -> str:
    return "holds" if number == 1 else "hold"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _first_location(graph: torch.fx.GraphModule) -> str:
    places = (node.meta.get("location") for node in graph.graph.nodes if node.op in ("call_function", "call_method"))
    return next(filter(None, places), "its start")


def _listed(names: list[str]) -> str:
    """Names in the order of their first appearance, with how often they appear."""
    return ", ".join(name if times == 1 else f"{name} ({times})" for name, times in Counter(names).items())
