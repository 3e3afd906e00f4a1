"""Graphs that draw random numbers and fail: the numbers that the program draws then, and what it changed, are eager's."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse

T = torch.Tensor


def dropout(x: T, limit: float, state: T) -> T:
    x = torch.nn.functional.dropout(x, 0.5)
    assert x.abs().max() < limit
    return x * torch.rand(3)


def before_a_change(x: T, limit: float, state: T) -> T:
    if (x > limit).any():
        raise ValueError
    number = random.random()
    state.add_(number)
    return x + number


def behind_a_change(x: T, limit: float, state: T) -> T:
    number = random.random()
    state.add_(number)
    if (state > limit).any():
        raise ValueError("large")
    return x + number


def on_both_sides(x: T, limit: float, state: T) -> T:
    y = x * random.gauss(0, 1) * np.random.rand()
    assert (x < limit).all(), "large"
    return y + random.gauss(0, 1) + np.random.randn()


def seeded(x: T, limit: float, state: T) -> T:
    y = x * random.uniform(1, 2)
    state.add_(1)
    assert (x < limit).all(), "large"
    random.seed(3)
    if (state > limit * 5).any():
        raise ValueError("state")
    return y * random.random()


def an_index(x: T, limit: float, state: T) -> T:
    number = random.random()
    try:
        state.mul_(2)
        x = x + torch.arange(3)[(x * limit).long()]
    except IndexError as error:
        x = x * 2 + len(str(error))
    return x + number + random.random()


def normalised(x: T, limit: float, state: T) -> T:
    assert (x < limit).all(), "large"
    return torch.nn.functional.batch_norm(x[None].expand(2, 3) * state, state, state + 1, training=True) * torch.rand(3)


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize(
    "function", [dropout, before_a_change, behind_a_change, on_both_sides, seeded, an_index, normalised]
)
def test_as_in_eager(function: Callable[..., Any], backend: str) -> None:
    runs = []
    for called in (function, quickfuse.compile(function, backend=backend)):
        state, run = torch.zeros(3), []
        for call, limit in enumerate((9, 0.1, 9, 0.1, 1.5, 9.5, 0.5, 0.5, 30)):
            for seed in (torch.manual_seed, random.seed, np.random.seed):
                seed(call)
            x = torch.randn(3).requires_grad_(call % 2 == 0 or call == 3)
            try:
                result = called(x, limit, state)
                if result.requires_grad:
                    result.sum().backward()
            except Exception as error:
                result = repr(type(error))
            drawn = torch.rand(1), random.random(), random.gauss(0, 1), np.random.rand()
            run.append((result, x.grad, drawn, state.clone(), state._version))
        runs.append(run)
    for got, wanted in zip(runs[1], runs[0], strict=True):
        assert str(got) == str(wanted) or isinstance(wanted[0], T)
        if isinstance(wanted[0], T):
            torch.testing.assert_close(got, wanted)


def test_a_step_that_has_changed_gradients_before_it_fails() -> None:
    """It cannot begin again, so what it has drawn stays drawn."""
    seen = []
    for backend in (None, "quickfuse", "eager"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.1), torch.nn.Linear(6, 5))
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(x: T, target: T, model: Any = model, optimizer: Any = optimizer) -> T:
            optimizer.zero_grad(set_to_none=False)
            loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        called, run = step if backend is None else quickfuse.compile(step, backend=backend), []
        for target in (3, 7, 2, 7):
            try:
                called(torch.randn(2, 4), torch.tensor([1, target]))
            except IndexError as error:
                run.append(str(error))
            run.append(torch.rand(2).tolist())
        seen.append(run)
    assert seen[0] == seen[1] == seen[2]
