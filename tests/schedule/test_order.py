"""When groups of loops run: on a GPU, what is alike and takes little memory runs together, in few launches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quickfuse.bench import traffic
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern
from schedule_interpreter import fused


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "make_schedule", fused)


def training_step(model: nn.Module, x: torch.Tensor) -> Schedule:
    """The schedule of a whole training step with Adam, as if it was on a GPU."""
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return next(schedule for schedule in traffic.on_gpu(step, x) if schedule.steps)


def updates(schedule: Schedule) -> list[KernelCall]:
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    return [call for call in calls if any("exp_avg_sq" in str(b) for b in call.changed_inputs)]


def test_updates_of_equal_parameters_are_one_launch() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(32, 32, bias=False), nn.Tanh())]
    schedule = training_step(nn.Sequential(*layers), torch.randn(64, 32))
    (update,) = updates(schedule)
    products = [step for step in schedule.steps if isinstance(step, Extern)]
    assert len(update.members) == 8 and schedule.steps.index(update) > schedule.steps.index(products[-1])


class Dense(nn.Module):
    """Each layer normalises what all layers before gave."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(16 + 8 * k) for k in range(count)])
        self.convolutions = nn.ModuleList([nn.Conv2d(16 + 8 * k, 8, 3, padding=1, bias=False) for k in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = torch.cat([x, convolution(norm(x).relu())], 1)
        return x


def test_small_parts_of_many_layers_are_few_launches() -> None:
    """What backward needs of channels alone is computed for all layers at once, where forward has made it possible."""
    torch.manual_seed(0)
    schedule = training_step(Dense(8), torch.randn(4, 16, 32, 32))
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    small = [call for call in calls if not call.body.inner and max(member.numel for member in call.members) < 128]
    assert len(small) <= 5, f"{len(small)} of {len(calls)} launches"


@pytest.mark.parametrize("activation", [nn.GELU, nn.SiLU])
def test_what_a_weights_gradient_needs_again_is_made_beside_the_operands_gradient(activation: type[nn.Module]) -> None:
    """Both read what the activation was computed from, which is loaded once."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), activation(), nn.Linear(256, 64))
    x = torch.randn(128, 64, requires_grad=True)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().mean()

    _, backward = traffic.on_gpu(loss, x)
    kernels = [step for step in backward.steps if isinstance(step, KernelCall)]
    hidden = [[b.kind for b in step.members[0].buffers if b.meta.shape == (128, 256)] for step in kernels]
    # of what forward kept: the gradient after the activation and before it, and the activation itself
    assert sorted(map(sorted, filter(lambda kinds: "input" in kinds, hidden))) == [["input", "temp", "temp", "temp"]]
