"""Gradients that reach parameters through a tensor that an earlier graph computed: `torch.autograd.grad` after a break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import quickfuse
from seeding import seed_torch


@pytest.mark.parametrize("allow_unused", [False, True])
@pytest.mark.parametrize("also", [False, True])
def test_grad_after_a_break(allow_unused: bool, also: bool) -> None:
    x = torch.randn(5, dtype=torch.float64)
    w, v = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def step() -> tuple[torch.Tensor | None, ...]:
        hidden = torch.tanh(x * w)
        quickfuse.graph_break()
        loss = (hidden * v).square().sum()
        wanted = [w, v, hidden] if also else [w, v]
        return torch.autograd.grad(loss, wanted, allow_unused=allow_unused)

    for ours, eager in zip(quickfuse.compile(step)(), step(), strict=True):
        torch.testing.assert_close(ours, eager)


def test_grad_with_respect_to_what_an_earlier_graph_computed_is_captured() -> None:
    x, w = torch.randn(5), torch.randn(5, requires_grad=True)

    def step() -> torch.Tensor:
        hidden = torch.tanh(x * w)
        quickfuse.graph_break()
        return torch.autograd.grad((hidden * 3).square().sum(), hidden)[0]

    compiled = quickfuse.compile(step)
    torch.testing.assert_close(compiled(), step())
    assert quickfuse.explain(step)().graph_break_count == 1


class Scaled(torch.autograd.Function):
    """A function with gradients of its own, which is a call between two graphs."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(t)
        return t * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (_,) = ctx.saved_tensors
        return gradient * ctx.scale, None


def only_detached(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = Scaled.apply(w, 2.0).sin()
    y.sum().backward()
    return (x.sin() * y.detach(),)


def after_a_detached_function(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    inner = x.detach().requires_grad_()
    y = Scaled.apply(inner, 2.0)
    y.sum().backward()
    assert inner.grad is not None
    return x * y.detach(), inner.grad


def to_what_was_computed(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    t = Scaled.apply(w, 2.0) * x
    return torch.autograd.grad((t * t).sin().sum(), t)


def to_what_was_changed(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    t = Scaled.apply(w, 2.0) * x
    t[0] = 3.0
    (gradient,) = torch.autograd.grad((t * t).sin().sum(), t, create_graph=True)
    return (gradient * t,)


@pytest.mark.parametrize("function", [only_detached, after_a_detached_function, to_what_was_computed, to_what_was_changed])
def test_functions_with_gradients_of_their_own(function: Callable[..., Any]) -> None:
    """Backward of a result visits nothing that it has no gradients to, and autograd sees what results depend on."""
    kept = []
    for called in (function, quickfuse.compile(function)):
        w, x = (torch.linspace(0.5, 2, 5, requires_grad=True) for _ in range(2))
        result = called(w, x)
        if result[0].requires_grad:
            result[0].sum().backward()
        kept.append([*result, w.grad, x.grad])
    for eager, ours in zip(*kept, strict=True):
        torch.testing.assert_close(ours, eager)


def test_hooks_in_front_of_a_checkpoint() -> None:
    """Gradients to hooked tensors, in front of a call that stays one, where what the graph read has changed since: two
    backward passes of a step that moves its parameters in between."""

    def run(compile: Callable[[Any], Any]) -> list[torch.Tensor]:
        seed_torch(0)
        first, second, third = (nn.Linear(4, 4) for _ in range(3))
        trained = [p for m in (first, second, third) for p in m.parameters()]

        def model(x: torch.Tensor) -> torch.Tensor:
            calls = 0

            def shared(gradient: torch.Tensor) -> torch.Tensor:
                nonlocal calls
                calls += 1
                return gradient / calls

            x = first(x)
            left, right = x * 0.5, x.sin()
            left.register_hook(shared)
            right.register_hook(shared)
            x = second(left + right)
            return third(checkpoint(lambda t: t * torch.sigmoid(t), x, use_reentrant=False))

        def step(x: torch.Tensor) -> torch.Tensor:
            for p in trained:
                p.grad = None
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                moves = [0.05 * p.grad for p in trained]
                for p, move in zip(trained, moves, strict=True):
                    p.add_(move)
            (0.1 * model(x).square().mean()).backward()
            with torch.no_grad():
                for p, move in zip(trained, moves, strict=True):
                    p.sub_(move)
            return loss.detach()

        compiled = compile(step)
        losses = [compiled(torch.randn(3, 4)) for _ in range(3)]
        return [*losses, *trained, *[p.grad for p in trained]]

    torch.testing.assert_close(run(quickfuse.compile), run(lambda step: step))
