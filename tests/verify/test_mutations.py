"""Schedules of real programs, broken in every way that `breaking_schedules.py` knows: the verifier finds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from breaking_schedules import BREAKS, merged_passes, passes_of, stores_in_the_first_pass
from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelBody, KernelCall, Schedule
from quickfuse.ir.loop import Program
from quickfuse.lower import lower
from quickfuse.pipeline import kernels
from quickfuse.schedule import lifetimes
from quickfuse.schedule import schedule as make_schedule
from quickfuse.verify import ScheduleError, copied, verify
from quickfuse.verify.program import Expected
from quickfuse.verify.schedule import Run
from trace_helper import copy_inputs, trace

X = torch.Tensor
Made = tuple[Program, Schedule]
#: At most so many schedules that are broken in one way are tried for a program, from first to last.
_MOST = 12


def traced(function: Callable[..., Any], *inputs: Any) -> list[Made]:
    program = lower(trace(function, *copy_inputs(inputs)).graph, expand=expand)
    return [(copied(program), make_schedule(program))]


def compiled(function: Callable[..., Any], *inputs: Any) -> list[Made]:
    """What is scheduled while a compiled function runs."""
    found: list[Made] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quickfuse.config, "verify", True)
        patch.setattr(kernels, "verify", lambda program, schedule: found.append((program, schedule)))
        quickfuse.compile(function)(*inputs)
    return found


def in_place(function: Callable[..., Any], *inputs: Any) -> list[Made]:
    """With results in the memory of operands, however small, as some steps store at least."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifetimes, "COSTS", replace(lifetimes.COSTS, large_bytes=1))
        found = traced(function, *inputs)
    kernels = [step for _, schedule in found for step in schedule.steps if isinstance(step, KernelCall)]
    assert any(slot.access == "rw" for call in kernels for slot in call.body.slots)
    return found


def activations(x: X, w: X) -> X:
    """Twice in one place, and where a product has read what is updated."""
    first = torch.mm(x, w)
    second = torch.mm(first, w)
    product = torch.mm(torch.relu(first * 2) - second.t(), w)
    return torch.mm(product / (1 + product.abs().sum(1, keepdim=True)), x)


def rows_and_columns(x: X, w: X) -> tuple[X, X]:
    """Sums and other elements, of what is updated and of what is needed later."""
    one, two = torch.mm(x, w), torch.mm(w, x)
    turned = two.t() * one - one.mean(0)
    centred = two - two.mean(1, keepdim=True)
    last = torch.mm(turned, w)
    return torch.mm(last - last.mean(1, keepdim=True), x), torch.mm(centred, turned.t())


def adam(parameters: list[X], grads: list[X], means: list[X], squares: list[X], rate: float, decay: float) -> None:
    for p, g, m, v in zip(parameters, grads, means, squares, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.mul_(decay).addcdiv_(m, v.sqrt() + 1e-8, value=-0.01)
        p.sub_(g * rate)


def many(*shapes: tuple[int, ...]) -> list[list[X]]:
    return [[torch.randn(shape) for shape in shapes] for _ in range(4)]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(12), nn.Linear(12, 20), nn.Linear(20, 12)
        self.bias = nn.Parameter(torch.zeros(5, 12))

    def forward(self, x: X) -> X:
        return x + self.second(F.gelu(self.first(self.norm(x + self.bias))))


def training_step() -> list[Made]:
    model, x = Block(), torch.randn(3, 5, 12)

    def step(x: X) -> X:
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return compiled(step, x)


def update(x: X, y: X) -> tuple[X, X, X]:
    results = x @ y, (x.t() + y).exp().sum(1), x.logcumsumexp(0)
    x.mul_(2)
    y.add_(1)
    return results


def random_step(x: X, y: X) -> X:
    mask = torch.rand_like(x)
    noise = torch.randn_like(x)
    x.mul_(mask > 0.5)
    return (x * 2 + noise) @ y


K = torch.tensor([1, 5, 2])
PROGRAMS: dict[str, Callable[[], list[Made]]] = {
    "elements": lambda: traced(lambda x, y: ((x.sin() - y).exp(), x / y), torch.randn(7, 4), torch.randn(4)),
    "softmax": lambda: traced(lambda x: torch.softmax(x, 1), torch.randn(5, 70)),
    "softmax of columns": lambda: traced(lambda x: torch.softmax(x, 0), torch.randn(70, 5)),
    "a softmax in place": lambda: traced(lambda x: x.copy_(torch.softmax(x, 1)), torch.randn(5, 70)),
    "softmaxes of two axes": lambda: traced(lambda x: torch.softmax(torch.softmax(x, 1), 0) + x, torch.randn(9, 11)),
    "layer norm": lambda: traced(lambda x, w, b: F.layer_norm(x, (33,), w, b), torch.randn(6, 33), *torch.randn(2, 33)),
    "long rows": lambda: traced(lambda x: x / x.norm(), torch.randn(300, 200)),
    "adam": lambda: traced(adam, *many((3, 4), (7,), (2, 2, 2), (1,)), 0.5, 0.25),
    "a training step": training_step,
    "concatenations": lambda: traced(lambda x, y: torch.cat([x, y * 2, x.exp()], 1).relu(), *torch.randn(2, 6, 3)),
    "a scan": lambda: traced(lambda x, y: x.cumsum(1).exp() - y, torch.randn(6, 9), torch.randn(6, 9)),
    "a scan of columns": lambda: traced(lambda x: x.cummax(0), torch.randn(9, 70)),
    "a scatter": lambda: traced(lambda x, y: x.index_add(0, K_of(y), x[:3]) - y, torch.randn(6, 3), torch.randn(6, 3)),
    "a scatter in place": lambda: traced(lambda x, k, y: x.index_add_(0, k, y), torch.randn(6, 3), K, torch.randn(3, 3)),
    "computed offsets": lambda: traced(lambda x, k: x[k] * 2, torch.randn(6, 3), K),
    "a rotation": lambda: traced(lambda x: x.roll(3, 0).flip(1) - x, torch.randn(7, 5)),
    "enlarged": lambda: traced(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear") + 1, torch.randn(1, 2, 4, 3)),
    "a product": lambda: traced(lambda x, y, b: F.gelu(x @ y + b), torch.randn(6, 9), torch.randn(9, 4), torch.randn(4)),
    "several products": lambda: traced(lambda x, y: ((x @ y).sin() @ x - x).cos() @ y, torch.randn(6, 6), torch.randn(6, 6)),
    "an input changed after its readers": lambda: traced(update, torch.randn(6, 6), torch.randn(6, 6)),
    "random numbers": lambda: compiled(random_step, torch.randn(6, 6), torch.randn(6, 6)),
    "results where operands end": lambda: in_place(activations, *torch.randn(2, 6, 6)),
    "rows in place": lambda: in_place(rows_and_columns, *torch.randn(2, 9, 9)),
    "16 bits": lambda: traced(lambda x, y: (x - y) * torch.softmax(x, 1), *torch.randn(2, 4, 20).bfloat16()),
}  # fmt: skip


def K_of(y: X) -> X:
    return y[0].long().clamp(0, 2)


@pytest.fixture(scope="module")
def programs() -> dict[str, list[Made]]:
    torch.manual_seed(0)
    found = {name: make() for name, make in PROGRAMS.items()}
    assert all(found.values())
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_unbroken_schedules_are_accepted(name: str, programs: dict[str, list[Made]]) -> None:
    for program, schedule in programs[name]:
        verify(program, schedule)


@pytest.mark.parametrize("way", BREAKS)
def test_every_break_is_found(way: str, programs: dict[str, list[Made]]) -> None:
    tried, missed = 0, []
    for name, found in programs.items():
        for program, schedule in found:
            expected = Expected(program)
            broken = list(BREAKS[way](schedule))
            for what, wrong in broken[:: max(len(broken) // _MOST, 1)]:
                tried += 1
                try:
                    Run(expected, wrong).run()
                except ScheduleError:
                    continue
                missed.append((name, what))
    assert not missed, missed
    assert tried


@pytest.mark.parametrize("passes", [merged_passes, stores_in_the_first_pass])
def test_wrong_passes_are_found(passes: Any, programs: dict[str, list[Made]], monkeypatch: pytest.MonkeyPatch) -> None:
    tried, missed = 0, []
    for name, found in programs.items():
        for program, schedule in found:
            bodies = [step.body for _, step in enumerate(schedule.steps) if hasattr(step, "body")]
            monkeypatch.setattr(KernelBody, "passes", property(passes))
            wrong = any(body.inner and not body.ordered and passes(body) != passes_of(body) for body in bodies)
            tried += wrong
            try:
                verify(program, schedule)
                if wrong:
                    missed.append(name)
            except ScheduleError:
                assert wrong, name
    assert tried and not missed, missed
