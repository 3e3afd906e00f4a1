"""Convolutions with a large kernel for each channel: the gradient of their weight is a loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import quickfuse
from layer_gradients import compare
from quickfuse.bench.models import memory_bytes
from quickfuse.bench.step import Step
from quickfuse.ir.loop import Extern
from schedule_interpreter import schedules_made

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "5 by 5": lambda: nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False),
    "bias": lambda: nn.Conv2d(16, 16, 5, padding=2, groups=16),
    "stride": lambda: nn.Conv2d(16, 16, 5, stride=2, padding=2, groups=16),
    "stride that leaves a rest": lambda: nn.Conv2d(16, 16, 5, stride=(3, 2), padding=1, groups=16),
    "no padding": lambda: nn.Conv2d(16, 16, 7, groups=16),
    "dilated": lambda: nn.Conv2d(16, 16, 5, padding=4, dilation=2, groups=16),
    "one row": lambda: nn.Conv2d(16, 16, (1, 7), padding=(0, 3), groups=16),
    "padding by name": lambda: nn.Conv2d(16, 16, (5, 4), padding="same", groups=16),
    "frozen bias": lambda: _frozen(nn.Conv2d(16, 16, 5, padding=2, groups=16), "bias"),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "small kernel": lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16),
    "two results a channel": lambda: nn.Conv2d(16, 32, 5, padding=2, groups=16),
    "two channels a group": lambda: nn.Conv2d(16, 16, 5, padding=2, groups=8),
    "transposed": lambda: nn.ConvTranspose2d(16, 16, 5, padding=2, groups=16),
    "frozen weight": lambda: _frozen(nn.Conv2d(16, 16, 5, padding=2, groups=16), "weight"),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "images": lambda: torch.randn(2, 16, 12, 9),
    "channels last": lambda: torch.randn(2, 16, 12, 9).to(memory_format=torch.channels_last),
    "part of others": lambda: torch.randn(2, 20, 12, 18)[:, 3:19, :, ::2],
}


def _frozen(layer: nn.Module, name: str) -> nn.Module:
    layer.get_parameter(name).requires_grad_(False)
    return layer


def masks(layer: nn.Module, x: torch.Tensor) -> list[list[bool]]:
    """Which gradients PyTorch is asked for, for a layer whose results and gradients are compared with eager's."""
    with schedules_made() as schedules:
        compare(layer, x)
    steps = [step for schedule in schedules for step in schedule.steps if isinstance(step, Extern)]
    return [step.args[-1] for step in steps if step.target is torch.ops.aten.convolution_backward.default]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, inputs: str) -> None:
    found = masks(LAYERS[name](), INPUTS[inputs]())
    assert all(mask == [True, False, False] for mask in found)


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays_a_call(name: str) -> None:
    layer = OTHERS[name]()
    frozen = not next(layer.parameters()).requires_grad
    assert [mask[1] for mask in masks(layer, INPUTS["images"]())] == [not frozen]


def test_nothing_but_the_weight_needs_a_gradient() -> None:
    layer, x = nn.Conv2d(32, 32, 5, padding=2, groups=32, bias=False), torch.randn(2, 32, 8, 8)
    compiled = quickfuse.compile(lambda x: layer(x).square().sum(), fullgraph=True)
    (expected,) = torch.autograd.grad(layer(x).square().sum(), layer.parameters())
    with schedules_made() as schedules:
        (found,) = torch.autograd.grad(compiled(x), layer.parameters())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    targets = [step.target for schedule in schedules for step in schedule.steps if isinstance(step, Extern)]
    assert torch.ops.aten.convolution_backward.default not in targets


def test_memory() -> None:
    """oneDNN takes 16 times the weight and more."""
    layer, x = nn.Conv2d(256, 256, 5, padding=2, groups=256, bias=False), torch.randn(1, 256, 4, 4)
    compiled = quickfuse.compile(lambda x: layer(x).square().sum(), fullgraph=True)

    def step(x: torch.Tensor) -> None:
        layer.zero_grad()
        compiled(x).backward()

    step(x)
    step(x)
    assert memory_bytes(Step(lambda: step, (x,)), step)["peak"] < 6 * 4 * (layer.weight.numel() + x.numel())
