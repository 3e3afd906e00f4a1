"""Leaves of autograd's graph that a graph makes and keeps to itself: attacks, penalties on gradients, views made without
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss

import quickfuse

T = torch.Tensor


def penalty(x: T, w: T) -> T:
    z = (x * 2).requires_grad_()
    (g,) = torch.autograd.grad((z @ w).square().sum(), z, create_graph=True)
    return (g.norm(dim=1) - 1).square().mean()


def attack(x: T, w: T) -> T:
    d = torch.zeros_like(x).requires_grad_()
    for _ in range(2):
        (g,) = torch.autograd.grad(((x + d) @ w).square().sum(), d)
        d = (d + 0.1 * g.sign()).clamp(-0.1, 0.1).detach().requires_grad_()
    return mse_loss((x + d.detach()) @ w, x[:, :2])


def view_without_gradients(x: T, w: T) -> T:
    y = x @ w
    with torch.no_grad():
        best = y.flatten(0, 1).max()
    return (y - best).exp().sum()


def view_used_with_gradients(x: T, w: T) -> T:
    y = x @ w
    with torch.no_grad():
        row = y[0]
    return (row * 2).sum() + y.sum()


@pytest.mark.parametrize("program", [penalty, attack, view_without_gradients, view_used_with_gradients])
def test_an_inner_leaf(program: Callable[[T, T], T], caplog: pytest.LogCaptureFixture) -> None:
    def gradients(run: Callable[..., Any], x: T) -> tuple[T, Any]:
        w = torch.linspace(-1, 1, 6).reshape(3, 2).requires_grad_()
        loss = run(x, w)
        loss.backward()
        return loss.detach(), w.grad

    quickfuse.set_logs(graph_breaks=True)
    try:
        compiled = quickfuse.compile(program)
        for k in range(3):
            x = torch.linspace(-2, 1 + k, 12).reshape(4, 3)
            torch.testing.assert_close(gradients(compiled, x), gradients(program, x))
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert compiled.graph_count == 1
    assert not caplog.messages  # no graph runs operator by operator
