"""Leaves that the compiled function makes, such as perturbations and fast weights: used inside, and handed out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differential import same

T = torch.Tensor


def score(x: T, w: T) -> T:
    return torch.tanh(x @ w).square().mean()


def one_step(x: T, w: T) -> T:
    delta = torch.zeros_like(x, requires_grad=True)
    (grad,) = torch.autograd.grad(score(x + delta, w), delta)
    return x + 0.1 * grad.sign()


def perturbation(x: T, w: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    (grad,) = torch.autograd.grad(score(x + delta, w), delta)
    with torch.no_grad():
        delta.add_(grad.sign(), alpha=0.1)
    return delta, grad


def projected(x: T, w: T) -> T:
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        score(x + delta, w).backward()
        with torch.no_grad():
            delta += 0.1 * delta.grad.sign()
            delta.clamp_(-0.15, 0.15)
        delta.grad.zero_()
    return delta


def fast_weights(x: T, w: T) -> T:
    fast = w.detach().clone().requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(score(x, fast), fast)
        fast = (fast - 0.5 * grad).detach().requires_grad_()
    return fast


def of_an_optimizer(x: T, w: T) -> T:
    z = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        score(z, w).backward()
        optimizer.step()
    return z


def sharing_memory(x: T, w: T) -> Any:
    z = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(score(z, w), z)
    return z, grad, z.detach()


def set_by_attribute(x: T, w: T) -> Any:
    z = x * 2
    z = z.detach()
    z.requires_grad = True
    score(z, w).backward()
    return z, z.grad


def with_a_loss(x: T, w: T) -> Any:
    z = (x * 2).detach().requires_grad_()
    return score(z, w), z


def two_with_a_loss(x: T, w: T) -> Any:
    a = (x + 1).detach().requires_grad_()
    b = torch.zeros(3, dtype=x.dtype, requires_grad=True)
    return score(a, w) + (a * b).sum(), a, b


def with_a_view(x: T, w: T) -> Any:
    z = (x * 2).detach().requires_grad_()
    return z[0], z, score(z, w)


def view_alone(x: T, w: T) -> T:
    z = (x * 2).detach().requires_grad_()
    return z[0] * w[0]


def unused(x: T, w: T) -> Any:
    return score(x, w), torch.ones(3, requires_grad=True), torch.zeros(2).requires_grad_()


def over_a_break(x: T, w: T) -> T:
    z = x.clone().requires_grad_()
    y = torch.tanh(z @ w)
    quickfuse.graph_break()
    (y * z).sum().backward()
    return z.grad


def view_without_gradients(x: T, w: T) -> Any:
    y = x @ w
    with torch.no_grad():
        first, rest = y[0], y[1:].t()
    quickfuse.graph_break()
    return y.sum(), first * 2, rest, first


def view_of_an_input_without_gradients(x: T, w: T) -> Any:
    with torch.no_grad():
        part = w[1:]
    quickfuse.graph_break()
    return F.linear(x[:, :3], w).sum(), part, part * 2


ONE_GRAPH = [
    one_step, perturbation, projected, fast_weights, of_an_optimizer, sharing_memory, set_by_attribute, unused,
]  # fmt: skip
PARTS = [with_a_loss, two_with_a_loss, with_a_view, view_alone]
BREAKS = [over_a_break, view_without_gradients, view_of_an_input_without_gradients]


def facts(made: Any) -> Any:
    return [(t.detach().clone(), t.requires_grad, t.is_leaf, t._is_view(), t.grad) for t in made]


def outcomes(program: Callable[[T, T], Any], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    weight = torch.randn(3, 3, requires_grad=True, dtype=torch.float64)
    called, found = compile_(program), []
    for k in range(4):
        weight.grad = None
        made = called(torch.randn(3, 3, dtype=torch.float64), weight)
        made = made if isinstance(made, tuple) else (made,)
        now = facts(made)
        leaves = [t for t in made if t.requires_grad and t.is_leaf and not t._is_view()]
        if k % 2:
            with torch.no_grad():
                for leaf in leaves if k == 3 and len(leaves) == len(made) else ():
                    leaf.mul_(2)
            losses = [t.sum() for t in made if t.requires_grad and not t.is_leaf]
            (sum(losses) + sum((leaf * leaf).sum() for leaf in leaves) + weight.sum()).backward()
        found.append((now, facts(made), weight.grad))
    return called, found


@pytest.mark.parametrize("program", [*ONE_GRAPH, *PARTS, *BREAKS], ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], Any], capfd: Any) -> None:
    _, expected = outcomes(program, lambda f: f)
    quickfuse.set_logs(graph_breaks=True)
    try:
        compiled, got = outcomes(program, quickfuse.compile)
    finally:
        quickfuse.set_logs(graph_breaks=False)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    assert not any(s.without_kernels for s in compiled.specialisations)
    if program not in BREAKS:
        assert not compiled.breaks
    if program in ONE_GRAPH:
        assert "stays a call" not in capfd.readouterr().err
