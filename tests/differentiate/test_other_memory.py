"""A tensor gets other memory (`x.data = other`) between a compiled call and its backward.

What eager has saved is the tensor itself, in which it finds the new memory, or what was computed from it or shares its
memory, which is as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from differentiate.twins import compiled as compiling
from seeding import seed_torch

PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a product": lambda x, p: x * p,
    "an alias": lambda x, p: x * p.data,
    "a layer": lambda x, p: F.linear(x, p).sin(),
    "a layer without a bias": lambda x, p: F.linear(x[None], p).relu(),
    "a product of matrices": lambda x, p: (x @ p).cos(),
    "a result that is saved": lambda x, p: p.exp() * x,
    "the tensor and what is computed from it": lambda x, p: p.exp() * p * x,
    "both in a chain": lambda x, p: torch.tanh(p * x) * p,
    "an activation": lambda x, p: F.silu(p) * x,
    "a norm": lambda x, p: F.layer_norm(x, (4,), p[0], p[1]),
    "a softmax": lambda x, p: p.softmax(0) @ x,
    "divided by a norm": lambda x, p: (p / p.norm()) @ x,
    "an embedding": lambda x, p: F.embedding(torch.tensor([1, 2]), p) * x[:2],
    "signs": lambda x, p: F.linear(x, p.sign()) * p,
    "a convolution": lambda x, p: F.conv2d(x[None, None], p[None, None, :2, :2]),
    "a view": lambda x, p: p.t() * x + p,
    "without gradients in part": lambda x, p: x * torch.no_grad()(torch.exp)(p) * p,
}


def gradients(function: Any, change: str, order: int, seed: int) -> list[Any]:
    seed_torch(seed)
    x, p = torch.randn(4, 4, requires_grad=True), torch.nn.Parameter(torch.randn(4, 4))
    result = function(x, p)
    other = torch.randn(8, 4)
    first = result.sum() if order == 1 else torch.autograd.grad(result.sum(), [x, p], create_graph=True, allow_unused=True)
    changed = x if "x" in change else p
    before = changed.data
    if "strides" in change:
        changed.data = other[:4].t()
    elif "part" in change:
        changed.data = other[2:6]
    elif "back" in change:
        changed.data = torch.zeros(4, 4)
        changed.data = before
    else:
        changed.data = other[:4].clone()
    del before
    if order == 2:
        first = sum(g.square().sum() for g in first if g is not None and g.requires_grad)  # type: ignore[union-attr]
    if isinstance(first, Tensor) and first.requires_grad:
        first.backward(retain_graph=True)
        first.backward()
    return [x.grad, p.grad]


@pytest.mark.parametrize("change", ["p", "x", "p: strides", "x: part", "p and back"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_backward_reads_what_eager_reads(name: str, change: str) -> None:
    function = PROGRAMS[name]
    compiled = compiling(function)
    for seed in range(3):
        expected = gradients(function, change, 1, seed)
        torch.testing.assert_close(gradients(compiled, change, 1, seed), expected, rtol=1e-4, atol=1e-5)


def test_weights_rounded_for_forward_alone() -> None:
    """As in networks of binary weights: backward takes gradients by the rounded weights, and the step changes the others."""

    def losses(compile: Any) -> list[float]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        forward = compile(lambda x, y: F.mse_loss(net(x), y))
        found = []
        for _ in range(6):
            kept = [p.data for p in net.parameters()]
            for p in net.parameters():
                p.data = p.data.sign() * p.data.abs().mean()
            loss = forward(torch.randn(5, 4), torch.randn(5, 1))
            for p, before in zip(net.parameters(), kept, strict=True):
                p.data = before
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    assert losses(compiling) == pytest.approx(losses(lambda f: f), rel=1e-4)


def test_several_results_apart() -> None:
    def two(x: Tensor, y: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, p).sin(), (y @ p).cos() * p

    def run(function: Any) -> list[Any]:
        torch.manual_seed(1)
        x, y = torch.randn(4, 4, requires_grad=True) * 2, torch.randn(4, 4, requires_grad=True) * 3
        x.retain_grad()
        y.retain_grad()
        p = torch.nn.Parameter(torch.randn(4, 4))
        first, second = function(x, y, p)
        p.data = torch.randn(4, 4)
        first.sum().backward()
        second.sum().backward()
        return [x.grad, y.grad, p.grad]

    compiled = compiling(two)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), run(two), rtol=1e-4, atol=1e-5)


def test_second_derivatives() -> None:
    def function(x: Tensor, p: Tensor) -> Tensor:
        return F.linear(x, p).sin() + F.linear(x, p.exp())

    compiled = compiling(function)
    for order in (1, 2):
        for seed in range(2):
            expected = gradients(function, "p", order, seed)
            torch.testing.assert_close(gradients(compiled, "p", order, seed), expected, rtol=1e-4, atol=1e-5)
