"""Strides of results, axes of one element included, for operands in all kinds of layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import exact

T = torch.Tensor


def _strided(shape: tuple[int, ...], stride: tuple[int, ...]) -> T:
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.linspace(-1, 2, size).as_strided(shape, stride)


LAYOUTS = {
    "an image of one pixel": _strided((1, 1, 1, 3), (3, 1, 1, 1)),
    "one image, channels last": torch.rand(1, 4, 5, 3).permute(0, 3, 1, 2),
    "images, channels last": torch.rand(2, 4, 5, 3).permute(0, 3, 1, 2),
    "a column": _strided((4, 1), (1, 4)),
    "a row": _strided((1, 4), (1, 1)),
    "transposed": torch.rand(3, 4).t(),
    "odd": _strided((2, 1, 3, 1), (1, 7, 2, 0)),
    "expanded": _strided((3, 1, 2), (0, 5, 1)),
    "with gaps": _strided((2, 1, 3), (12, 1, 4)),
    "one element": _strided((1, 1), (5, 9)),
}

UNARY: list[Callable[[T], Any]] = [
    lambda x: x + 1, lambda x: 1 - x, lambda x: x.sin(), lambda x: x > 0, lambda x: x.double(), lambda x: x.clamp(0, 1),
    lambda x: x**2, lambda x: x.clone(), lambda x: torch.zeros_like(x), lambda x: F.hardtanh(x), lambda x: F.gelu(x),
    lambda x: F.logsigmoid(x), lambda x: torch.where(x > 0, x, 0.0), lambda x: x.sum(0), lambda x: x.amax(-1, keepdim=True),
    lambda x: x.softmax(-1), lambda x: x.cumsum(0), lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x], -1),
    lambda x: x.flip(0), lambda x: x.roll(1, 0), lambda x: x[[0]], lambda x: x.tril(), lambda x: x.sort(0).values,
    lambda x: x.msort(), lambda x: x.transpose(0, -1) * 2, lambda x: x.unsqueeze(1) + 1, lambda x: x.squeeze() + 1,
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: torch.special.xlog1py(x, x), lambda x: torch._foreach_add([x], 1),
    lambda x: F.rrelu(x), lambda x: x.to(torch.bfloat16), lambda x: x.masked_fill(x > 0, 1.0), lambda x: x.contiguous() + 1,
    lambda x: F.dropout(x, 0.5), lambda x: x.mean(0, keepdim=True), lambda x: x.movedim(0, -1).abs(),
]  # fmt: skip
BINARY: list[Callable[[T, T], Any]] = [
    lambda x, y: x + y, lambda x, y: torch.rsub(x, y), lambda x, y: torch.where(x > 0, x, y), lambda x, y: x * y + x,
    lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, y, y), lambda x, y: x == y, lambda x, y: x - y[:1],
    lambda x, y: F.mse_loss(x, y, reduction="none"), lambda x, y: torch.empty_like(x).copy_(y), lambda x, y: x.hypot(y),
    lambda x, y: torch.cat([x, y], -1), lambda x, y: x.clamp(y, y + 1),
]  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operators_on_one_tensor(layout: str, grad: bool) -> None:
    for number, function in enumerate(UNARY):
        assert not _wrong(function, LAYOUTS[layout].requires_grad_(grad)), number


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operators_on_two_tensors(layout: str, grad: bool) -> None:
    x = LAYOUTS[layout]
    for y in (torch.rand(x.shape), torch.rand(x.shape[::-1]).permute(*reversed(range(x.ndim)))):
        for number, function in enumerate(BINARY):
            assert not _wrong(function, x.requires_grad_(grad), y), number


def _wrong(function: Callable[..., Any], *arguments: T) -> list[str]:
    found = exact.differences(function, *arguments, exactly=False)
    return [line for line in found if "strides" in line or not line.startswith("tensor")]
