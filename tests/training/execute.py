"""Runs a training program and notes all that its steps leave behind."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from programs.load import load
from seeding import seed_torch
from training.contiguous import ContiguousNorms
from training.rounding import RandomRounding

#: Seconds of processor time that a program's first step may take, most of which is compiling it.
FIRST_CALL = 15.0

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
Snapshot = dict[str, Any]


class TooSlow(BaseException):
    """A first call that takes longer than `FIRST_CALL`."""


@dataclass
class Run:
    """What was seen after each step, by name, and the state of the random generator at the end."""

    steps: list[Snapshot] = field(default_factory=list)
    generator: torch.Tensor | None = None


def plain(step: Callable[..., Any]) -> Callable[..., Any]:
    return step


@dataclass(frozen=True)
class Program:
    """`setup(dtype)` makes the step, the batches to call it with, and by name what is compared after each of them.

    It begins with the same numbers for each `dtype`; `dtype` is the one to compare in. `autocast`: products are bfloat16.
    """

    setup: Callable[[torch.dtype], tuple[Callable[..., Any], list[Any], dict[str, Any]]]
    dtype: torch.dtype = torch.float64
    autocast: bool = False
    device: str = "cpu"

    @staticmethod
    def from_source(source: str, device: str = "cpu") -> Program:
        module = load(source.replace('DEVICE = "cpu"', f"DEVICE = {device!r}")).module
        return Program(module.setup, module.DTYPE, module.AUTOCAST, device)


def execute(
    program: Program, compiler: Compiler = plain, dtype: torch.dtype | None = None, rounding: int | None = None,
    contiguous: bool = False,
) -> Run:  # fmt: skip
    """Run the steps of a program.

    Args:
        dtype: instead of the program's own; starts from the same numbers.
        rounding: round at random, with this seed.
        contiguous: call the step, and normalisations, with contiguous tensors only.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dtype = program.dtype if dtype is None else dtype
        with torch.device(program.device):
            step, batches, watched = program.setup(dtype)
        run = Run()
        with default_dtype(dtype):
            seed_torch(0)
            random.seed(0)
            compiled = compiler(step)
            for number, batch in enumerate(batches):
                batch = [t.contiguous() for t in batch] if contiguous else batch
                mode = ContiguousNorms() if contiguous else contextlib.nullcontext()
                mode = mode if rounding is None else RandomRounding(rounding + number)
                with limited(FIRST_CALL if number == 0 else 2 * FIRST_CALL), mode:
                    result = compiled(*batch)
                run.steps.append(snapshot(result, watched))
            run.generator = torch.cat([torch.get_rng_state(), *torch.cuda.get_rng_state_all()])
    return run


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the main thread after so many seconds of processor time."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlow(f"more than {seconds:.0f} s of processor time")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# what is seen ---------------------------------------------------------------------------------------------------


def snapshot(result: Any, watched: dict[str, Any]) -> Snapshot:
    """Copies of all tensors and plain values that can be reached, by how one would write them."""
    seen: Snapshot = {}
    _note("result", result, seen)
    for name, value in watched.items():
        _note(name, value, seen)
    return seen


def _note(name: str, value: Any, seen: Snapshot) -> None:
    if isinstance(value, nn.Module):
        seen[f"{name}.training"] = value.training
        for n, p in value.named_parameters(remove_duplicate=False):
            _note(f"{name}.{n}", p, seen)
            _note(f"{name}.{n}.grad", p.grad, seen)
        for n, b in value.named_buffers():
            _note(f"{name}.{n}", b, seen)
    elif isinstance(value, torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler):
        _note(f"{name}.state", value.state_dict(), seen)
    elif isinstance(value, torch.Tensor):
        copied = value.detach().clone(memory_format=torch.preserve_format)
        seen[name], seen[f"{name}.device"] = copied.cpu(), value.device.type
        seen[f"{name}.requires_grad"] = value.requires_grad
    elif isinstance(value, dict):
        seen[f"{name}.keys"] = [str(k) for k in value]
        for k, v in value.items():
            _note(f"{name}[{k!r}]", v, seen)
    elif isinstance(value, list | tuple):
        seen[f"{name}.length"] = len(value)
        for k, v in enumerate(value):
            _note(f"{name}[{k}]", v, seen)
    elif value is None or isinstance(value, bool | int | float | str):
        seen[name] = value
