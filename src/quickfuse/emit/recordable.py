"""Which schedules a CUDA graph can hold: those of one GPU, whose kernels on the CPU compute with numbers alone."""

from __future__ import annotations

import torch

from ..ir.arguments import leaves
from ..ir.kernel import KernelCall, Schedule
from ..ir.loop import Buffer, Draw, Extern, GeneratorInput, Handed, HostScalar, Number, Program, buffers_in
from ..ir.random_state import uses_random_state

#: Operators with results whose shapes or values the CPU has to know.
_WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def draws_in_turn(program: Program) -> bool:
    """Whether calls of PyTorch draw random numbers, and kernels draw some after them. Those of kernels are reserved before a
    graph is replayed, and those of calls when it is."""
    drawing = [step for step in program.steps if isinstance(step, Extern) and step.draws]
    on_gpu = [any(buffer.meta.device.type == "cuda" for buffer in step.buffers) for step in drawing]
    called = [k for k, step in enumerate(drawing) if on_gpu[k] and not isinstance(step, Draw)]
    return bool(called) and any(isinstance(step, Draw) for step in drawing[called[0] :])


def launches(schedule: Schedule) -> int:
    """How many launches of kernels take as much of the host's time as what a schedule does on GPUs; calls count as two."""
    count = 0
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            count += step.device.type == "cuda"
        elif isinstance(step, Extern) and not isinstance(step, Draw):
            count += 2 * any(buffer.meta.device.type == "cuda" for buffer in step.buffers)
    return count


def why_not_recorded(schedule: Schedule) -> str | None:
    """The reason; "" where there is nothing to record, None for a schedule that can be recorded."""
    reason = ""
    devices = {step.device for step in schedule.steps if isinstance(step, KernelCall) and step.device.type != "cpu"}
    states = _random_states(schedule)
    for step in schedule.steps:
        if not isinstance(step, Extern) or isinstance(step, Draw):
            continue
        on = {buffer.meta.device for buffer in step.buffers if buffer not in states}
        name = getattr(step.target, "__name__", str(step.target))
        devices |= {device for device in on if device.type != "cpu"}
        if any(type(buffer) is Handed for buffer in step.buffers):
            reason = "tensors whose sizes grow from call to call"
        elif any(device.type == "cpu" for device in on):
            reason = f"{name} works on the CPU"
        elif any(type(leaf) is GeneratorInput for leaf in leaves((step.args, step.kwargs))):
            reason = f"{name} draws from a generator of the program's"
        elif any(isinstance(leaf, (Number, HostScalar)) for leaf in leaves((step.args, step.kwargs))):
            reason = f"{name} gets a number that may be another one in each call"
        elif any(tag in getattr(step.target, "tags", ()) for tag in _WAITING):
            reason = f"what {name} returns depends on what is in its operands"
    if not devices or reason:
        return reason if devices else ""
    if len(devices) > 1:
        return "more than one device"
    for output in schedule.program.outputs:
        if isinstance(output, (Number, HostScalar)):
            return "a result that is a number"
        buffer = getattr(output, "buffer", output)
        if isinstance(buffer, Buffer) and buffer.kind != "input" and buffer.meta.device.type == "cpu":
            return "a result on the CPU"
    return None


def _random_states(schedule: Schedule) -> set[Buffer]:
    """The states of random number generators that only operators make and take: on the GPU while a graph is recorded."""
    made: set[Buffer] = set()
    others = {*buffers_in(schedule.program.outputs)}
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            others.update(buffer for member in step.members for buffer in member.buffers)
        elif not isinstance(step, Extern):
            continue
        elif uses_random_state(getattr(step.target, "function", step.target)):
            made.update(buffer for buffer in step.outputs if buffer.meta.device.type == "cpu")
        else:
            others.update(step.buffers)
    return made - others
