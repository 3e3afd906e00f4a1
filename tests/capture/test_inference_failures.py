"""Operators that fail in inference mode, or because of tensors made there: what came before is done, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor


class State:
    def __init__(self) -> None:
        self.log: list[Any] = []
        self.total = torch.zeros(2, 2)
        self.weight = torch.ones(2, 2, requires_grad=True)


def in_a_block(s: State, x: T, k: T) -> Any:
    s.log.append(1)
    s.total.add_(1)
    with torch.inference_mode():
        y = x * 2
        s.log.append(2)
        s.total.add_(1)
        torch.linalg.inv(y * k)
        s.log.append(3)
    s.total.add_(1)
    return x + 1


def first_in_a_block(s: State, x: T, k: T) -> Any:
    s.total.add_(k)
    with torch.inference_mode():
        s.log.append(torch.is_grad_enabled())
        torch.linalg.cholesky(x * (k - 0.5))
    s.total.add_(1)
    return x + 1


def in_blocks(s: State, x: T, k: T) -> Any:
    s.total.add_(1)
    with torch.no_grad(), torch.inference_mode():
        s.log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        s.total.add_(1)
        with torch.inference_mode(False):
            s.log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            s.total.add_(1)
            with torch.inference_mode():
                z = torch.linalg.inv(x * k)
    return z * 1


def behind_a_block(s: State, x: T, k: T) -> Any:
    s.total.add_(1)
    with torch.inference_mode():
        y = x * 2
        s.log.append(1)
    s.total.add_(y)
    s.log.append(2)
    z = torch.linalg.inv(y * k)
    s.total.add_(z)
    return z


def saved_for_backward(s: State, x: T, k: T) -> Any:
    s.total.add_(1)
    with torch.inference_mode():
        y = x * 2
        s.log.append(2)
    z = y * s.weight
    s.total.add_(1)
    return z


@torch.inference_mode()
def decorated(s: State, y: T) -> Any:
    s.log.append(1)
    s.total.add_(1)
    z = torch.linalg.inv(y)
    s.total.add_(1)
    return z


def by_a_decorator(s: State, x: T, k: T) -> Any:
    s.total.add_(1)
    return decorated(s, x * k) * 2


def handled_outside(s: State, x: T, k: T) -> Any:
    try:
        with torch.inference_mode():
            s.total.add_(1)
            s.log.append(1)
            torch.linalg.inv(x * k)
    except RuntimeError:
        s.log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    return x * s.weight


def handled_inside(s: State, x: T, k: T) -> Any:
    with torch.inference_mode():
        s.total.add_(1)
        try:
            y = torch.linalg.inv(x * k)
        except RuntimeError:
            y = x * 3
            s.log.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        s.total.add_(y)
    return x * s.weight


def with_gradients(s: State, x: T, k: T) -> Any:
    with torch.inference_mode():
        torch.linalg.solve(s.weight * x * k, x)
    s.weight.grad = None
    (s.weight * x).sum().backward()
    return s.weight.grad


def changed(s: State, x: T, k: T) -> Any:
    s.log.append(1)
    s.total.add_(1)
    x += 1
    s.log.append(2)
    s.total.add_(1)
    return x * 2


def changed_by_a_function(s: State, x: T, k: T) -> Any:
    s.log.append(1)
    s.total.add_(1)
    torch.relu_(x.view(-1))
    s.log.append(2)
    return x * 2


def changed_and_handled(s: State, x: T, k: T) -> Any:
    s.log.append(1)
    try:
        s.total.add_(1)
        x.add_(1)
        s.log.append(2)
    except RuntimeError as error:
        s.log.append(str(error))
    return x * 2


PROGRAMS = [
    in_a_block, first_in_a_block, in_blocks, behind_a_block, saved_for_backward, by_a_decorator, handled_outside,
    handled_inside, with_gradients, changed, changed_by_a_function, changed_and_handled,
]  # fmt: skip


def operands(k: int, unusual: bool) -> tuple[T, T]:
    x, factor = torch.eye(2), torch.tensor(float(k % 2 == 0))
    if not unusual:
        return x, factor
    with torch.inference_mode():
        return x + 0, factor if k < 2 else torch.tensor(1.0)


def outcomes(program: Callable[[State, T, T], Any], compile_: Callable[[Any], Any], unusual: bool) -> list[Any]:
    state, found = State(), []
    called = compile_(lambda x, k: program(state, x, k))
    for k in range(4):
        x, factor = operands(k, unusual)
        try:
            made = called(x, factor)
            told: Any = (made.tolist(), made.requires_grad, made.is_inference())
        except RuntimeError as error:
            told = f"{type(error).__name__}: {error}"
        found.append((told, list(state.log), state.total.tolist(), x.tolist()))
        found.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    return found


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize("unusual", [False, True], ids=["", "given_inference_tensors"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_came_before_is_done(program: Callable[[State, T, T], Any], unusual: bool, backend: str) -> None:
    expected = outcomes(program, lambda f: f, unusual)
    assert outcomes(program, lambda f: quickfuse.compile(f, backend=backend), unusual) == expected
