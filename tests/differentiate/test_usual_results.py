"""Usual backwards (`launch/usual_backward.py`) of results of which autograd may ask for some, and with gradients that lie
otherwise in memory than expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse

T = torch.Tensor


class Both(nn.Module):
    """Two results, each of which reaches some parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x: T) -> tuple[T, T]:
        hidden = torch.tanh(self.body(x))
        return self.actor(hidden), self.critic(hidden)


def whole_backwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often backward has gone the whole way, not that of `usual_backward`."""
    from quickfuse.launch import autograd_nodes

    counted: list[int] = []
    whole = autograd_nodes._gradients

    def counting(*arguments: Any) -> Any:
        counted.append(1)
        return whole(*arguments)

    monkeypatch.setattr(autograd_nodes, "_gradients", counting)
    return counted


SCALARS: list[Callable[[T], T]] = [
    lambda y: y.sum(), lambda y: y.t().sum(0).sum(), lambda y: (y.t() * 2).sum(), lambda y: y[:2].sum()
]  # fmt: skip


@pytest.mark.parametrize("scalar", SCALARS)
def test_gradients_with_other_strides(scalar: Callable[[T], T], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 3, requires_grad=True)
    compiled = quickfuse.compile(lambda x: torch.sin(x) * x)
    whole = whole_backwards(monkeypatch)
    for _ in range(4):
        found = torch.autograd.grad(scalar(compiled(x)), x)[0]
        torch.testing.assert_close(found, torch.autograd.grad(scalar(torch.sin(x) * x), x)[0])
    assert len(whole) == 1


def test_gradients_of_other_kinds() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    compiled = quickfuse.compile(lambda x: torch.sin(x) * x)
    for given in (torch.ones(5, 3), torch.ones(1, 1).expand(5, 3), torch.ones(3, 5).t(), torch.ones(5, 3).neg()._neg_view()):
        found = torch.autograd.grad(compiled(x), x, given)[0]
        torch.testing.assert_close(found, torch.autograd.grad(torch.sin(x) * x, x, given)[0])


def test_two_results(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Both(), torch.randn(6, 4)
    compiled = quickfuse.compile(model)
    whole = whole_backwards(monkeypatch)
    for _ in range(4):
        found = []
        for run in (model, compiled):
            model.zero_grad()
            logits, value = run(x)
            (logits.square().mean() + value.sum()).backward()
            found.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(found[1], found[0])
    assert len(whole) == 1


def test_two_results_of_which_one_is_asked_for() -> None:
    model, x = Both(), torch.randn(6, 4)
    compiled = quickfuse.compile(model)
    for turn in range(6):
        found = []
        for run in (model, compiled):
            logits, value = run(x)
            asked = [model.critic.weight] if turn % 2 else [model.actor.weight, model.critic.bias, model.body.weight]
            total = logits.square().mean() + value.square().sum()
            some = torch.autograd.grad(total, asked, retain_graph=turn % 3 == 0, allow_unused=True)
            if turn % 3 == 0:
                some += torch.autograd.grad(total, [*model.parameters()])
            found.append(some)
        torch.testing.assert_close(found[1], found[0])


def test_two_results_one_after_the_other() -> None:
    model, x = Both(), torch.randn(6, 4)
    compiled = quickfuse.compile(model)
    for _ in range(4):
        found: list[Any] = []
        for run in (model, compiled):
            model.zero_grad()
            logits, value = run(x)
            logits.sum().backward(retain_graph=True)
            value.sum().backward()
            found.append([p.grad.clone() for p in model.parameters()])
            try:
                logits.sum().backward()
                found.append("no error")
            except RuntimeError as error:
                found.append(str(error)[:40])
        torch.testing.assert_close(found[2], found[0])
        assert found[3] == found[1]


@pytest.mark.parametrize("results", [1, 2])
def test_parameters_with_other_memory_since_forward(results: int) -> None:
    def layers(x: T, w: T, b: T) -> tuple[T, ...]:
        hidden = torch.relu(nn.functional.linear(x, w, b))
        return (hidden, hidden @ w + x)[:results]

    compiled = quickfuse.compile(layers)
    for moved in [False, True, False, True, True, False]:
        found = []
        for function in (layers, compiled):
            torch.manual_seed(0)
            x, w, b = (torch.randn(shape, requires_grad=True) for shape in [(5, 6), (6, 6), (6,)])
            made = function(x, w, b)
            if moved:
                w.data = w.data * 2
            torch.stack(made).sum().backward()
            found.append((x.grad, w.grad, b.grad))
        torch.testing.assert_close(found[1], found[0])
