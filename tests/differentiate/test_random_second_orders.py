"""Gradients of gradients with hooks of results, also across breaks: some programs of `random_second_orders.py`, and those
that once differed."""

from typing import Any

import pytest
import torch

import quickfuse
from differentiate.random_second_orders import differs

_ONCE_WRONG = [73000050, 73000083, 75000096, 75001866, 75003957, 75004422, 75101075]


@pytest.mark.parametrize("seed", [*range(40), *_ONCE_WRONG])
def test_random_second_orders(seed: int) -> None:
    assert not differs(seed, data=False)


def _clamped(gradient: Any) -> Any:
    return gradient.clamp(-0.5, 0.5)


def _saved_result(w: Any) -> Any:
    t = (w * 0.5).exp()
    quickfuse.graph_break()
    t.register_hook(_clamped)
    (g,) = torch.autograd.grad(t.sum(), w, create_graph=True)
    (t.sum() + g.square().sum()).backward()
    return t


def _saved_operand(w: Any) -> Any:
    t = (w * 0.5).exp()
    u = t.sin()
    quickfuse.graph_break()
    t.register_hook(_clamped)
    (g,) = torch.autograd.grad(u.sum(), w, create_graph=True)
    (t.sum() + g.square().sum()).backward()
    return t


def _of_infinity(w: Any) -> Any:
    """What does not flow on from a result with a hook is nothing, and not zero times infinity."""
    t = (w * 0.5).sqrt()
    quickfuse.graph_break()
    t.register_hook(lambda gradient: gradient * 2)
    (g,) = torch.autograd.grad(t[1:].sum(), w, create_graph=True)
    (t[1:].sum() + g[1:].square().sum()).backward()
    return t


def _third_order(w: Any) -> Any:
    t = (w * 0.5).exp()
    quickfuse.graph_break()
    t.register_hook(lambda gradient: gradient * 1.5)
    (g,) = torch.autograd.grad(t.sum(), w, create_graph=True)
    (h,) = torch.autograd.grad(g.square().sum(), w, create_graph=True)
    (t.sum() + h.square().sum()).backward()
    return t


def _other_results(w: Any) -> Any:
    t, u = (w * 0.5).exp(), w.sin()
    quickfuse.graph_break()
    t.register_hook(_clamped)
    (g,) = torch.autograd.grad((t * u).sum(), w, create_graph=True)
    (t.sum() + u.sum() + g.square().sum()).backward()
    return t


def _retained(w: Any) -> Any:
    t, u = (w * 0.5).exp(), w.sin()
    quickfuse.graph_break()
    t.retain_grad()
    (g,) = torch.autograd.grad((t * u).sum(), w, create_graph=True)
    (t.sum() + u.sum() + g.square().sum()).backward()
    return t.grad


_PROGRAMS = [_saved_result, _saved_operand, _of_infinity, _third_order, _other_results, _retained]


@pytest.mark.parametrize("function", _PROGRAMS)
def test_a_hook_sees_what_second_derivatives_add(function: Any) -> None:
    results = []
    for called in (function, quickfuse.compile(function)):
        w = torch.linspace(0, 1.5, 4, dtype=torch.float64).requires_grad_()
        with torch.autograd.set_multithreading_enabled(False):
            found = [called(w).detach() for _ in range(2)]
        results.append([*found, w.grad])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12, equal_nan=True)
