"""Products of matrices that oneDNN computes, with what is applied to them on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse.ir.loop import Extern
from quickfuse.lower import products
from quickfuse.lower.products import LinearCall
from schedule_interpreter import compile_for_test

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")

X, W, B = torch.randn(8, 256, 128), torch.randn(256, 128), torch.randn(256)

LAYERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "plain": ("linear", lambda x, w, b: F.linear(x, w, b)),
    "no bias": ("linear", lambda x, w, b: F.linear(x, w)),
    "gelu": ("linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b))),
    "gelu by tanh": ("linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh")),
    "silu": ("linear_swish", lambda x, w, b: F.silu(F.linear(x, w, b))),
    "relu": ("linear_relu", lambda x, w, b: F.relu(F.linear(x, w))),
    "addmm": ("linear", lambda x, w, b: torch.addmm(b, x.flatten(0, 1), w.t())),
    "mm": ("linear", lambda x, w, b: torch.mm(x.flatten(0, 1), w.t())),
    "mm of rows": ("linear", lambda x, w, b: torch.mm(x.flatten(0, 1), w.view(128, 256))),
    "also read before the activation": ("linear", lambda x, w, b: (lambda y: (y, F.gelu(y)))(F.linear(x, w, b))),
    "an activation that is no other": ("linear", lambda x, w, b: F.elu(F.linear(x, w, b))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    expected, function = LAYERS[name]
    schedule, _ = compile_for_test(function, X, W, B)
    calls = [step.target.__name__ for step in schedule.steps if isinstance(getattr(step, "target", None), LinearCall)]
    assert calls == [expected]
    with torch.no_grad():
        torch.testing.assert_close(quickfuse.compile(function)(X, W, B), function(X, W, B), rtol=1e-4, atol=1e-4)


OTHERS: dict[str, Callable[..., Any]] = {
    "axes in another order": lambda x, w, b: F.linear(x.transpose(0, 1), w, b),
    "few": lambda x, w, b: F.linear(x[:1, :2], w, b),
    "gaps between rows": lambda x, w, b: torch.mm(x[:, :, :100].flatten(0, 1)[:, :99], w.t()[:99]),
    "another type": lambda x, w, b: F.linear(x.double(), w.double(), b.double()),
    "scaled": lambda x, w, b: torch.addmm(b, x.flatten(0, 1), w.t(), alpha=2),
    "sums over rows": lambda x, w, b: torch.mm(x.flatten(0, 1).t(), x.flatten(0, 1)),
    "no rows": lambda x, w, b: F.linear(x[:0], w, b),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_left_to_blas(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "blas_is_narrow", lambda: False)
    function = OTHERS[name]
    schedule, _ = compile_for_test(function, X, W, B)
    assert not any(isinstance(getattr(step, "target", None), LinearCall) for step in schedule.steps)
    with torch.no_grad():
        torch.testing.assert_close(quickfuse.compile(function)(X, W, B), function(X, W, B), rtol=1e-4, atol=1e-4)


SLOW_BLAS: dict[str, Callable[..., Any]] = {
    "few rows": lambda x, w, b: F.linear(x[0, :128], w, b),
    "sums over rows": OTHERS["sums over rows"],
    "products of them": lambda x, w, b: torch.mm(torch.mm(x.flatten(0, 1), w.t()).t(), x.flatten(0, 1) * 2),
    "an operator of Python": lambda x, w, b: x.flatten(0, 1) @ w.t() + b,
    "sums of products": lambda x, w, b: sum((x[k].t() @ (x[k] * 2) for k in range(1, 8)), x[0].t() @ x[0]),
}


@pytest.mark.parametrize("name", SLOW_BLAS)
def test_where_blas_is_slow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "blas_is_narrow", lambda: True)
    function = SLOW_BLAS[name]
    schedule, _ = compile_for_test(function, X, W, B)
    calls = [step.target for step in schedule.steps if isinstance(step, Extern) and step.target is not torch.cat]
    assert calls and all(isinstance(call, LinearCall) for call in calls)
    with torch.no_grad():
        torch.testing.assert_close(quickfuse.compile(function)(X, W, B), function(X, W, B), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("is_narrow", [False, True])
def test_gradients(is_narrow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "blas_is_narrow", lambda: is_narrow)
    model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64))
    x = X.clone().requires_grad_()
    compiled = quickfuse.compile(model, fullgraph=True)
    compiled(x).square().mean().backward()
    found = [x.grad, *(p.grad for p in model.parameters())]
    x.grad = None
    model.zero_grad()
    model(x).square().mean().backward()
    torch.testing.assert_close(found, [x.grad, *(p.grad for p in model.parameters())], rtol=1e-4, atol=1e-6)


def test_without_one_dnn() -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        schedule, _ = compile_for_test(LAYERS["plain"][1], X, W, B)
    assert not any(isinstance(getattr(step, "target", None), LinearCall) for step in schedule.steps)
