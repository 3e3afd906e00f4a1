"""Hooks and retained gradients of what is computed before a break: what they see, also when their tensors are gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from own_gradients import Exponential, Square

T = torch.Tensor
Notes = list[T | None]


def retained_where_another_is_asked(v: T, w: T, notes: Notes) -> T:
    other, t = v.sin() + w, w.cos() * 1.5
    t.retain_grad()
    (g,) = torch.autograd.grad(t.sum(), other, create_graph=True, allow_unused=True)
    assert g is None
    (t.sum() + other.sum()).backward()
    notes.append(t.grad)
    return t


def retained_where_an_input_of_another_is_asked(v: T, w: T, notes: Notes) -> T:
    t, other = v.sin(), w.exp() * 2
    quickfuse.graph_break()
    t.retain_grad()
    torch.autograd.grad(t.sum(), w, allow_unused=True)
    notes.append(torch.tensor(t.grad is None))
    (t.sum() + other.sum()).backward()
    notes.append(t.grad)
    return t


def retained_on_the_way(v: T, w: T, notes: Notes) -> T:
    t, other = Exponential.apply(v.sin()), w.sin()
    t.retain_grad()
    u = t.tanh() * w
    quickfuse.graph_break()
    torch.autograd.grad(u.sum(), other, allow_unused=True, retain_graph=True)
    notes.append(t.grad)
    (u.sum() + other.sum()).backward()
    notes.append(t.grad)
    return u


def hooked_and_gone(v: T, w: T, notes: Notes) -> T:
    t = v * w
    u = t.cos() * 1.5
    z = t.tanh() * u
    quickfuse.graph_break()
    t.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad(z.sum(), v, create_graph=True)
    del t
    return (u.tanh() * Square.apply(z)).sum() + g.square().sum()


def hooked_between_two_graphs(v: T, w: T, notes: Notes) -> T:
    t = v * v
    u = v * t
    z = torch.exp(t)
    z.register_hook(lambda g: g * 2)
    (g,) = torch.autograd.grad(z.sum(), t, create_graph=True)
    return g.square().sum() + u.sum()


def hook_that_is_not_linear(v: T, w: T, notes: Notes) -> T:
    t = torch.sigmoid(v)
    z = t * w
    quickfuse.graph_break()
    t.register_hook(lambda g: notes.append(g.detach().clone()))
    t.register_hook(lambda g: g * g.abs())
    (g,) = torch.autograd.grad(z.sum(), [v], create_graph=True)
    total = z.sin().sum() + g.square().sum()
    del t, z, g
    (s,) = torch.autograd.grad(total, [v], create_graph=True)
    return total + s.square().sum()


def hook_that_is_removed(v: T, w: T, notes: Notes) -> T:
    t = torch.tanh(v * w)
    quickfuse.graph_break()
    handle = t.register_hook(lambda g: g * 3)
    (g,) = torch.autograd.grad(t.sum(), v, create_graph=True)
    handle.remove()
    del t
    return g.square().sum()


def graph_that_is_not_retained(v: T, w: T, notes: Notes) -> T:
    t = torch.tanh(v * w)
    u = t.exp() * w
    quickfuse.graph_break()
    t.register_hook(lambda g: g * 2)
    del t
    u.sum().backward(create_graph=True, retain_graph=False)
    assert v.grad is not None
    total = v.grad.square().sum()
    v.grad = w.grad = None
    return total


PROGRAMS = [
    retained_where_another_is_asked, retained_where_an_input_of_another_is_asked, retained_on_the_way,
    hooked_and_gone, hooked_between_two_graphs, hook_that_is_not_linear, hook_that_is_removed, graph_that_is_not_retained,
]  # fmt: skip


def outcome(function: Callable[..., Any]) -> list[Any]:
    v, w = (torch.linspace(begin, 1.5, 5, dtype=torch.float64).requires_grad_() for begin in (-1, 0.5))
    notes: Notes = []
    found: list[Any] = []
    for _ in range(3):
        try:
            made = function(v, w, notes)
            made.sum().backward()
            found.append(made.detach())
        except RuntimeError as error:
            found.append(torch.tensor(len(str(error).split("freed")) > 1))
    return [*found, v.grad, w.grad, *notes]


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[..., Any]) -> None:
    torch.testing.assert_close(outcome(quickfuse.compile(program)), outcome(program), rtol=1e-9, atol=1e-11)


def test_where_hooks_of_saved_tensors_are_forbidden() -> None:
    def run(function: Callable[..., Any]) -> list[Any]:
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            return outcome(function)

    torch.testing.assert_close(run(quickfuse.compile(retained_on_the_way)), run(retained_on_the_way))


def test_results_are_let_go_of() -> None:
    """The nodes of results keep the way to these, not their memory."""
    import weakref

    storages: list[Any] = []

    def program(x: T) -> T:
        t = x * 2
        u = t + 1
        quickfuse.graph_break()
        t.register_hook(lambda g: g * 3)
        storages.append(weakref.ref(t.untyped_storage()))
        return u * 1.5

    x = torch.randn(5, requires_grad=True)
    y = quickfuse.compile(program)(x)
    assert storages[0]() is None
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 9.0))
