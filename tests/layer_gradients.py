"""A layer and its gradients, compiled and in eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import quickfuse


def compare(layer: nn.Module, x: torch.Tensor) -> None:
    """Results, gradients and their strides, and results without gradients, agree."""
    x = x.to(next(layer.parameters()).dtype)

    def run(module: Any) -> list[torch.Tensor | None]:
        layer.zero_grad()
        seen = x.detach().requires_grad_()
        result = module(seen)
        (result * torch.linspace(0, 1, result.numel()).view(result.shape)).sum().backward()
        return [result.detach(), seen.grad, *(p.grad for p in layer.parameters())]

    compiled: Any = quickfuse.compile(layer, fullgraph=True)
    for expected, found in zip(run(layer), run(compiled), strict=True):
        largest = 0.0 if expected is None else float(expected.abs().max())  # sums over many pixels cancel
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=max(1e-4, 1e-6 * largest))
        assert expected is None or found is None or found.stride() == expected.stride()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-4)
