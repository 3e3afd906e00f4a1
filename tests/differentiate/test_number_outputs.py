"""Graphs with gradients that return numbers out of tensors: in front of a break, or as results of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse import logs


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Any:
    """What is left to eager, as text."""
    quickfuse.set_logs(graph_breaks=True)
    logs.log.propagate = True
    yield lambda: caplog.text
    quickfuse.set_logs(graph_breaks=False)


def agree(make: Callable[[], tuple[nn.Module, Callable[..., Any]]], calls: int = 3) -> None:
    """Compare results, parameters, buffers and gradients of a step of a model with eager's."""
    runs = []
    for compiler in (lambda step: step, quickfuse.compile):
        torch.manual_seed(0)
        model, step = make()
        step = compiler(step)
        results = [step(torch.randn(6, 4, dtype=torch.float64)) for _ in range(calls)]
        runs.append((results, [*model.state_dict().values()], [p.grad for p in model.parameters()]))
    assert [type(r) for r in runs[0][0]] == [type(r) for r in runs[1][0]]
    torch.testing.assert_close(runs[0], runs[1])


def test_average_of_all_batches(logged: Any) -> None:
    """A batch norm without a momentum computes one from a counter in a tensor, and gives it to the next graph."""

    def make() -> tuple[nn.Module, Callable[..., Any]]:
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, 2)).double()

        def step(x: torch.Tensor) -> torch.Tensor:
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        return model, step

    agree(make)
    assert "operator by operator" not in logged()


def test_loss_as_a_number(logged: Any) -> None:
    """With an optimizer's step after it, one graph."""

    def make() -> tuple[nn.Module, Callable[..., Any]]:
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss.item(), norm.item(), loss.detach()

        return model, step

    agree(make)
    assert "operator by operator" not in logged()


def test_numbers_between_results(logged: Any) -> None:
    """Numbers and tensors in any order, the same number twice, integers, and one that gradients use."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4).double()

    def program(x: torch.Tensor) -> Any:
        y = model(x)
        largest = y.detach().amax().item()
        count = (y > 0).sum().item()
        return largest, y * 2, count, (y * largest).sum(), y.detach() + 1, largest + 1, largest

    runs = []
    x = torch.randn(6, 4, dtype=torch.float64)
    for function in (program, quickfuse.compile(program)):
        model.zero_grad()
        results = function(x)
        (results[1].sum() + results[3]).backward()
        runs.append((results, [p.grad for p in model.parameters()]))
    assert [type(r) for r in runs[0][0]] == [type(r) for r in runs[1][0]]
    torch.testing.assert_close(runs[0], runs[1])
    assert "operator by operator" not in logged()


def test_number_before_a_break(logged: Any) -> None:
    """It is handed over to Python."""

    def make() -> tuple[nn.Module, Callable[..., Any]]:
        model = nn.Linear(4, 4).double()

        def step(x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            size = y.detach().abs().amax().item()
            quickfuse.graph_break()
            loss = y.square().mean() / (1 + size)
            loss.backward()
            return loss.detach()

        return model, step

    agree(make)
    assert "operator by operator" not in logged()
