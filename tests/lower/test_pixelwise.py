"""Convolutions whose kernel is one pixel, which are products of matrices."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import quickfuse
from layer_gradients import compare
from quickfuse.ir.loop import Extern
from schedule_interpreter import schedules_made

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "large": lambda: nn.Conv2d(64, 128, 1),
    "no bias": lambda: nn.Conv2d(64, 96, 1, bias=False),
    "few channels": lambda: nn.Conv2d(64, 3, 1),
    "dilated": lambda: nn.Conv2d(64, 8, 1, dilation=2),
    "padding by name": lambda: nn.Conv2d(64, 8, 1, padding="same"),
    "weight with channels last": lambda: nn.Conv2d(64, 8, 1).to(memory_format=torch.channels_last),
    "frozen weight": lambda: nn.Conv2d(64, 8, 1).requires_grad_(False),
    "every other pixel": lambda: nn.Conv2d(64, 8, 1, stride=2),
    "another stride each": lambda: nn.Conv2d(64, 96, 1, stride=(3, 2), bias=False),
}
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "padding": lambda: nn.Conv2d(64, 8, 1, padding=1),
    "groups": lambda: nn.Conv2d(64, 64, 1, groups=4),
    "larger kernel": lambda: nn.Conv2d(64, 8, (1, 3)),
    "transposed": lambda: nn.ConvTranspose2d(64, 8, 1),
    "another type": lambda: nn.Conv2d(64, 8, 1).double(),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "images": lambda: torch.randn(2, 64, 16, 9),
    "channels last": lambda: torch.randn(2, 64, 16, 9).to(memory_format=torch.channels_last),
    "many pixels": lambda: torch.randn(2, 64, 64, 72),
    "one pixel": lambda: torch.randn(3, 64, 1, 1),
    "part of others": lambda: torch.randn(2, 70, 16, 18)[:, 3:67, :, ::2],
}


def calls(layer: nn.Module, x: torch.Tensor) -> list[str]:
    """The names of the calls that a layer and its gradients are, which are compared with eager's."""
    with schedules_made() as schedules:
        compare(layer, x)
    steps = [step for schedule in schedules for step in schedule.steps]
    return [getattr(step.target, "__name__", str(step.target)) for step in steps if isinstance(step, Extern)]


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, inputs: str) -> None:
    found = calls(LAYERS[name](), INPUTS[inputs]())
    assert any(call.startswith("pixelwise") for call in found) and "convolution" not in found


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays_a_convolution(name: str) -> None:
    assert not any(call.startswith("pixelwise") for call in calls(OTHERS[name](), INPUTS["images"]()))


@pytest.mark.parametrize("inputs", ["channels last", "one pixel"])
@pytest.mark.parametrize("name", [name for name in OTHERS if name != "larger kernel"])
def test_strides_of_others(name: str, inputs: str) -> None:
    """Along axes of one element, too, and whichever library PyTorch picks for this number of threads."""
    compare(OTHERS[name](), INPUTS[inputs]())


@pytest.mark.parametrize("grad", [False, True])
def test_results_are_no_views(grad: bool) -> None:
    """They belong to nobody else, so that they may be changed in place and detached."""
    layer = quickfuse.compile(LAYERS["large"](), fullgraph=True)
    with torch.set_grad_enabled(grad):
        result = layer(INPUTS["channels last"]())
        assert not result._is_view()
        result.mul_(2).sum().detach_()
        result.detach_()
