"""Calls whose gradients are differentiated, outside: that takes a run in eager, which after some calls is the only one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse.launch import joined

SAID = "the gradients of nearly every call are differentiated"


class Field(nn.Module):
    """With what a call changes, and what it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.norm(self.first(x)))
        return self.last(nn.functional.dropout(h, 0.2, self.training)).sum()


def slope(field: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    value = field(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    return value + gradient.square().sum()


def penalty(field: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    """With a call more that is differentiated once only."""
    return slope(field, x) + field(x * 2).sin() + field(x * 3).cos()


def outcome(module: nn.Module, field: Callable[..., Any], loss: Callable[..., torch.Tensor], turn: int) -> Any:
    torch.manual_seed(turn)
    x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)
    module.zero_grad()
    value = loss(field, x)
    value.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= 1e-4 * parameter.grad  # type: ignore[operator]
    return value.detach(), x.grad, [p.clone() for p in module.state_dict().values()], torch.rand(1)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the log says; calls are compiled again after five in eager."""
    lines: list[str] = []
    monkeypatch.setattr(joined, "_CALLS_IN_EAGER", 5)
    monkeypatch.setattr(joined.logs, "emit", lambda kind, text, *rest: lines.append(text))
    yield lines


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loss", [slope, penalty, lambda field, x: field(x).square()])
def test_as_in_eager(said: list[str], loss: Callable[..., torch.Tensor], training: bool) -> None:
    torch.manual_seed(0)
    module = Field().double().train(training)
    twin = copy.deepcopy(module)
    compiled = quickfuse.compile(module)
    for turn in range(20):
        torch.testing.assert_close(outcome(module, compiled, loss, turn), outcome(twin, twin, loss, turn))
    assert sum(SAID in line for line in said) == (loss is slope)


def test_gradients_once_again(said: list[str]) -> None:
    torch.manual_seed(0)
    module = Field().double().eval()
    twin = copy.deepcopy(module)
    compiled = quickfuse.compile(module)
    for turn in range(30):
        loss = slope if turn < 10 else lambda field, x: field(x).square()
        torch.testing.assert_close(outcome(module, compiled, loss, turn), outcome(twin, twin, loss, turn))
    value = compiled(torch.randn(5, 2, dtype=torch.float64, requires_grad=True))
    assert "Joined" in type(value.grad_fn).__name__  # compiled again
