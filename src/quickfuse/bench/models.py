"""Models as workloads: evaluation, and training steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from quickfuse.bench import zoo
from quickfuse.bench.step import Step

if TYPE_CHECKING:
    from quickfuse.bench.workloads import ModelWorkload

#: What a variant makes of a function or module.
Wrapper = Callable[[Any], Any]


def prepare(workload: ModelWorkload, wrap: Wrapper, synchronize: Callable[[], None]) -> Step:
    """The workload with what `wrap` makes of the model, of its loss, or of its whole training step."""
    example = zoo.build(workload.model, **workload.size)
    example.model.to(workload.device)
    example.input, example.target = example.input.to(workload.device), example.target.to(workload.device)
    dtype = getattr(torch, workload.dtype)
    step = {"eval": _evaluation, "train": _training, "step": _whole_step}[workload.mode](example, wrap, dtype)
    step.synchronize = synchronize
    return step


def _autocast(example: zoo.Example, dtype: torch.dtype) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is torch.float32 else torch.autocast(example.input.device.type, dtype)


def _evaluation(example: zoo.Example, wrap: Wrapper, dtype: torch.dtype) -> Step:
    model = example.model.eval().to(dtype)
    if example.input.is_floating_point():
        example.input = example.input.to(dtype)

    def make() -> Callable[..., Any]:
        fn = wrap(model)

        def call(x: torch.Tensor) -> Any:
            with torch.no_grad():
                return fn(x)

        return call

    return Step(make, (example.input,))


def _training(example: zoo.Example, wrap: Wrapper, dtype: torch.dtype) -> Step:
    model, loss = example.model.train(), example.loss
    parameters = list(model.parameters())
    made: list[Callable[..., Any]] = []

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with _autocast(example, dtype):
            return loss(model(x), y)

    def make() -> Callable[..., Any]:
        fn = wrap(compute)
        made.append(fn)

        def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            for parameter in parameters:
                parameter.grad = None
            value = fn(x, y)
            value.backward()
            return value.detach()

        return call

    def changed() -> list[torch.Tensor]:
        return [*(p.grad for p in parameters if p.grad is not None), *model.buffers()]

    args = (example.input, example.target)
    return Step(make, args, collect=changed, forward=lambda: made[-1](*args))


def _whole_step(example: zoo.Example, wrap: Wrapper, dtype: torch.dtype) -> Step:
    """As in PyTorch's tutorial on torch.compile: zero_grad, forward, loss, backward and the optimizer in one function."""
    model, loss = example.model.train(), example.loss
    optimizer = torch.optim.Adam(model.parameters())

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(True)
        with _autocast(example, dtype):
            value = loss(model(x), y)
        value.backward()
        optimizer.step()
        return value.detach()

    # Adam divides gradients by their size, rounding errors included: parameters are no measure of what went wrong.
    return Step(lambda: wrap(train), (example.input, example.target), collect=lambda: list(model.buffers()))


# --- memory ---


def memory_bytes(step: Step, fn: Callable[..., Any]) -> dict[str, int]:
    """`peak`: the most memory that a call holds beside its arguments. `saved`: what is kept between the forward and the
    backward pass. From the records of PyTorch's allocator on the CPU.
    """
    found = {"peak": max(_growth(lambda: fn(*step.args)), default=0)}
    if step.forward is not None:
        found["saved"] = _growth(step.forward)[-1]
    return found


def _growth(call: Callable[[], Any]) -> list[int]:
    """How many more bytes are in use after each allocation and release during a call, as long as its result lives.
    Memory from before counts for nothing: the profiler knows it only where it lies at an address of an earlier profile."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        result = call()
    assert profile.profiler is not None
    total, totals, alive = 0, [0], dict[int, int]()
    events = sorted(_events(profile.profiler.kineto_results.experimental_event_tree()), key=lambda e: e.start_time_ns)
    for fields in (event.extra_fields for event in events if event.name == "[memory]"):
        if fields.alloc_size > 0:
            alive[fields.ptr] = fields.alloc_size
            total += fields.alloc_size
        else:
            total -= alive.pop(fields.ptr, 0)
        totals.append(total)
    del result
    return totals


def _events(roots: list[Any]) -> Iterator[Any]:
    for event in roots:
        yield event
        yield from _events(event.children)
