"""`torch.set_default_device` and `with torch.device(...)` around calls: new tensors are on that device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse import logs
from quickfuse.ir.default_device import default_device

T = torch.Tensor


@contextlib.contextmanager
def around(device: Any, how: str) -> Iterator[None]:
    if how == "block":
        with torch.device(device) if device is not None else contextlib.nullcontext():
            yield
        return
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def makes(x: T) -> Any:
    made = torch.zeros(2, 2), torch.tensor([1.0, 2.0]), torch.rand(2), torch.full((2,), 3)
    return x * torch.ones(3) + torch.arange(3), *made


def layers(x: T) -> T:
    return F.layer_norm(F.dropout(x, 0.3), (3,)).softmax(-1)


def with_a_break(x: T) -> Any:
    y = x.sin() + torch.ones(3)
    known = y.tolist(), torch.get_default_device()
    return y * torch.zeros(3), known


def in_a_block(x: T) -> T:
    with torch.device("cpu"):
        x = x + torch.ones(3)
    return x * torch.full((3,), 2.0)


def fails(x: T) -> T:
    return x[torch.tensor(7)] + torch.ones(3)


FUNCTIONS = [makes, layers, with_a_break, in_a_block, fails]


@pytest.mark.parametrize("how", ["block", "set"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions(function: Callable[..., Any], how: str) -> None:
    compiled = quickfuse.compile(function)
    for device in ("cpu", None, "cpu", "meta", "cpu"):
        with around(device, how):
            for _ in range(2):
                x = torch.ones(3, device="cpu", requires_grad=True)
                torch.manual_seed(1)
                wanted = _outcome(function, x)
                torch.manual_seed(1)
                assert _outcome(compiled, x) == wanted
                assert torch._C._len_torch_function_stack() == (device is not None)
                assert default_device() == (torch.device("cpu") if device == "cpu" else None)


def _outcome(function: Callable[..., Any], x: T) -> str:
    try:
        result = function(x)
    except Exception as error:
        return f"{type(error).__name__} {error}"
    results = result if isinstance(result, tuple) else [result]
    return str([(t.detach(), t.device) if isinstance(t, T) else t for t in results])


@pytest.mark.parametrize("how", ["block", "set"])
@pytest.mark.parametrize("whole", [True, False])
def test_training_steps(whole: bool, how: str) -> None:
    runs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.GELU(), nn.Linear(8, 3))
        optimizer = torch.optim.AdamW(model.parameters())
        called = quickfuse.compile(model) if compiled and not whole else model

        def step(x: T, target: T, called: Any = called, optimizer: Any = optimizer) -> T:
            optimizer.zero_grad()
            loss = F.cross_entropy(called(x) * torch.ones(3), target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = quickfuse.compile(step) if compiled and whole else step
        losses = []
        for device in (None, "cpu", "cpu", "cpu", None):
            with around(device, how):
                losses.append(run(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])))
        runs.append([*losses, *model.parameters()])
    torch.testing.assert_close(runs[1], runs[0])


def test_counts() -> None:
    """A step is one graph with a default device, too, and compiles nothing in later calls."""
    model = nn.Linear(3, 3)

    def step(x: T) -> T:
        loss = (model(x) * torch.ones(3)).square().mean()
        model.zero_grad()
        loss.backward()
        return loss.detach()

    with around("cpu", "set"):
        compiled = quickfuse.compile(step, fullgraph=True)
        for call in range(5):
            if call == 3:
                before = dict(logs.counts)
            compiled(torch.randn(2, 3))
        assert logs.counts == before and compiled.graph_count == 1


@pytest.mark.parametrize("operation", ["function", "backward"])
def test_what_the_program_runs_itself_has_the_device(operation: str) -> None:
    seen = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: T) -> T:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: T) -> T:
            seen.append(torch.get_default_device().type)
            return gradient + torch.zeros(3, device=gradient.device)

    @quickfuse.disable
    def native(x: T) -> T:
        seen.append(torch.get_default_device().type)
        return x + torch.ones(3)

    def function(x: T) -> T:
        return (native(x.sin()) if operation == "function" else Own.apply(x)).cos()

    with around("cpu", "set"):
        for run in (function, quickfuse.compile(function)):
            x = torch.ones(3, requires_grad=True)
            for _ in range(3):
                run(x).sum().backward()
            torch.testing.assert_close(x.grad, 3 * torch.autograd.grad(function(x).sum(), x)[0])
    assert {*seen} == {"cpu"}


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    runs = []
    with around("cuda", "set"):
        for compiled in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))
            optimizer = torch.optim.AdamW(model.parameters())

            def step(x: T, model: Any = model, optimizer: Any = optimizer) -> T:
                loss = (model(x) * torch.arange(3)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            run = quickfuse.compile(step) if compiled else step
            runs.append([*(run(torch.randn(5, 4)) for _ in range(4)), *model.parameters(), torch.rand(2)])
    assert all(t.device.type == "cuda" for t in runs[1])
    torch.testing.assert_close(runs[1], runs[0])
