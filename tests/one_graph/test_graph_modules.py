"""Modules that torch.fx made: their generated code is captured, and so is another graph that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import quickfuse
from quickfuse import config


@pytest.fixture(autouse=True)
def raise_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", True)
    monkeypatch.setattr(config, "measure_short_calls", False)


def traced() -> fx.GraphModule:
    return fx.symbolic_trace(nn.Sequential(nn.Linear(3, 4), nn.ReLU()))


def negate(module: fx.GraphModule) -> None:
    """Another result of the graph."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    with module.graph.inserting_before(output):
        output.args = (module.graph.call_function(torch.neg, output.args),)
    module.recompile()


class Sub(fx.GraphModule):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) + 1


AROUND: list[Callable[[Any], Any]] = [
    lambda module: module,
    lambda module: nn.Sequential(module, nn.Hardtanh()),
    lambda module: lambda x: module(x) * 2,
]


@pytest.mark.parametrize("around", AROUND, ids=["alone", "in a module", "in a function"])
def test_in_one_graph(around: Callable[[Any], Any]) -> None:
    module = traced()
    function = around(module)
    compiled = quickfuse.compile(function, fullgraph=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), function(x))
    negate(module)
    torch.testing.assert_close(compiled(x), function(x))
    handle = module.register_forward_hook(lambda module, args, output: output + 1)
    torch.testing.assert_close(compiled(x), function(x))
    handle.remove()
    torch.testing.assert_close(compiled(x), function(x))
    x = torch.randn(5, 3, requires_grad=True)
    compiled(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.autograd.grad(function(x).sum(), x)[0])


def test_a_call_of_its_own() -> None:
    module = Sub(traced(), traced().graph)
    compiled = quickfuse.compile(lambda x: module(x) * 2)
    x = torch.randn(2, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x) * 2)


def test_an_error_in_it(capfd: pytest.CaptureFixture[str]) -> None:
    """torch.fx prints where it was."""
    module = fx.symbolic_trace(lambda x: (x @ x).relu())
    compiled = quickfuse.compile(lambda x: module(x) * 2)
    compiled(torch.randn(2, 2))
    for function in (module, compiled):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            function(torch.randn(2, 5))
        assert "line 5 of the traced Module's generated forward function" in capfd.readouterr().err


def test_settings() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return x
        return x + 1 if torch.are_deterministic_algorithms_enabled() else x - 1

    compiled = quickfuse.compile(function, fullgraph=True)
    x = torch.randn(3)
    try:
        for on in (False, True, False):
            torch.use_deterministic_algorithms(on)
            torch.testing.assert_close(compiled(x), function(x))
    finally:
        torch.use_deterministic_algorithms(False)
