"""Whole training steps, saved, and run three times in a process that has nothing but the file, and as programs of
PyTorch's: parameters, gradients, buffers and the optimizer's state are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import quickfuse
from export.test_zoo import compared
from export.zoo_cases import run, write_case
from quickfuse import errors


class Step(nn.Module):
    """A training step of a network with normalisation and dropout, and what it needs."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], amp: bool = False, clip: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        hidden = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.net = nn.Sequential(hidden, nn.Linear(8, 3))
        self.optimizer = make(self.net.parameters())
        self.amp, self.clip = amp, clip

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.amp):
            loss = functional.cross_entropy(self.net(x), y)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()


STEPS: dict[str, Callable[[], Step]] = {
    "Adam": lambda: Step(lambda p: torch.optim.Adam(p, lr=0.01)),
    "AdamW": lambda: Step(lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True), clip=True),
    "momentum": lambda: Step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "Nesterov's momentum": lambda: Step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), clip=True),
    "Adam under autocast": lambda: Step(lambda p: torch.optim.Adam(p, lr=0.01), amp=True),
    "momentum under autocast": lambda: Step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), amp=True, clip=True),
    "Adam, the rate a tensor": lambda: Step(lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01))),
    "momentum, the rate a tensor": lambda: Step(lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9)),
    "RMSprop": lambda: Step(lambda p: torch.optim.RMSprop(p, lr=0.01)),
}


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)


@pytest.fixture
def one_thread() -> Any:
    """As in the processes that check files: with more threads PyTorch adds up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.usefixtures("forked_interpreters")
def test_three_steps_in_a_fresh_process(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.qfx" for name in STEPS]
    for file, make in zip(files, STEPS.values(), strict=True):
        write_case(file, make(), batch(), {}, "steps")
    found = compared(files)
    assert {Path(entry["file"]): entry["outcome"] for entry in found} == dict.fromkeys(files, "equal"), found
    assert all(entry["values"] == 3 and entry["gradients"] == 5 and entry["buffers"] > 7 for entry in found)


@pytest.mark.parametrize("name", STEPS)
def test_three_steps_of_a_program_of_pytorchs(name: str) -> None:
    original = STEPS[name]()
    module = quickfuse.export(copy.deepcopy(original), batch()).to_torch().module()
    wanted = run(original, batch(), {}, 3)
    with torch.no_grad():  # gradients are computed by the program
        found = run(module, batch(), {}, 3)
    for kind in ("values", "parameters", "buffers"):
        for key, tensor in wanted[kind].items():
            torch.testing.assert_close(found[kind][key], tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["Adam, the rate a tensor", "momentum, the rate a tensor"])
def test_a_scheduler_outside_of_the_step(name: str) -> None:
    original = STEPS[name]()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(original.optimizer, 0.5)
    module = quickfuse.export(original, batch()).module()
    for step in range(3):
        losses = []
        for one in (original, module):
            torch.manual_seed(step)
            losses.append(one(*batch()))
        torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=0)
        scheduler.step()
        module.get_buffer("optimizer.param_groups.0.lr").copy_(original.optimizer.param_groups[0]["lr"])
    for key, parameter in original.named_parameters():
        torch.testing.assert_close(module.get_parameter(key), parameter, rtol=0, atol=0)


def test_a_scheduler_inside_says_what_to_do() -> None:
    original = STEPS["momentum"]()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(original.optimizer, 0.5)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = original(x, y)
        scheduler.step()
        return loss

    with pytest.raises(errors.ExportError, match=r"lr.* is set.* Call the scheduler's step\(\) outside"):
        quickfuse.export(step, batch())
