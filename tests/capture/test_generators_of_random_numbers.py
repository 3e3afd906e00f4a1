"""Graphs that draw from generators of the program's: the draws are calls between kernels, in the program's order, and a
generator is in the state afterwards that eager leaves it in, also where a graph fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from operator_cases import breaks

T = torch.Tensor
G = torch.Generator


def new_tensors(x: T, w: T, g: G) -> T:
    noise = torch.randn(3, 4, generator=g) + torch.rand(4, generator=g, dtype=torch.float64).float()
    order = torch.randperm(3, generator=g)
    picked = torch.randint(0, 3, (5,), generator=g)
    return (x[order] * 2 + noise).sin()[picked]


def of_tensors(x: T, w: T, g: G) -> T:
    chosen = torch.multinomial(x.abs() + 0.1, 2, generator=g)
    mask = torch.bernoulli(x.sigmoid(), generator=g)
    normal = torch.normal(x, x.exp(), generator=g)
    return x.gather(1, chosen).sum() * mask + normal


def in_place(x: T, w: T, g: G) -> T:
    noise = torch.empty_like(x).normal_(0, 2, generator=g) + torch.zeros(4, 3).t().uniform_(1, 2, generator=g)
    x = (x * 2).exponential_(generator=g) + torch.empty(3, 4).random_(5, generator=g)
    return x * noise + torch.zeros(4, 3).t().bernoulli_(0.5, generator=g)


def an_argument(x: T, w: T, g: G) -> T:
    x.normal_(generator=g)
    return x * 2 + 1


def with_pytorchs_own(x: T, w: T, g: G) -> T:
    y = F.dropout(x, 0.5) + torch.rand(4, generator=g)
    return y * torch.rand(4) + torch.rand(4, generator=torch.default_generator) + torch.rand(4, generator=g)


def of_weights(x: T, w: T, g: G) -> T:
    noise = torch.randn(x.shape, generator=g)
    mask = torch.zeros(4, 3).t().bernoulli_(0.5, generator=g)
    hidden = ((x + noise) @ w).tanh() * 2
    return hidden * torch.empty(3, 4).bernoulli_(0.7, generator=g) * mask + torch.normal(0.0, 1.0, (4,), generator=g)


def a_step(x: T, w: T, g: G) -> T:
    w.grad = None
    noise = torch.randn(x.shape, generator=g)
    loss = ((x + noise) @ w).square().mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad + 0.01 * torch.randn(w.shape, generator=g)
    return loss.detach()


def two(x: T, w: T, gs: Any) -> T:
    first, second = gs
    return torch.rand(4, generator=first) + x * torch.rand(4, generator=second) - torch.rand(4, generator=first)


def behind_a_break(x: T, w: T, g: G) -> T:
    x = x + torch.rand(4, generator=g)
    if x.sum() > 6:
        x = x * torch.rand(4, generator=g)
    return (x * w).sin() + torch.rand(4, generator=g)


PROGRAMS = [new_tensors, of_tensors, in_place, an_argument, with_pytorchs_own, of_weights, a_step, two, behind_a_break]


@pytest.mark.parametrize("function", PROGRAMS)
def test_as_in_eager(function: Callable[..., Any]) -> None:
    reasons: list[str] = []
    runs = []
    compiled = quickfuse.compile(function)
    for called in (function, compiled):
        torch.manual_seed(3)
        generators = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
        w, run = torch.randn(4, 4).requires_grad_(function in (of_weights, a_step, behind_a_break)), []
        w = w[:3].detach().requires_grad_() if function is behind_a_break else w
        with breaks(reasons):
            for _ in range(4):
                x = torch.randn(3, 4)
                result = called(x, w, generators if function is two else generators[0])
                if result.requires_grad:
                    result.sum().backward()
                run.append((result.detach(), x, w.detach().clone(), w.grad, torch.get_rng_state()))
                run.append([g.get_state() for g in generators])
        runs.append(run)
    torch.testing.assert_close(runs[1], runs[0])
    assert not any("operator by operator" in reason or "stays a call" in reason for reason in reasons)
    assert compiled.graph_count == (1 if function not in (behind_a_break, a_step) else compiled.graph_count)


def fails_in_a_kernel(x: T, limit: float, state: T, g: G) -> T:
    y = x * torch.rand(3, generator=g)
    assert y.abs().max() < limit
    return y * torch.rand(3, generator=g)


def fails_behind_a_change(x: T, limit: float, state: T, g: G) -> T:
    state.add_(torch.rand(3, generator=g))
    if (state > limit).any():
        raise ValueError("large")
    return x + torch.rand(3, generator=g)


def an_index(x: T, limit: float, state: T, g: G) -> T:
    number = torch.rand(3, generator=g)
    try:
        state.mul_(2)
        x = x + torch.arange(3)[(torch.rand(3, generator=g) * limit).long()]
    except IndexError as error:
        x = x * 2 + len(str(error))
    return x + number + torch.rand(3, generator=g)


def an_operator(x: T, limit: float, state: T, g: G) -> T:
    y = x * torch.rand(3, generator=g)
    state.add_(y.detach())
    return y * torch.linalg.inv(torch.eye(3) * (limit > 1)).sum(0) * torch.rand(3, generator=g)


def an_empty_choice(x: T, limit: float, state: T, g: G) -> T:
    y = x * torch.rand(3, generator=g)
    return y * torch.multinomial(torch.full((3,), limit - 1).clamp(min=0), 3, generator=g)


@pytest.mark.parametrize("backend", ["quickfuse", "eager"])
@pytest.mark.parametrize(
    "function", [fails_in_a_kernel, fails_behind_a_change, an_index, an_operator, an_empty_choice]
)
def test_failing(function: Callable[..., Any], backend: str) -> None:
    runs = []
    for called in (function, quickfuse.compile(function, backend=backend)):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(5)
        state, run = torch.zeros(3), []
        for call, limit in enumerate((9.0, 0.1, 9.0, 0.1, 1.5, 9.5, 0.5, 0.5, 30.0)):
            x = torch.randn(3).requires_grad_(call % 2 == 0 or call == 3)
            try:
                result: Any = called(x, limit, state, generator)
                if result.requires_grad:
                    result.sum().backward()
            except Exception as error:
                result = repr(type(error))
            run.append((result, x.grad, generator.get_state(), torch.get_rng_state(), state.clone(), state._version))
        runs.append(run)
    for got, wanted in zip(runs[1], runs[0], strict=True):
        assert str(got) == str(wanted) or isinstance(wanted[0], T)
        if isinstance(wanted[0], T):
            torch.testing.assert_close(got, wanted)


def test_second_derivatives_draw_again_what_forward_drew() -> None:
    runs = []
    for run in (of_weights, quickfuse.compile(of_weights)):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(5)
        x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
        result = run(x, w, generator)
        drawn = torch.rand(3, generator=generator)
        (gradient,) = torch.autograd.grad(result.sum(), w, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), w)
        runs.append([result, drawn, gradient, second, generator.get_state(), torch.get_rng_state()])
    torch.testing.assert_close(runs[1], runs[0])


def test_other_generators() -> None:
    def step(x: T, g: G | None) -> T:
        return x * 2 + torch.rand(4, generator=g)

    compiled = quickfuse.compile(step)
    mine, other = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    for generator in (mine, other, None, mine, torch.default_generator, torch.Generator()):
        torch.manual_seed(0)
        state = generator.get_state() if generator is not None else None
        expected = step(torch.ones(4), generator)
        torch.manual_seed(0)
        if generator is not None:
            generator.set_state(state)
        torch.testing.assert_close(compiled(torch.ones(4), generator), expected)
    assert compiled.graph_count == 2


def test_what_is_not_drawn_from_a_generator() -> None:
    """Where an operator refuses the generator of another device, so does a compiled function, and nothing was drawn."""

    def wrong(x: T, g: Any) -> T:
        return x * 2 + torch.rand(4, generator=g)

    with pytest.raises(TypeError):
        quickfuse.compile(wrong)(torch.ones(4), 3)
