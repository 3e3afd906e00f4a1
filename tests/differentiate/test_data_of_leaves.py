"""Leaves made inside that get other memory (`delta.data = ...`), as in attacks, and parameters made inside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import quickfuse
from differential import same

T = torch.Tensor
Program = Callable[[nn.Module, T], Any]


def attacked(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        mse_loss(model(x + delta), x).backward()
        delta.data = (delta + 0.1 * delta.grad.detach().sign()).clamp(-0.2, 0.2)
        delta.grad.zero_()
    return delta.detach()


def begun_at_random(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x)
    delta.uniform_(-0.1, 0.1)
    delta.requires_grad = True
    delta.data = delta.data.clamp(-0.05, 0.05)
    for _ in range(2):
        mse_loss(model(x + delta), x).backward()
        delta.data = torch.clamp(delta + 0.1 * torch.sign(delta.grad), -0.2, 0.2)
        delta.data[:2] = torch.max(torch.min(1 - x, delta.data), 0 - x)[:2]
        delta.grad = None
    return delta


def by_its_gradient(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(2):
        (g,) = torch.autograd.grad(mse_loss(model(x + delta), x), delta)
        delta.data = delta.data + 0.1 * g.sign()
    return model(x + delta.detach()).sum()


def differentiated_later(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    loss = (delta * x).exp().sum()
    delta.data = x * 2
    (delta * 3).sum().backward()
    loss.backward()
    return delta.grad, delta


def asked_later(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    loss = (delta + x).exp().sum()
    delta.data = x * 2
    return torch.autograd.grad(loss, delta)


def returned_before(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    loss = (delta * x).exp().sum()
    delta.data = x * 2
    return loss, delta


def returned_behind(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    (delta * x).exp().sum().backward()
    delta.data = x * 2
    return (delta * model(x)).sum(), delta


def seen_before(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    row = delta[0]
    delta.data = x * 2
    (delta * x).sum().backward()
    return row * 2, delta.grad


def in_shared_memory(model: nn.Module, x: T) -> Any:
    delta, other = torch.zeros_like(x, requires_grad=True), x * 2
    delta.data = other
    (delta.square() * x).sum().backward()
    other.add_(1)
    return delta.grad, delta.detach() * 2, other


def of_a_weight(model: nn.Module, x: T) -> Any:
    delta = torch.zeros(3, 3, requires_grad=True)
    delta.data = model[0].weight.data
    (delta.square() * x[:3]).sum().backward()
    delta.data.mul_(0.9)
    return delta.grad


def with_a_hook(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    delta.register_hook(lambda g: g * 2)
    (delta * x).sum().backward()
    delta.data = x * 2
    (delta * x).square().sum().backward()
    return delta.grad


def without_grad_mode(model: nn.Module, x: T) -> Any:
    delta = torch.zeros_like(x, requires_grad=True)
    with torch.no_grad():
        delta.data = x * 2
        kept = delta * 2
    (delta * x).square().sum().backward()
    return delta.grad, kept, delta.requires_grad, delta.is_leaf


def of_what_was_computed(model: nn.Module, x: T) -> Any:
    y = model(x)
    y.data = x * 2
    return y.square().sum()


def parameter(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(torch.zeros(3))
    mse_loss(model(x + p), x).backward()
    return p.grad, isinstance(p, nn.Parameter), type(p).__name__


def parameter_returned(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(x[0])
    fixed = nn.Parameter(x[1:3] * 2, requires_grad=False)
    mse_loss(model(x + p), x).backward()
    return p, fixed, {"again": p}["again"], fixed * 2


def parameter_trained(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(x.clone())
    for _ in range(3):
        mse_loss(model(p), x * 0.5).backward()
        with torch.no_grad():
            p -= 0.1 * p.grad
            p.grad = None
    return p


def parameter_with_an_optimizer(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(x.clone())
    optimizer = torch.optim.SGD([p], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        mse_loss(model(p), x * 0.5).backward()
        optimizer.step()
    return p.detach()


def parameter_kept(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(torch.ones(3))
    return (model(x) * p).sum(), p


def parameter_over_a_break(model: nn.Module, x: T) -> Any:
    p = nn.Parameter(torch.ones(3))
    loss = (model(x) * p).sum()
    quickfuse.graph_break()
    loss.backward()
    return p.grad


def parameter_of_a_tensor(model: nn.Module, x: T) -> Any:
    y = x * 2
    p = nn.Parameter(y, False)
    y.add_(1)
    return p, y, p * 3, nn.Parameter(model[0].weight) * 2


def module_made_inside(model: nn.Module, x: T) -> Any:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.bias.copy_(x[0, :2])
    return layer(x).sum()


ONE_GRAPH = [
    parameter, parameter_returned, parameter_trained,
    attacked, begun_at_random, by_its_gradient, in_shared_memory, of_a_weight,
    without_grad_mode,
]  # fmt: skip
PROGRAMS = [
    *ONE_GRAPH, differentiated_later, asked_later, returned_before, returned_behind, seen_before, with_a_hook,
    of_what_was_computed, parameter_with_an_optimizer, parameter_kept, parameter_over_a_break, parameter_of_a_tensor,
    module_made_inside,
]  # fmt: skip


def optimised(model: nn.Module, x: T) -> Any:
    """As where a latent vector is optimised, and its losses are shown."""
    z, losses = x.clone().requires_grad_(), []
    for _ in range(3):
        loss = mse_loss(model(z), x * 0.5)
        loss.backward()
        z.data -= 0.1 * z.grad
        z.grad.zero_()
        losses.append(loss)
    return [*losses, z]


def used_up_in_part(model: nn.Module, x: T) -> Any:
    z = torch.zeros_like(x, requires_grad=True)
    loss = mse_loss(model(x + z), x)
    total = loss + z.sum()
    loss.backward()
    z.data += z.grad
    return [loss, total]


def not_used_up(model: nn.Module, x: T) -> Any:
    """No operator of the loss has saved anything."""
    z = torch.zeros_like(x, requires_grad=True)
    loss = (x + z).sum() + model[0].bias.sum()
    loss.backward()
    z.data += z.grad
    return [loss, z]


def kept_for_more(model: nn.Module, x: T) -> Any:
    z = torch.zeros_like(x, requires_grad=True)
    loss = mse_loss(model(x + z), x)
    loss.backward(retain_graph=True)
    z.data += z.grad
    return [loss]


def of_frozen_weights(model: nn.Module, x: T) -> Any:
    weight = model[0].weight.detach()
    z = torch.zeros_like(x, requires_grad=True)
    loss = mse_loss((x + z) @ weight, x)
    loss.backward()
    z.data += z.grad
    return [loss, z.detach() * 2]


@pytest.mark.parametrize("program", [optimised, used_up_in_part, not_used_up, kept_for_more, of_frozen_weights])
def test_losses_after_backward(program: Program) -> None:
    found: list[Any] = []
    for compile_ in (lambda f: f, quickfuse.compile):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        called = compile_(program)
        for which in range(3):
            torch.manual_seed(which)
            results = called(model, torch.randn(4, 3))
            told: list[Any] = [(r.requires_grad, r.is_leaf, r.grad_fn is None) for r in results]
            try:
                results[which % len(results)].sum().backward()
            except RuntimeError as error:
                told.append(str(error)[:60])
            leaves = [r.grad for r in results if r.is_leaf]
            found.append((results, told, leaves, [None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    assert same(found[:3], found[3:], rtol=1e-5, atol=1e-6), f"{found[:3]}\n{found[3:]}"
    if program is optimised:
        assert not called.breaks and not any(s.without_kernels for s in called.specialisations)


def outcomes(program: Program, compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    called, found = compile_(program), []
    for k in range(3):
        torch.manual_seed(k)
        model.zero_grad()
        made = called(model, torch.randn(4, 3))
        results = [made] if isinstance(made, T) else [*made]
        told = [(type(r), r.requires_grad, r.is_leaf) for r in results if isinstance(r, T)]
        loss = sum([r.sum() for r in results if isinstance(r, T) and r.requires_grad], torch.zeros(()))
        if loss.requires_grad:
            loss.backward()
        leaves = [r.grad for r in results if isinstance(r, T) and r.is_leaf]
        weights = [(p.grad, p.detach().clone()) for p in model.parameters()]
        found.append((results, told, leaves, [[a is b for b in results] for a in results], weights))
    return called, found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Program) -> None:
    _, expected = outcomes(program, lambda f: f)
    _, got = outcomes(program, quickfuse.compile)
    assert same(expected, got, rtol=1e-5, atol=1e-6), f"{expected}\n{got}"


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda program: program.__name__)
def test_one_graph(program: Program) -> None:
    compiled, _ = outcomes(program, quickfuse.compile)
    assert compiled.graph_count == 1
    assert not any(s.without_kernels for s in compiled.specialisations)
