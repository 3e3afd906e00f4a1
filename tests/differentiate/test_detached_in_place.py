"""Tensors that lose their history, or begin to require gradients, between operators that use them: a gradient reaches what a
tensor was computed from only through what used it before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

Tensor = torch.Tensor


def detached(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    h.detach_()
    (x * v + h).square().mean().backward()
    return h, h.requires_grad


def used_before_and_after(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    before = h * 2
    h.detach_()
    (before.sum() + (h * v).sum()).backward()
    return h.requires_grad, h.is_leaf


def leaf_from_there_on(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    before = h * 2
    h.detach_().requires_grad_()
    (before.sum() + (h * v).sum()).backward()
    return h.grad, h.requires_grad


def written_after(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    h.detach_()
    h.add_(v)
    (h * h).sum().backward()
    return h.detach()


def detached_twice(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    h.detach_()
    h.add_(v)
    between = h * 3
    h.detach_()
    ((h * h).sum() + between.sum() + (h * w[0]).sum()).backward()
    return h


def truncated(w: Tensor, v: Tensor, x: Tensor) -> Any:
    """Backpropagation through time, cut after each second step."""
    h, loss = torch.zeros_like(x), torch.zeros((), dtype=x.dtype)
    for k in range(4):
        h = torch.tanh(x + h @ w)
        loss = loss + (h * v).sum()
        if k % 2:
            loss.backward()
            loss = torch.zeros_like(loss)
            h.detach_()
    return h


def by_autograd_grad(w: Tensor, v: Tensor, x: Tensor) -> Any:
    h = (x @ w).sin()
    before = h * 2
    h.detach_().requires_grad_()
    return torch.autograd.grad(before.sum() + (h * v).sum(), [w, v, h])


@pytest.mark.parametrize(
    "program",
    [detached, used_before_and_after, leaf_from_there_on, written_after, detached_twice, truncated, by_autograd_grad],
)
def test_history_ends(program: Callable[..., Any]) -> None:
    seen = []
    for run in (program, quickfuse.compile(program, fullgraph=True)):
        torch.manual_seed(0)
        w, v = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((8, 8), (8,)))
        x = torch.randn(4, 8, dtype=torch.float64)
        results = [run(w, v, x) for _ in range(2)]
        seen.append((results, w.grad, v.grad))
    torch.testing.assert_close(seen[1], seen[0])


def changed_with_gradients(w: Tensor, v: Tensor, x: Tensor) -> Any:
    d = x.detach()
    d.mul_(v)
    return d


def assigned_with_gradients(w: Tensor, v: Tensor, x: Tensor) -> Any:
    d = torch.autograd.Variable(x)
    d[0] = v
    d[1] = v * 2
    return d * 3, d


def part_changed_with_gradients(w: Tensor, v: Tensor, x: Tensor) -> Any:
    d = x[1:].data
    d.mul_(v)
    return d, x.sum()


def detached_from_what_was_computed(w: Tensor, v: Tensor, x: Tensor) -> Any:
    d = (x * 2).detach()
    d.mul_(v)
    return d


def changed_with_gradients_and_detached_again(w: Tensor, v: Tensor, x: Tensor) -> Any:
    d = x.detach()
    d.mul_(2.0)
    e = d.detach()
    e.mul_(v)
    return d, e


@pytest.mark.parametrize(
    "program",
    [
        changed_with_gradients, assigned_with_gradients, part_changed_with_gradients, detached_from_what_was_computed,
        changed_with_gradients_and_detached_again,
    ],
)  # fmt: skip
def test_history_begins_again(program: Callable[..., Any]) -> None:
    """What is detached gets a history of its own with what is written to it: what it was detached from gets none."""
    seen = []
    for run in (program, quickfuse.compile(program, fullgraph=True)):
        torch.manual_seed(0)
        w, v = (torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in ((8, 8), (8,)))
        for _ in range(3):
            x = torch.randn(4, 8, dtype=torch.float64)
            results = run(w, v, x)
            results = results if isinstance(results, tuple) else (results,)
            sum(k * result.sum() for k, result in enumerate(results, 2)).backward()
            seen.append(([(result, result.requires_grad) for result in results], v.grad.clone(), x, x.requires_grad))
    torch.testing.assert_close(seen[3:], seen[:3])


def test_inference_tensors_are_refused_before_anything_changes() -> None:
    """What autograd may not keep: eager fails at the operator that would, after which nothing ran."""

    def program(compiled: bool) -> list[Any]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.3)).double()
        f: Any = quickfuse.compile(net) if compiled else net
        seen: list[Any] = []
        for _ in range(3):
            f(torch.randn(4, 3, dtype=torch.float64))
            with torch.inference_mode():
                x = torch.randn(4, 3, dtype=torch.float64)
            with pytest.raises(RuntimeError, match="Inference tensors"):
                f(x)
            seen += [net[1].num_batches_tracked.item(), net[1].running_mean.sum().item(), torch.rand(1).item()]
        return seen

    assert program(True) == pytest.approx(program(False), rel=1e-12)
