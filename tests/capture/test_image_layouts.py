"""Images whose channels are the last in memory, a single one with an axis put before it among them: PyTorch goes by the
strides of axes of one element, too, where it chooses the layout of a result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse

T = torch.Tensor

LAYOUTS: dict[str, Callable[[], T]] = {
    "a single image": lambda: torch.randn(6, 5, 3).permute(2, 0, 1)[None],
    "part of its channels": lambda: torch.randn(6, 5, 4)[..., 1:].permute(2, 0, 1).unsqueeze(0),
    "a batch of one": lambda: torch.randn(1, 6, 5, 3).permute(0, 3, 1, 2),
    "a batch": lambda: torch.randn(2, 6, 5, 3).permute(0, 3, 1, 2),
    "part of a batch": lambda: torch.randn(2, 7, 6, 3)[:, 1:, 1:].permute(0, 3, 1, 2),
    "one channel": lambda: torch.randn(2, 6, 5, 1).expand(2, 6, 5, 3).permute(0, 3, 1, 2),
    "turned": lambda: torch.randn(2, 3, 5, 6).transpose(2, 3),
    "contiguous": lambda: torch.randn(1, 3, 6, 5),
}

WEIGHT, DEPTHWISE = torch.linspace(-1, 1, 108).view(4, 3, 3, 3), torch.linspace(-1, 1, 27).view(3, 1, 3, 3)

PROGRAMS: dict[str, Callable[[T], T]] = {
    "convolution": lambda x: F.conv2d(x, WEIGHT.to(x), padding=1),
    "strided": lambda x: F.conv2d(x, WEIGHT.to(x), stride=2),
    "depthwise": lambda x: F.conv2d(x, DEPTHWISE.to(x), padding=1, groups=3),
    "of a weight with channels last": lambda x: F.conv2d(x, WEIGHT.to(x).contiguous(memory_format=torch.channels_last)),
    "normalised": lambda x: F.batch_norm(x, None, None, training=True),
    "normalised by statistics": lambda x: F.batch_norm(x, torch.ones(3).to(x), torch.ones(3).to(x)),
    "normalised after": lambda x: F.batch_norm(F.conv2d(x, WEIGHT.to(x)), None, None, training=True).relu(),
}


def outcome(program: Callable[[T], T], x: T, gradients: bool) -> tuple[T, T | None]:
    x = x.detach().requires_grad_(gradients)
    y = program(x)
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0] if gradients else None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_lie_as_in_eager(name: str, gradients: bool, dtype: torch.dtype) -> None:
    compiled = quickfuse.compile(PROGRAMS[name])
    for layout, made in LAYOUTS.items():
        x = made().to(dtype)
        y, dx = outcome(PROGRAMS[name], x, gradients)
        other, dx_of_other = outcome(compiled, x, gradients)
        assert y.stride() == other.stride(), layout
        torch.testing.assert_close(other, y, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dx_of_other, dx, rtol=1e-3, atol=1e-3)
    assert not any(s.without_kernels for s in compiled.specialisations)


def test_a_network_of_a_single_image_is_kernels() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 2, 1)).double()
    compiled = quickfuse.compile(lambda image: network(image.permute(2, 0, 1)[None]).square().mean())
    image = torch.randn(8, 8, 3, dtype=torch.float64)
    found = []
    for called in (compiled.function, compiled):
        network.zero_grad()
        called(image).backward()
        found.append([p.grad for p in network.parameters()])
    torch.testing.assert_close(found[1], found[0])
    assert not any(s.without_kernels for s in compiled.specialisations)
