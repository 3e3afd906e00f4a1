"""Bilinear layers under autocast, whose kernel calls products that autocast converts."""

from __future__ import annotations

import copy

import pytest
import torch

import quickfuse
from quickfuse.differentiate.three_operands import as_products


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_of_a_bilinear_layer(dtype: torch.dtype, shape: tuple[int, ...], inside: bool) -> None:
    layer = torch.nn.Bilinear(16, 8, 12, dtype=dtype)

    def step(layer: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        leaves = [x.clone().requires_grad_(), y.clone().requires_grad_(), *layer.parameters()]
        with torch.autocast("cpu"):
            out = layer(*leaves[:2])
            loss = out.square().sum()
            if inside:
                gradients = torch.autograd.grad(loss, leaves)
        if not inside:
            gradients = torch.autograd.grad(loss, leaves)
        return out, *gradients

    x, y = torch.randn(*shape, 16, dtype=dtype), torch.randn(*shape, 8, dtype=dtype)
    expected = step(copy.deepcopy(layer), x, y)
    compiled = quickfuse.compile(step)
    for mine, theirs in zip(compiled(layer, x, y), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
        assert mine.stride() == theirs.stride()
    assert compiled.graph_count == 1


def test_sums_of_products_of_any_axes() -> None:
    """Each operand's gradient is such a sum too, over other axes."""
    a, b, c = torch.randn(5, 16), torch.randn(12, 16, 8), torch.randn(5, 8)
    gradient = torch.randn(5, 12)
    with torch.autocast("cpu"):
        for operands, lacking, summed in [
            ((a, b, c), ([1, 3], [0], [1, 2]), [2, 3]),
            ((gradient, b, c), ([2, 3], [0], [1, 2]), [1, 3]),
            ((a, gradient, c), ([1, 3], [2, 3], [1, 2]), [0]),
            ((a, b, gradient), ([1, 3], [0], [2, 3]), [1, 2]),
        ]:
            torch.testing.assert_close(
                as_products(*operands, *lacking, summed), torch._trilinear(*operands, *lacking, summed), rtol=1e-2, atol=1e-2
            )
