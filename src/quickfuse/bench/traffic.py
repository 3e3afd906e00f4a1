"""What the kernels of a model move through memory: `quickfuse bench kernels`.

Without a GPU, the schedule is the one that a GPU would get: the captured graph's tensors are said to be there. With one, the
model runs, and PyTorch's profiler says how long each kernel and each call of PyTorch takes.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

import torch
from torch.fx import Graph

import quickfuse
from quickfuse.bench import zoo
from quickfuse.bench.workloads import ModelWorkload
from quickfuse.capture import capture
from quickfuse.differentiate.early_gradients import compute_early
from quickfuse.differentiate.expand import expand
from quickfuse.differentiate.partition import partition
from quickfuse.differentiate.smaller_forms import offer_smaller_forms
from quickfuse.differentiate.split import split
from quickfuse.differentiate.tracing import trace
from quickfuse.errors import Unsupported
from quickfuse.ir.arguments import map_leaves
from quickfuse.ir.gradients import Differentiated, NothingToDifferentiate
from quickfuse.ir.kernel import KernelCall, Member, Schedule
from quickfuse.ir.loop import Extern
from quickfuse.ir.values import TensorMeta
from quickfuse.launch.cuda_shapes import choose
from quickfuse.launch.gpu_call import name_of_kernel
from quickfuse.lower import lower
from quickfuse.pipeline import kernels as kernels_
from quickfuse.pipeline.joining import lying_of
from quickfuse.schedule import schedule as make_schedule

#: Multiprocessors of an H200, and the bytes that its memory moves in a microsecond.
MULTIPROCESSORS, BYTES_A_MICROSECOND = 132, 4.2e6


@dataclass
class Work:
    """Equal launches of a kernel, or calls of an operator. Bytes are those of all launches, each element counted once a
    launch; `us` is the time of all, if it was measured."""

    name: str
    launches: int = 0
    read: int = 0
    written: int = 0
    us: float = 0.0
    shape: str = ""
    body: str = ""

    @property
    def moved(self) -> int:
        return self.read + self.written


def moved_by(call: KernelCall) -> tuple[int, int]:
    """The bytes that a launch reads, and those that it writes."""
    read = written = 0
    for member in call.members:
        for k, slot in enumerate(call.body.slots):
            if slot.by_value:
                continue
            touched = _touched(member, k) * slot.dtype.itemsize
            read += touched * ("r" in slot.access)
            written += touched * ("w" in slot.access)
    return read, written


def _touched(member: Member, slot: int) -> int:
    """How many elements of its buffer a member touches, at most."""
    moving = math.prod(size for size, stride in zip(member.sizes, member.strides[slot], strict=True) if stride)
    meta = member.buffers[slot].meta
    return min(moving, math.prod(meta.shape) if isinstance(meta, TensorMeta) else 1)


def kernel_work(schedule: Schedule, name_of: Callable[[KernelCall], str] | None = None) -> list[Work]:
    """The kernels and the calls of a schedule, equal ones together, those first that move most."""
    found: dict[Any, Work] = {}
    for step in schedule.steps:
        if isinstance(step, Extern):
            name = getattr(step.target, "__name__", str(step.target))
            work = found.setdefault(name, Work(f"call {name}"))
            work.launches += 1
            continue
        name = name_of(step) if name_of else step.name
        work = found.setdefault(step.body, Work(name, body=str(step.body)))
        read, written = moved_by(step)
        work.launches += 1
        work.read, work.written = work.read + read, work.written + written
        if step.device.type == "cuda":
            shape = choose(step.body, step.members, MULTIPROCESSORS)
            form = f"{shape.form.value} {shape.block}x{shape.columns}" if shape.columns else f"elements {shape.block}"
            passes = len(step.body.passes)
            work.shape = f"{form} w{shape.num_warps} {shape.access.name.lower()}{f' p{passes}' if passes > 1 else ''}"
    return sorted(found.values(), key=lambda work: -work.moved)


# --- schedules ---


def on_gpu(function: Callable[..., Any], *args: Any) -> list[Schedule]:
    """The schedules of a function, and of its gradients, as if all of its tensors were on a GPU.

    Raises:
        Unsupported: with the reason, where it does not become one graph of kernels.
    """
    assert isinstance(function, FunctionType)
    segment = capture(function, args, {})
    if segment.pause is not None:
        raise Unsupported(segment.pause.reason)
    if segment.needs_grad:
        with contextlib.suppress(NothingToDifferentiate):
            made = _differentiated_on_gpu(segment.graph)
            saved = {s.index for s in made.saved if not s.of_input and s.index >= len(made.outputs)}
            forward = make_schedule(lower(made.forward, saved, expand))
            placeholders = [node for node in made.backward.nodes if node.op == "placeholder"]
            tensors = [node for node in placeholders if isinstance(node.meta["val"], TensorMeta)]
            for node, kept in zip(tensors, made.saved, strict=False):
                if not kept.of_input and (lies := lying_of(forward.program.outputs[kept.index])) is not None:
                    node.meta["lies"] = lies
            return [forward, make_schedule(lower(made.backward, (), expand))]
    _say_it_is_on_gpu(segment.graph)
    return [make_schedule(lower(segment.graph, (), expand))]


def _differentiated_on_gpu(graph: Graph) -> Differentiated:
    """As `differentiate` does it, but that autograd, which needs the device, has run on the CPU."""
    joint = trace(graph, torch.is_grad_enabled())
    _say_it_is_on_gpu(joint.graph)
    if not compute_early(joint):
        offer_smaller_forms(joint)
    made = split(joint, partition(joint))
    for part in (made.forward, made.backward):
        _say_it_is_on_gpu(part)  # what comes after the last gradient stands there as it was captured
    return made


def _say_it_is_on_gpu(graph: Graph) -> None:
    cuda = torch.device("cuda", 0)

    def there(value: Any) -> Any:
        if isinstance(value, TensorMeta):
            return replace(value, device=cuda)
        return cuda if isinstance(value, torch.device) and value.type == "cpu" else value

    for node in graph.nodes:
        node.args, node.kwargs = map_leaves(there, node.args), map_leaves(there, node.kwargs)
        node.meta["val"] = map_leaves(there, node.meta.get("val"))


def function_of(workload: ModelWorkload) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What is compiled for a model, and its arguments. Its tensors are on the workload's device."""
    example = zoo.build(workload.model, **workload.size)
    model = example.model.to(workload.device)
    x, y = example.input.to(workload.device), example.target.to(workload.device)
    dtype = getattr(torch, workload.dtype)
    if workload.mode == "eval":
        model = model.eval().to(dtype)

        def evaluate(x: torch.Tensor) -> Any:
            with torch.no_grad():
                return model(x)

        return evaluate, (x.to(dtype) if x.is_floating_point() else x,)
    model.train()
    optimizer = torch.optim.Adam(model.parameters())
    autocast = contextlib.nullcontext() if dtype is torch.float32 else torch.autocast(workload.device, dtype)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with autocast:
            return example.loss(model(x), y)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(True)
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return (loss_of, (x, y)) if workload.mode == "train" else (step, (x, y))


# --- on a device ---


@dataclass
class Recorded:
    """The schedules that were made while a context was open."""

    schedules: list[Schedule] = field(default_factory=list)


@contextlib.contextmanager
def recorded_schedules() -> Iterator[Recorded]:
    """Note each schedule that is made meanwhile."""
    recorded, before = Recorded(), make_schedule

    def noting(program: Any) -> Schedule:
        schedule = before(program)
        recorded.schedules.append(schedule)
        return schedule

    vars(kernels_)["make_schedule"] = noting
    try:
        yield recorded
    finally:
        vars(kernels_)["make_schedule"] = before


def measured(function: Callable[..., Any], args: tuple[Any, ...], backward: bool, calls: int = 5) -> list[list[Work]]:
    """The work of each schedule of a function on a GPU with the times of one call, and last what PyTorch's kernels took."""
    compiled = quickfuse.compile(function)

    def call() -> None:
        result = compiled(*args)
        if backward:
            result.backward()

    with recorded_schedules() as recorded:
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for event in profile.key_averages():
        times[event.key] += event.self_device_time_total / calls
        counts[event.key] += event.count // calls
    found = [kernel_work(schedule, name_of_kernel) for schedule in recorded.schedules]
    share = Counter(work.name for works in found for work in works for _ in range(work.launches))
    for works in found:
        for work in works:
            work.us = times[work.name] * work.launches / max(1, share[work.name])
    others = [Work(name, counts[name], us=us) for name, us in times.items() if name not in share and us > 0]
    return [*found, sorted(others, key=lambda work: -work.us)]


# --- for people ---


def lines_of(works: list[Work], title: str, most: int = 40, bodies: bool = False) -> list[str]:
    """The work of a schedule, a line for each kernel: launches, megabytes, the least microseconds for these, the time."""
    moved = sum(work.moved for work in works)
    launches = sum(work.launches for work in works if not work.name.startswith("call"))
    calls = sum(work.launches for work in works if work.name.startswith("call"))
    us = sum(work.us for work in works)
    total = f"{moved / 1e6:.1f} MB, {moved / BYTES_A_MICROSECOND:.0f} us at the least"
    lines = [f"{title}: {launches} launches, {calls} calls, {total}{f', {us:.0f} us' if us else ''}"]
    for work in works[:most]:
        least = work.moved / BYTES_A_MICROSECOND
        time = f"{work.us:9.1f} us{least / work.us:6.0%}" if work.us else ""
        lines.append(
            f"  {work.name[:60]:<24} x{work.launches:<4} {work.read / 1e6:9.1f} + {work.written / 1e6:8.1f} MB"
            f" {least:8.1f}{time}  {work.shape}"
        )
        if bodies:
            lines += [f"      {line}" for line in work.body.splitlines()]
    return lines
