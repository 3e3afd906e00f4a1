"""Leaves that a graph makes, in attacks, penalties on gradients and views made without gradients: kernels compute what uses
them, where they do not outlive the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import quickfuse
from differential import same

Step = Callable[[nn.Module, torch.Tensor], Any]


def one_step(model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    x = x.clone().requires_grad_()
    model(x).square().sum().backward()
    return x.detach() + 0.1 * x.grad.sign()


def several_steps(model: nn.Module, x: torch.Tensor) -> Any:
    d = torch.zeros_like(x).uniform_(-0.1, 0.1).requires_grad_()
    for _ in range(3):
        (g,) = torch.autograd.grad(model(x + d).square().sum(), d)
        d = (d + 0.1 * g.sign()).clamp(-0.1, 0.1).detach().requires_grad_()
    model.zero_grad()
    loss = model(x + d.detach()).square().sum()
    loss.backward()
    return loss.detach()


def of_a_gradient(model: nn.Module, x: torch.Tensor) -> Any:
    model.zero_grad()
    model(x).sum().backward()
    g = model.weight.grad.clone().requires_grad_()
    (g * g).sum().backward()
    return g.grad + 0


def returned(model: nn.Module, x: torch.Tensor) -> Any:
    d = torch.zeros_like(x, requires_grad=True)
    model(x + d).square().sum().backward()
    return d, d.grad


def in_a_list(model: nn.Module, x: torch.Tensor) -> Any:
    d, e = (x * 2).detach().requires_grad_(), (x * 3).detach().requires_grad_()
    model(d + e).square().sum().backward()
    return [d], e.grad.sum()


def with_results_that_depend_on_it(model: nn.Module, x: torch.Tensor) -> Any:
    d = (x * 2).detach().requires_grad_()
    y = model(d)
    y.sum().backward(retain_graph=True)
    return y, d


def a_force(model: nn.Module, x: torch.Tensor) -> Any:
    x = x.detach().clone()
    x.requires_grad_(True)
    energy = model(x).square().sum()
    return energy, -torch.autograd.grad(energy, x, create_graph=True)[0]


def results(step: Step, compile_: Callable[[Any], Any]) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    called = compile_(lambda x: step(model, x))
    found = []
    for _ in range(4):
        made = called(torch.randn(4, 3))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and tensor.grad_fn is not None:
                tensor.sum().backward(retain_graph=True)
        found.append((made, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
        if isinstance(made, tuple) and made[-1] is not None and made[-1].requires_grad:
            found.append((None if made[-1].grad is None else made[-1].grad.clone(), []))
    return called, found


@pytest.mark.parametrize("step", [one_step, several_steps, of_a_gradient], ids=lambda step: step.__name__)
def test_kernels(step: Step) -> None:
    _, expected = results(step, lambda f: f)
    compiled, got = results(step, lambda f: quickfuse.compile(f, fullgraph=True))
    assert same(expected, got, rtol=1e-5, atol=1e-6)
    assert not any(s.without_kernels for s in compiled.specialisations)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize(
    "step", [returned, in_a_list, with_results_that_depend_on_it, a_force], ids=lambda step: step.__name__
)
def test_leaves_that_outlive_the_graph(step: Step) -> None:
    _, expected = results(step, lambda f: f)
    _, got = results(step, lambda f: quickfuse.compile(f, fullgraph=True))
    assert same(expected, got, rtol=1e-5, atol=1e-6), f"{expected}\n{got}"


# --- whose gradients are taken inside, or which nobody asks for ---


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


MADE: dict[str, Callable[[T], Any]] = {
    "of a detached one": lambda x: [x.sin().detach().requires_grad_(), x * 3],
    "of a result": lambda x: [(x * 1).detach().requires_grad_(), x],
    "at once": lambda x: [torch.zeros(3, requires_grad=True), x * 2],
    "alone": lambda x: x.clone().detach().requires_grad_(),
    "of what is cloned": lambda x: [x.detach().clone().requires_grad_(True), x],
}


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_leaves_made_without_grad_mode(name: str, needs: bool) -> None:
    compiled = quickfuse.compile(MADE[name])
    for grad in (False, True, False):
        found = []
        for function in (MADE[name], compiled):
            with torch.set_grad_enabled(grad):
                results = function(torch.ones(3, requires_grad=needs))
            found.append([(t.requires_grad, t.is_leaf) for t in (results if isinstance(results, list) else [results])])
        assert found[1] == found[0]


def test_a_leaf_that_nobody_uses() -> None:
    """It shares memory with a result, which needs no gradients for that."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        y.detach().requires_grad_()
        return y

    x = torch.randn(3)
    result = quickfuse.compile(function)(x)
    assert not result.requires_grad
    torch.testing.assert_close(result, function(x))
