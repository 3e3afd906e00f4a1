"""Inputs whose names differ in capital letters alone, in graphs that run in parts or operator by operator."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import quickfuse

T = torch.Tensor


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W, self.w = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3, 3))
        self.aB, self.a_b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.X, self.x = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, X: T, x: T) -> Any:
        y = torch.tanh(X @ self.W) - x @ self.w * 2 + self.aB - 3 * self.a_b
        leaf = y.detach().requires_grad_()
        return self.X(leaf) - 2 * self.x(leaf), leaf, y


def leaf_inside(X: T, x: T) -> Any:
    y = (X * 2 - x).detach().requires_grad_()
    return y, (X - x * y).sum()


def eigenvalues(X: T, x: T) -> Any:
    return X.cumsum(0) - x, torch.linalg.eig(X)[0].abs(), X * 3 - x


def resized(X: T, x: T) -> Any:
    (X.detach() * 2).resize_(2)
    return X - 2 * x


def second_derivatives(X: T, x: T) -> Any:
    gradient = torch.autograd.grad((X * x * x).sum(), x, create_graph=True)[0]
    return gradient, (gradient * X).sum()


def checkpointed(X: T, x: T) -> Any:
    return checkpoint(lambda a, b: (a * 2 - b).sin(), X, x, use_reentrant=False) - x


def transformed(X: T, x: T) -> Any:
    return torch.func.vmap(lambda A, a: (A - 2 * a).sin(), in_dims=(0, 0))(X, x)


def method_of_tensors(x: T, self: T) -> Any:
    leaf = (self * 2 - x).detach().requires_grad_()
    return torch.tanh(self @ x), leaf, self * leaf


def outcome(function: Callable[..., Any], leaves: list[T], parameters: list[T]) -> list[Any]:
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    total = sum(k * r.sum() for k, r in enumerate(results, 1) if r.grad_fn is not None)
    gradients = torch.autograd.grad(total, [*leaves, *parameters], allow_unused=True)
    return [*results, *gradients]


@pytest.mark.parametrize(
    "function",
    [leaf_inside, eigenvalues, resized, second_derivatives, checkpointed, transformed, method_of_tensors, Named()],
    ids=lambda function: getattr(function, "__name__", "module"),
)  # fmt: skip
def test_names_in_capitals(function: Callable[..., Any]) -> None:
    model = copy.deepcopy(function)
    compiled = quickfuse.compile(model)
    of_eager, of_compiled = ([*f.parameters()] if isinstance(f, nn.Module) else [] for f in (function, model))
    for seed in range(3):
        torch.manual_seed(seed)
        values = torch.randn(3, 3), torch.randn(3, 3)
        expected = outcome(function, [v.clone().requires_grad_() for v in values], of_eager)
        got = outcome(compiled, [v.clone().requires_grad_() for v in values], of_compiled)
        for one, other in zip(expected, got, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(other, one)


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
def test_a_method_of_a_tensor(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(self: T, other: T) -> T:
        return self.sin() * other - self

    monkeypatch.setattr(T, "scaled", quickfuse.compile(scaled, backend=backend), raising=False)
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(x.scaled(y), scaled(x, y))  # type: ignore[attr-defined]
