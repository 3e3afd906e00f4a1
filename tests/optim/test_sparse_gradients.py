"""Steps with sparse gradients: `backward()` and the step of the optimizer that has them are one call each in Python, and
what is dense around them is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse
from differential import same


def sparse_adam(table: nn.Embedding, layers: nn.Module) -> list[Any]:
    return [torch.optim.SparseAdam(table.parameters(), lr=0.01), torch.optim.Adam(layers.parameters(), lr=0.01)]


def sgd(table: nn.Embedding, layers: nn.Module) -> list[Any]:
    return [torch.optim.SGD(table.parameters(), lr=0.1), torch.optim.AdamW(layers.parameters(), lr=0.01)]


def adagrad(table: nn.Embedding, layers: nn.Module) -> list[Any]:
    return [torch.optim.Adagrad(table.parameters(), lr=0.1), torch.optim.RMSprop(layers.parameters(), lr=0.01)]


def one_for_all(table: nn.Embedding, layers: nn.Module) -> list[Any]:
    return [torch.optim.SGD([*table.parameters(), *layers.parameters()], lr=0.1)]


def dense_first(table: nn.Embedding, layers: nn.Module) -> list[Any]:
    return sgd(table, layers)[::-1]


@pytest.mark.parametrize("make", [sparse_adam, sgd, adagrad, one_for_all, dense_first])
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_step(make: Callable[[nn.Embedding, nn.Module], list[Any]]) -> None:
    def build() -> tuple[Callable[..., Any], list[Any]]:
        torch.manual_seed(0)
        table = nn.Embedding(20, 6, sparse=True)
        layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
        optimizers = make(table, layers)

        def step(x: Any, y: Any) -> Any:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = F.cross_entropy(layers(table(x).mean(1)), y)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss.detach()

        return step, [*table.parameters(), *layers.parameters()]

    (plain, expected), (step, found) = build(), build()
    compiled = quickfuse.compile(step)
    for _ in range(6):
        x, y = torch.randint(0, 20, (8, 3)), torch.randint(0, 3, (8,))
        assert same(plain(x, y), compiled(x, y), rtol=1e-5, atol=1e-6)
        assert same(expected, found, rtol=1e-5, atol=1e-6)
        assert same([p.grad.to_dense() for p in expected], [p.grad.to_dense() for p in found], rtol=1e-5, atol=1e-6)
    assert len([b for b in compiled.breaks if "not plain strided" in b.reason]) == 1  # for all of the step
