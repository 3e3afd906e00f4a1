"""The computing part of a specialisation: kernels in order, or the captured graph as it is."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from ..ir.gradients import takes_gradients
from ..ir.kernel import Schedule
from ..ir.launching import Launch, Placement
from ..ir.modes import preserving_modes
from ..ir.nodes import outputs_of
from ..ir.segment import Segment
from ..ir.values import TensorMeta
from .glue import PLACED, UNFIT, Body, tensor_order
from .kernel_calls import KernelBodyWriter


def graph_body(segment: Segment, run: Callable[..., Any]) -> Body:
    """Run the captured graph, or what a backend made of it: `run(*inputs)` gives the outputs in order."""
    call = _graph_call(segment)
    names = _output_names(segment)
    lines = [f"{', '.join(names)}, = {call}" if names else call]
    constants = {"_graph": run, "_picks": tensor_picks(segment)}
    return Body(lines, names, constants, repeatable=not segment.mutated, by_operator=True)


def _output_names(segment: Segment) -> list[str]:
    return [f"_out{k}" for k in range(len(outputs_of(segment.graph)))]


def tensor_picks(segment: Segment) -> list[int]:
    """Positions of the graph's tensor inputs in the list of checked tensors."""
    position = {source: k for k, source in enumerate(tensor_order(segment))}
    return [position[i.source] for i in segment.inputs if isinstance(i.meta, TensorMeta)]


def _graph_call(segment: Segment) -> str:
    """The call of the graph: runs of tensors are picked from the list, numbers are named."""
    parts: list[str] = []
    start = 0
    for is_tensor, group in itertools.groupby(segment.inputs, lambda given: isinstance(given.meta, TensorMeta)):
        names = [given.name for given in group]
        if is_tensor:
            parts.append(f"*[_tensors[k] for k in _picks[{start}:{start + len(names)}]]")
            start += len(names)
        else:
            parts += names
    return f"_graph({', '.join(parts)})"


def kernel_body(segment: Segment, schedule: Schedule, calls: list[Launch], placer: Placement) -> Body:
    """Launch a schedule's kernels, or run the captured graph where they cannot be launched."""
    position = {source: k for k, source in enumerate(tensor_order(segment))}
    inputs = [f"_tensors[{position[i.source]}]" if isinstance(i.meta, TensorMeta) else i.name for i in segment.inputs]
    names = _output_names(segment)
    call = _graph_call(segment)
    eager = f"{', '.join(names)}, = {call}" if names else call
    writer = KernelBodyWriter(schedule, calls, placer, inputs, names, eager, segment.changes_inputs)
    writer.unfit = _if_unfit(segment, eager)
    writer.records = not any(g.kind == "state" and g.value == ("torch.is_grad_enabled()", False) for g in segment.guards)
    guarded = {g.source for g in segment.guards if g.kind == "requires_grad"}
    writer.unknown = {b for b, i in zip(schedule.program.inputs, segment.inputs, strict=True) if i.source not in guarded}
    body = writer.write()
    body.repeatable = not segment.mutated
    body.eager = writer.unfit
    body.constants.update({"_graph": _in_eager(segment), "_picks": tensor_picks(segment)})
    return body


def joined_body(segment: Segment, call: Callable[..., Any], placer: Placement | None) -> Body:
    """Run a graph that needs gradients as one operation of autograd; `placer` is that of its forward kernels, if any."""
    names = _output_names(segment)
    targets = f"{', '.join(names)}, = " if names else ""
    numbers = "".join(f"{i.name}, " for i in segment.inputs if not isinstance(i.meta, TensorMeta))
    picks = tensor_picks(segment)
    everything = picks == [*range(len(tensor_order(segment)))]
    tensors = "[]" if not picks else "_tensors" if everything else "[_tensors[k] for k in _picks]"
    launch = f"{targets}_joined({tensors}, ({numbers}))"
    constants: dict[str, Any] = {"_graph": _in_eager(segment), "_picks": picks, "_joined": call, "_placer": placer}
    eager = ""
    if placer is None or not placer.is_needed:
        lines = [launch]
    elif not placer.written:
        lines = [f"if _state: {PLACED}", launch]
    else:
        constants["_unversioned"] = placer.note_changes
        eager = _if_unfit(segment, f"{targets}{_graph_call(segment)}")
        lines = [
            f"if _state: {PLACED}", f"if {UNFIT}:", f"    {eager}", "else:", f"    {launch}",
        ]  # fmt: skip
    return Body(lines, names, constants, repeatable=not segment.mutated, eager=eager, given=tensors)


def _if_unfit(segment: Segment, eager: str) -> str:
    """What runs where memory of an input that is changed belongs to another one, too: the graph in eager mode. That computes
    all gradients before it adds them to those that exist, where autograd takes turns: to add to one may change what another
    is computed from. So plain Python runs in place of a graph that has gradients."""
    differentiates = any(map(takes_gradients, segment.graph.nodes))
    return "raise _RunNatively" if differentiates else eager


def _in_eager(segment: Segment) -> Callable[..., Any]:
    """What runs the captured graph; where it raises, plain Python begins with the settings that it found."""
    return preserving_modes(segment.run) if segment.changes_modes else segment.run
