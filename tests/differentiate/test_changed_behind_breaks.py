"""Changes in place, behind a break, of what was computed before it and has gradients: such a change stays a call of
PyTorch's between graphs, as it changes what autograd knows of the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from differential import same

T = torch.Tensor


def activation(y: T, w: T) -> Any:
    return F.relu(y, inplace=True).mul(w).sin()


def residual(y: T, w: T) -> Any:
    other = (w * 2).exp()
    y += other
    return (y * w).tanh(), y


def assigned(y: T, w: T) -> Any:
    y[0] = 1.5
    y[1:, 0] = w[0, 0]
    return y.exp() * w


def several_times(y: T, w: T) -> Any:
    y.mul_(2).add_(w)
    z = y * w
    y.clamp_(-1, 1)
    return z.sum() + y.exp().sum()


def in_a_loop(y: T, w: T) -> Any:
    for _ in range(3):
        y.add_(w.sin())
    return y.exp()


def read_before(y: T, w: T) -> Any:
    z = y + w
    y.mul_(3)
    return z.exp() + y


def needed_before(y: T, w: T) -> Any:
    z = y * w
    y.mul_(3)
    return z.exp() + y


def seen_before(y: T, w: T) -> Any:
    row = y[0]
    y.add_(w)
    return row.exp(), (y * 2).sin()


def by_a_view(y: T, w: T) -> Any:
    y[0].mul_(2)
    y.view(-1)[1:4].add_(w[0])
    return y.exp() * 2


def a_part(y: T, w: T) -> Any:
    y[:, :2] += w[:, 1:]
    y[1] = w[0] * 2
    y.t()[0].mul_(3)
    return (y * w).exp()


def a_part_read_before(y: T, w: T) -> Any:
    row = y[0]
    z = row * w
    row.mul_(2)
    return z.sum() + (y * w).exp()


def masked(y: T, w: T) -> Any:
    y.masked_fill_(y.detach() > 0, 0.5)
    return (y * w).exp()


def without_history(y: T, w: T) -> Any:
    with torch.no_grad():
        y.add_(1)
    y.mul_(w)
    return y.sin().exp()


def replaced(y: T, w: T) -> Any:
    y.copy_(w * 2)
    return y.sin().exp(), y


def refused(y: T, w: T) -> Any:
    y.add_(w[:, :2].contiguous())
    return y.sin()


def with_random_numbers(y: T, w: T) -> Any:
    F.dropout(y, 0.5, inplace=True)
    return (y * w).exp()


def stepped(y: T, w: T) -> Any:
    y.add_(1)
    loss = (y * w).sin().sum()
    loss.backward()
    return loss.detach()


def centered(y: T, w: T) -> Any:
    y.mul_(2.0).sub_(y.mean())
    return (y * w).exp()


def gated_by_itself(y: T, w: T) -> Any:
    other = (w * 2).exp()
    y *= (y + w).sigmoid()
    return (y * other).sin()


class Halved(torch.autograd.Function):
    """Gradients that are not the function's own."""

    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: T) -> T:
        return 0.5 * grad


def behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    z += 0.1
    return (z * w).exp()


def a_part_behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    z[0].mul_(2)
    return (z * w).exp()


def read_behind_own_gradients(y: T, w: T) -> Any:
    z = Halved.apply((y * w).sin())
    other = (z + w).exp() * w
    z += 0.1
    return (z * other).exp()


def counted_beside_own_gradients(y: T, w: T) -> Any:
    z, v = (y * w).sin(), y + w
    z.mul_(w.sigmoid())
    v.t().add_(0.1)
    return Halved.apply(z), z, v


def beside_own_gradients(y: T, w: T) -> Any:
    z = (y * w).exp()
    z += Halved.apply(w)  # eager has kept it
    return (z * w).sin()


KERNELS = [
    activation, residual, assigned, a_part, by_a_view, without_history, replaced, with_random_numbers,
    behind_own_gradients, a_part_behind_own_gradients, centered, gated_by_itself,
]  # fmt: skip
PROGRAMS = [
    *KERNELS, several_times, in_a_loop, read_before, needed_before, seen_before, a_part_read_before, masked, refused,
    stepped, read_behind_own_gradients, beside_own_gradients, counted_beside_own_gradients,
]  # fmt: skip


def outcomes(program: Callable[[T, T], Any], compile_: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    weight, own = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    seen: list[Any] = []

    def whole(x: T) -> Any:
        y = x @ own
        quickfuse.graph_break()
        seen.append(y)
        return program(y, weight)

    called, found = compile_(whole), []
    for k in range(4):
        weight.grad = own.grad = None
        torch.manual_seed(k)
        try:
            made = called(torch.randn(3, 3))
            results = [made] if isinstance(made, T) else [*made]
            loss = sum([r.sum() for r in results if r.requires_grad], torch.zeros(()))
            if k == 2 and loss.requires_grad:
                (first,) = torch.autograd.grad(loss, own, create_graph=True)
                loss = first.square().sum() if first.requires_grad else loss * 0
            if loss.requires_grad:
                loss.backward()
        except RuntimeError as error:
            results = [type(error).__name__]
        versions = [t._version for t in (seen[-1], *results) if isinstance(t, T)]
        found.append((results, seen[-1].detach().clone(), versions, weight.grad, own.grad))
    return called, found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T, T], Any]) -> None:
    _, expected = outcomes(program, lambda f: f)
    _, got = outcomes(program, quickfuse.compile)
    assert same(expected, got, rtol=1e-5, atol=1e-6), f"{expected}\n{got}"


@pytest.mark.parametrize("program", KERNELS, ids=lambda program: program.__name__)
def test_kernels(program: Callable[[T, T], Any]) -> None:
    compiled, _ = outcomes(program, quickfuse.compile)
    assert not any(s.without_kernels for s in compiled.specialisations)
