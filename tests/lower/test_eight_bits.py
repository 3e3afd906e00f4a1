"""Floats of eight bits: PyTorch converts them, between kernels, which copy them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from gpu_shadow import shadowed

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def copies(x: torch.Tensor) -> Any:
    small = x.to(E4)
    rows = torch.zeros(3, 4, dtype=E4)
    rows[1] = x[1]
    rows[:1].copy_(small[:1])
    other = torch.empty(4, 4, dtype=E4)
    other.copy_(x.t())
    return rows, other, small.t().contiguous(), torch.cat([small, small.flip(0)]), small.expand(2, 4, 4).contiguous()


def parts(x: torch.Tensor) -> Any:
    small = (x * 3).to(E5)
    bits = small.view(torch.uint8) + 1
    return small[[1, 0]], bits, small[:0].float(), small[:, :0].contiguous(), small[1:, ::2].bfloat16() * 2


def scaled(x: torch.Tensor) -> Any:
    scale = 448 / x.abs().amax()
    small = (x * scale).clamp(-448, 448).to(E4)
    return (small.t().to(x.dtype) / scale) @ F.gelu(x), small.float().sin(), torch.float8_e8m0fnu


FUNCTIONS: list[Callable[[torch.Tensor], Any]] = [copies, parts, scaled]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_between_kernels(function: Callable[[torch.Tensor], Any]) -> None:
    found: list[str] = []
    with shadowed(found):
        compiled = quickfuse.compile(function, fullgraph=True, options={"raise_internal_errors": True})
        for seed in range(2):
            x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
            for made, expected in zip(compiled(x), function(x), strict=True):
                if isinstance(expected, torch.Tensor):
                    assert made.dtype == expected.dtype and made.stride() == expected.stride()
                    torch.testing.assert_close(made.float(), expected.float())
    assert not found
    assert all(not s.without_kernels for s in compiled.specialisations)


class Product(torch.autograd.Function):
    """A product of eight bits, forward and backward, with a scale for each tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        sx, sw = 448 / x.abs().amax(), 448 / w.abs().amax()
        small_x, small_w = (x * sx).to(E4), (w * sw).to(E4)
        ctx.save_for_backward(small_x, small_w, sx, sw)
        return small_x.to(x.dtype) @ small_w.to(x.dtype) / (sx * sw)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        x, w, sx, sw = ctx.saved_tensors
        scale = 57344 / gradient.abs().amax()
        small = (gradient * scale).to(E5).to(gradient.dtype)
        return small @ w.to(gradient.dtype).t() / (scale * sw), x.to(gradient.dtype).t() @ small / (scale * sx)


def test_with_gradients() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        loss = Product.apply(F.silu(x), w).square().mean()
        loss.backward()
        return loss.detach(), w.grad.sin()  # type: ignore[union-attr]

    compiled = quickfuse.compile(step, fullgraph=True, options={"raise_internal_errors": True})
    for seed in range(2):
        torch.manual_seed(seed)
        x, w = torch.randn(4, 4), torch.randn(4, 4)
        results = [f(x.clone(), w.clone().requires_grad_()) for f in (compiled, step)]
        torch.testing.assert_close(*results)
    assert all(not s.without_kernels for s in compiled.specialisations)
