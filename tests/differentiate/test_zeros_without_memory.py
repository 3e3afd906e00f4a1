"""Zeros without memory, which formulas of gradients use: their address is none that a kernel may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import quickfuse

Function = Callable[..., Any]


def _zeros(*shape: int) -> Tensor:
    return torch._efficientzerotensor(shape)


@pytest.mark.parametrize("loss", [torch.nn.functional.l1_loss, torch.nn.functional.huber_loss, torch.nn.functional.mse_loss])
def test_adapted_parameters(loss: Function) -> None:
    """The second derivative of `abs` is such a zero."""
    weight, bias = torch.randn(6, 6, requires_grad=True), torch.randn(6, requires_grad=True)

    def adapted(x: Tensor, target: Tensor) -> Tensor:
        inner = loss((x @ weight + bias).tanh(), target)
        gradients = torch.autograd.grad(inner, [weight, bias], create_graph=True)
        w, b = (p - 0.1 * g for p, g in zip([weight, bias], gradients, strict=True))
        return loss((x @ w + b).tanh(), target)

    x, target = torch.randn(4, 6), torch.randn(4, 6)
    compiled = quickfuse.compile(adapted)
    for _ in range(2):
        results = [torch.autograd.grad(f(x, target), [weight, bias]) for f in (compiled, adapted)]
        torch.testing.assert_close(*results)
    assert compiled.graph_count == 1


def test_as_an_input() -> None:
    compiled = quickfuse.compile(lambda x: x * 2 + 1)
    for x in (torch.randn(4), _zeros(4), torch.randn(4), _zeros(4)):
        torch.testing.assert_close(compiled(x), x * 2 + 1)


def test_as_a_gradient() -> None:
    weight = torch.randn(4, 6, requires_grad=True)

    def product(x: Tensor) -> Tensor:
        return (x * weight).sin() * x

    compiled = quickfuse.compile(product)
    for given in (torch.ones(4, 6), _zeros(4, 6), torch.ones(4, 6)):
        x = torch.randn(4, 6, requires_grad=True)
        mine, theirs = (torch.autograd.grad(f(x), [x, weight], given) for f in (compiled, product))
        torch.testing.assert_close(mine, theirs)


def test_made_inside() -> None:
    def made(x: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch._efficientzerotensor(x.shape)
        return x + zeros, zeros.sum()

    compiled = quickfuse.compile(made)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compiled(x), made(x))
