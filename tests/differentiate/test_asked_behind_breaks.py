"""Hooks and retained gradients of what a graph has computed on the way, after it: the graph is
compiled in parts, between which PyTorch knows how its results depend on each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differential import same

T = torch.Tensor
#: Gradients that hooks saw.
seen: list[T] = []


def halved(grad: T) -> T:
    seen.append(grad.detach().clone())
    return 0.5 * grad


def layer(x: T, w: T) -> T:
    return ((x @ w).sin() + w).tanh()


def hooked(x: T, w: T) -> T:
    h = layer(x, w)
    z = layer(h, w)
    h.register_hook(halved)
    return (z * 2).cos()


def retained(x: T, w: T) -> T:
    h = layer(x, w)
    z = layer(h, w)
    h.retain_grad()
    loss = (z * w).cos().sum()
    loss.backward()
    seen.append(h.grad)
    return loss.detach()


def two_of_them(x: T, w: T) -> T:
    h = layer(x, w)
    z = layer(h, w).exp()
    out = layer(z, w) + h
    z.register_hook(halved)
    h.register_hook(halved)
    return out * w


def in_a_loop(x: T, w: T) -> T:
    found = []
    for _ in range(3):
        x = layer(x, w)
        found.append(x)
    for h in found:
        h.register_hook(halved)
    return (x * w).cos()


def one_of_several(x: T, w: T) -> T:
    a, b = layer(x, w).split([1, 2])
    z = layer(a, w).sum()
    a.register_hook(halved)
    return z.cos() + b.sum()


def changed_before(x: T, w: T) -> T:
    h = (x * w).sin()
    h.mul_(2)
    z = layer(h, w)
    h.register_hook(halved)
    return z.cos()


def with_random_numbers(x: T, w: T) -> T:
    h = F.dropout(layer(x, w), 0.5)
    z = layer(h, w)
    h.register_hook(halved)
    return z.cos()


PROGRAMS = [hooked, retained, two_of_them, in_a_loop, one_of_several, changed_before, with_random_numbers]


def outcomes(program: Callable[[T, T], T], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    """What calls give, one of them by second derivatives, which flow through what operators keep of their results."""
    torch.manual_seed(0)
    weight = torch.randn(3, 3, requires_grad=True, dtype=torch.float64)
    called, found = compile_(program), []
    for k in range(4):
        weight.grad = None
        seen.clear()
        made = called(torch.randn(3, 3, dtype=torch.float64), weight)
        if made.requires_grad:
            loss = made.sum()
            if k == 2:
                (first,) = torch.autograd.grad(loss, weight, create_graph=True)
                loss = first.square().sum()
            loss.backward()
        found.append((made, weight.grad, [*seen]))
    return called, found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], T]) -> None:
    _, expected = outcomes(program, lambda f: f)
    compiled, got = outcomes(program, quickfuse.compile)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    assert not any(s.without_kernels for s in compiled.specialisations)
