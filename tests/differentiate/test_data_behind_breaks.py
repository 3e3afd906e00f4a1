"""What is changed through `data` after a break: autograd does not notice it, and has saved that very tensor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import quickfuse
from own_gradients import Square

T = torch.Tensor


def behind_a_function(v: T, w: T) -> T:
    t = (v + 1).sin_()
    y = Square.apply(t.sin())
    quickfuse.graph_break()
    t.data.mul_(1.1)
    return y


def in_front_of_a_function(v: T, w: T) -> T:
    t = v.sin()
    y = Square.apply(t) * 2
    quickfuse.graph_break()
    part = t.data
    part[:2] = 3
    return y


def without_a_function(v: T, w: T) -> T:
    t = v * 2
    y = t.sin().square()
    quickfuse.graph_break()
    t.data.copy_(t.data * 2)
    return y


def of_a_result(v: T, w: T) -> T:
    y = (v * 2).exp()
    quickfuse.graph_break()
    y.data.mul_(1.1)
    return y * w


def of_a_view(v: T, w: T) -> T:
    t = v.exp()[:3]
    y = t.exp() + Square.apply(t)
    quickfuse.graph_break()
    t.data.add_(1)
    return y.sin()


def of_an_input(v: T, w: T) -> T:
    y = Square.apply(v * 2) * w
    quickfuse.graph_break()
    w.data.mul_(1.1)
    return y


def of_what_two_graphs_use(v: T, w: T) -> T:
    t = v.sin()
    quickfuse.graph_break()
    y = (t * w).tanh() * t
    quickfuse.graph_break()
    t.data.mul_(1.1)
    return y


def in_a_list(v: T, w: T) -> T:
    made = [v.sin(), v.cos()]
    y = [t.tanh() * w for t in made]
    quickfuse.graph_break()
    for t in made:
        t.data.mul_(1.1)
    return y[0] * y[1]


def let_go_of(v: T, w: T) -> T:
    t = v.sin()
    y = t.exp() * w
    quickfuse.graph_break()
    t.data.mul_(1.1)
    del t
    return y


def gradients(y: T, v: T, w: T) -> None:
    y.sum().backward()


def twice(y: T, v: T, w: T) -> None:
    y.sum().backward(retain_graph=True)
    y.sum().backward()


def penalty(y: T, v: T, w: T) -> None:
    (gradient,) = torch.autograd.grad(y.sum(), v, create_graph=True)
    (gradient.square().sum() + y.sum()).backward()


PROGRAMS = [
    behind_a_function, in_front_of_a_function, without_a_function, of_a_result, of_a_view, of_an_input,
    of_what_two_graphs_use, in_a_list, let_go_of,
]  # fmt: skip


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("take", [gradients, twice, penalty])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program: Callable[..., T], take: Callable[..., None], inside: bool) -> None:
    def step(v: T, w: T) -> T:
        y = program(v, w)
        if inside:
            take(y, v, w)
        return y

    found = []
    for function in (step, quickfuse.compile(step)):
        v, w = (torch.linspace(begin, 2, 5, dtype=torch.float64).requires_grad_() for begin in (-1, 0.5))
        for _ in range(2):
            y = function(v, w) if program is not of_a_view else function(v, w[:3])
            if not inside:
                take(y, v, w)
        found.append([y, v, w, v.grad, w.grad])
    torch.testing.assert_close(found[1], found[0])


def test_what_is_changed_besides_is_refused() -> None:
    @quickfuse.compile
    def step(v: T) -> T:
        t = v.sin()
        y = t.square()
        quickfuse.graph_break()
        t.data.mul_(1.1)
        with torch.no_grad():
            t.mul_(2)
        return y

    y = step(torch.ones(3, requires_grad=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_apart() -> None:
    """Each is differentiated for itself, and the first backward lets go of nothing that the second needs."""

    def step(v: T, w: T) -> tuple[T, T]:
        t, s = v.sin(), w.cos()
        y, z = t.tanh() * t, s.exp() * s
        quickfuse.graph_break()
        t.data.mul_(1.1)
        s.data.mul_(0.9)
        return y, z

    found = []
    for function in (step, quickfuse.compile(step)):
        v, w = (torch.linspace(begin, 2, 5, dtype=torch.float64).requires_grad_() for begin in (-1, 0.5))
        y, z = function(v, w)
        y.sum().backward()
        z.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            z.sum().backward()
        found.append([y, z, v.grad, w.grad])
    torch.testing.assert_close(found[1], found[0])


def a_hook(v: T, w: T) -> T:
    t = v * w
    y = t.square()
    t.data.mul_(1.1)
    y.register_hook(lambda gradient: None)
    return y


def a_hook_of_a_function(v: T, w: T) -> T:
    t = v.sin()
    y = Square.apply(t) * w
    t.data.mul_(1.1)
    y.register_hook(lambda gradient: gradient * 2)
    return y


def a_hook_between(v: T, w: T) -> T:
    t = v.sin()
    y = t.exp() * t
    y.register_hook(lambda gradient: gradient.clamp(-0.5, 0.5))
    t.data[0] = 2.0
    return y * w


@pytest.mark.parametrize("program", [a_hook, a_hook_of_a_function, a_hook_between])
def test_in_a_graph_with_hooks(program: Callable[..., T]) -> None:
    """A graph that would be compiled in parts runs operator by operator."""

    def step(v: T, w: T) -> T:
        y = program(v, w)
        y.sum().backward()
        return y.detach()

    found = []
    for function in (step, quickfuse.compile(step)):
        v, w = (torch.linspace(begin, 2, 5, dtype=torch.float64).requires_grad_() for begin in (-1, 0.5))
        found.append([function(v, w), v.grad, w.grad])
    torch.testing.assert_close(found[1], found[0])
