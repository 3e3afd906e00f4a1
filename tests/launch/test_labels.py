"""Blocks that a program names for the profiler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse


def _shown(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """The names of blocks that a profile of one call shows."""
    function(*args)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        function(*args)
    names = Counter({event.key: event.count for event in profile.key_averages()})
    return Counter({name: count for name, count in names.items() if "block" in name or "step" in name.lower()})


def one(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("a block"):
        y = x * 2
    return y.sin()


def several(x: torch.Tensor) -> torch.Tensor:
    for k in range(3):
        with torch.profiler.record_function(f"block {k % 2}"):
            x = x.sin()
            with torch.autograd.profiler.record_function("inner block"):
                x = x * 2
    return x


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("before block"):
        x = x * 2
    if x.sum() > 0:
        with torch.profiler.record_function("after block"):
            x = x + 1
    return x


@torch.profiler.record_function("decorated block")
def decorated(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_decorated(x: torch.Tensor) -> torch.Tensor:
    return decorated(x).sin()


def without_operators(x: torch.Tensor) -> torch.Tensor:
    with torch.profiler.record_function("empty block"):
        return x


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [one, several, with_a_break, calls_decorated, without_operators])
def test_blocks_are_shown(function: Callable[..., Any], grad: bool) -> None:
    x = torch.ones(3, requires_grad=grad)
    compiled = quickfuse.compile(function)
    assert _shown(compiled, x) == _shown(function, x)
    torch.testing.assert_close(compiled(x), function(x))


def test_optimizer_steps_are_shown() -> None:
    model = torch.nn.Linear(3, 3)
    model(torch.ones(3)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert _shown(quickfuse.compile(optimizer.step)) == _shown(optimizer.step)
