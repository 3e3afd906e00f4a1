"""Kernels that differ by constants alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.capture import capture
from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelCall
from quickfuse.lower import lower
from quickfuse.schedule import schedule
from quickfuse.verify import ScheduleError, copied, verify


def kernels(function: Callable[..., Any], *args: Any) -> list[KernelCall]:
    program = lower(capture(function, args, {}).graph, expand=expand)
    return [step for step in schedule(program).steps if isinstance(step, KernelCall)]


def softmaxes(count: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(count):
            x = torch.softmax(x * (2.5 + k / 3) - 0.7, dim=-1)
        return x

    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_one_kernel_for_all(dtype: torch.dtype) -> None:
    x = torch.randn(4, 16, dtype=dtype)
    calls = kernels(softmaxes(20), x)
    assert len(calls) > 10
    assert len({id(call.body) for call in calls}) <= 4
    compiled = quickfuse.compile(softmaxes(20))
    for _ in range(2):
        torch.testing.assert_close(compiled(x), softmaxes(20)(x))


def test_results_are_those_of_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit."""
    x = torch.randn(4, 16)
    shared = quickfuse.compile(softmaxes(20))(x)
    monkeypatch.setattr("quickfuse.schedule.launches.share_kernels", lambda calls: None)
    assert len({id(call.body) for call in kernels(softmaxes(20), x)}) > 10
    assert torch.equal(quickfuse.compile(softmaxes(20))(x), shared)


def test_wrong_constants_are_found() -> None:
    """The verifier follows the arguments."""
    program = lower(capture(softmaxes(20), (torch.randn(4, 16),), {}).graph, expand=expand)
    asked = copied(program)
    made = schedule(program)
    call = next(step for step in made.steps if isinstance(step, KernelCall) and step.scalars)
    verify(asked, made)
    call.scalars = [replace(scalar, value=scalar.value + 1.0) for scalar in call.scalars if scalar.value is not None]
    with pytest.raises(ScheduleError):
        verify(asked, made)


def test_a_few_keep_their_constants() -> None:
    calls = kernels(softmaxes(6), torch.randn(4, 16))
    assert not any(call.scalars for call in calls)


def test_other_scalars_come_first() -> None:
    """A number of the program's and constants in one kernel."""

    def program(x: torch.Tensor, rate: float) -> torch.Tensor:
        for k in range(20):
            x = torch.softmax(x * (2.5 + k / 3) + rate, dim=-1)
        return x

    x = torch.randn(4, 16)
    compiled = quickfuse.compile(program)
    for rate in (0.3, 0.4, 0.5):
        torch.testing.assert_close(compiled(x, rate), program(x, rate))


@pytest.mark.parametrize("change", [lambda x, k: x ** (k + 3.3), lambda x, k: (x * 2.0**k).clamp(max=3.0)])
def test_constants_that_change_the_code(change: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """Powers, and products with powers of two, stay what they are."""

    def program(x: torch.Tensor) -> torch.Tensor:
        for k in range(12):
            x = torch.softmax(change(x, k), dim=-1)
        return x

    x = torch.rand(4, 16)
    assert not any(call.scalars for call in kernels(program, x))
    torch.testing.assert_close(quickfuse.compile(program)(x), program(x))
