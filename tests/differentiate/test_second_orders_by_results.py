"""Gradients of gradients by results of a compiled function, where an operator has kept its own result for backward.

Second derivatives of `exp` flow to its result, as `exp` keeps that, and not past it: they are part of the gradient by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor

KEEPING: dict[str, Callable[[T], T]] = {
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda t: t.softmax(-1),
    "log_softmax": lambda t: t.log_softmax(-1),
    "sqrt": lambda t: (t.square() + 1).sqrt(),
    "sin": torch.sin,
    "twice": lambda t: t.tanh().exp(),
    "changed": lambda t: (t * 1).exp_(),
}


def _one(op: Any) -> Any:
    return lambda x, w: op(x @ w)


def _with_loss(op: Any) -> Any:
    def both(x: T, w: T) -> Any:
        o = op(x @ w)
        return o, o.square().sum()

    return both


def _chain(op: Any) -> Any:
    def three(x: T, w: T) -> Any:
        o = op(x @ w)
        p = op(o * 0.7)
        return o, p, (o * p).sum()

    return three


def _apart(op: Any) -> Any:
    return lambda x, w: (op(x @ w), op(w * 0.3), x.sin() * w.sum())


def _view(op: Any) -> Any:
    return lambda x, w: op(x @ w).t()


def _taking(op: Any) -> Any:
    """Gradients that the function takes itself lead to the result, too."""

    def with_slopes(x: T, w: T) -> Any:
        o = op(x @ w)
        (g,) = torch.autograd.grad(o.sum(), w, create_graph=True)
        return o, g

    return with_slopes


def _taking_between(op: Any) -> Any:
    def with_slopes(x: T, w: T) -> Any:
        o = op(x @ w)
        p = op(o * 0.7)
        (g,) = torch.autograd.grad((o * p).sum(), w, create_graph=True)
        return o, p, g, g.sum() * o.sum() + g.sin().sum()

    return with_slopes


MADE = {
    "one": _one, "with loss": _with_loss, "chain": _chain, "apart": _apart, "view": _view, "taking": _taking,
    "taking between": _taking_between,
}  # fmt: skip


def _asked(results: Any, x: T, w: T, retained: bool) -> Any:
    """The gradients of a penalty on gradients by all results and inputs."""
    loss = sum(r.cos().sum() for r in results)
    (s,) = torch.autograd.grad(loss, w, create_graph=True)
    total = loss + s.square().sum()
    everything = [*results, x, w]
    found = [*torch.autograd.grad(total, everything, retain_graph=True, allow_unused=True)]
    for one in results:
        found += torch.autograd.grad(total, one, retain_graph=True, allow_unused=True)
    found += torch.autograd.grad(s.sum(), everything, retain_graph=retained, allow_unused=True)
    return found


def _only_the_penalty(results: Any, x: T, w: T) -> Any:
    s, u = torch.autograd.grad(results[-1].square().sum(), [w, x], create_graph=True)
    return torch.autograd.grad(s.square().sum() + u.sum(), [results[0], x, w], allow_unused=True)


def _retained(results: Any, x: T, w: T) -> Any:
    for one in results:
        one.retain_grad()
    loss = sum(r.cos().sum() for r in results)
    (s,) = torch.autograd.grad(loss, w, create_graph=True)
    (loss + s.square().sum()).backward()
    return [*[one.grad for one in results], x.grad, w.grad]


def _retained_later(results: Any, x: T, w: T) -> Any:
    loss = sum(r.cos().sum() for r in results)
    (s,) = torch.autograd.grad(loss, w, create_graph=True)
    seen: list[T] = []
    for one in results:
        one.retain_grad()
        one.register_hook(lambda g: seen.append(g.detach()) or g * 2)
    (loss + s.square().sum()).backward()
    return [*[one.grad for one in results], x.grad, w.grad, *sorted(seen, key=lambda g: (g.numel(), g.sum().item()))]


def _by_backward(results: Any, x: T, w: T) -> Any:
    loss = sum(r.cos().sum() for r in results)
    loss.backward(inputs=[w, x], create_graph=True)
    assert w.grad is not None
    assert x.grad is not None
    s = w.grad.square().sum() + x.grad.sum()
    found = torch.autograd.grad(loss + s, [*results], retain_graph=True)
    w.grad = x.grad = None
    (loss + s).backward()
    return [*found, x.grad, w.grad]


def _third(results: Any, x: T, w: T) -> Any:
    loss = sum(r.square().sum() for r in results)
    (s,) = torch.autograd.grad(loss, w, create_graph=True)
    t = torch.autograd.grad(loss + s.square().sum(), [results[0], w], create_graph=True)
    total = sum(one.square().sum() for one in t)
    (u,) = torch.autograd.grad(total, w, create_graph=True)
    return [u, *torch.autograd.grad(total + u.sum(), [*results, x, w], allow_unused=True)]


def _without(results: Any, x: T, w: T) -> Any:
    loss = sum(r.square().sum() for r in results)
    return torch.autograd.grad(loss, [*results, x, w], allow_unused=True)


def _computed_from(results: Any, x: T, w: T) -> Any:
    """What is computed from a result, a view of it too, leads to it."""
    first = results[0]
    y = (first.view_as(first) * 2).exp().sum() + first.t().sum()
    (s,) = torch.autograd.grad(y, w, create_graph=True)
    (r,) = torch.autograd.grad(y, first, create_graph=True)
    return torch.autograd.grad(y + s.square().sum() + r.square().sum(), [first, x, w])


USES: dict[str, Callable[..., Any]] = {
    "asked": lambda r, x, w: _asked(r, x, w, False),
    "asked, retained": lambda r, x, w: _asked(r, x, w, True),
    "only the penalty": _only_the_penalty,
    "retained": _retained,
    "retained later": _retained_later,
    "by backward": _by_backward,
    "third": _third,
    "without": _without,
    "computed from": _computed_from,
}


def _outcome(function: Any, use: Any) -> Any:
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    w = torch.linspace(-0.5, 1.2, 9, dtype=torch.float64).reshape(3, 3).requires_grad_()
    results = function(x, w)
    results = [results] if isinstance(results, T) else [*results]
    try:
        return [t if t is None else t.detach() for t in use(results, x, w)]
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("op", KEEPING.values(), ids=KEEPING)
def test_gradients_by_results(op: Any, made: Any, use: Any) -> None:
    function = made(op)
    compiled = quickfuse.compile(function)
    expected = _outcome(function, use)
    for _ in range(2):
        found = _outcome(compiled, use)
        if isinstance(expected, str):
            assert isinstance(found, str), expected
        else:
            _assert_close(found, expected)


def _assert_close(found: Any, expected: Any) -> None:
    """But for rounding: third derivatives are sums of terms that cancel."""
    size = max([1.0, *[t.abs().max().item() for t in expected if t is not None]])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11 * size)


@pytest.mark.parametrize("op", KEEPING.values(), ids=KEEPING)
@pytest.mark.parametrize("when", ["retained", "retained later", "asked"])
def test_after_a_break(op: Any, when: str) -> None:
    def step(x: T, w: T) -> Any:
        t = op(w * 0.5)
        quickfuse.graph_break()
        if when == "retained":
            t.retain_grad()
        (g,) = torch.autograd.grad(t.sum(), w, create_graph=True)
        if when == "retained later":
            t.retain_grad()
        total = t.sum() + g.square().sum()
        if when == "asked":
            return torch.autograd.grad(total, [t, w])
        total.backward()
        return t.grad, w.grad

    compiled = quickfuse.compile(step)
    for _ in range(2):
        _assert_close(_outcome(compiled, lambda r, *_: r), _outcome(step, lambda r, *_: r))
