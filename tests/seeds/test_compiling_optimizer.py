"""The statements of PyTorch's recipe "Compiling the optimizer with torch.compile", for quickfuse."""

from __future__ import annotations

import copy
import logging
import runpy
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.benchmark as benchmark

import quickfuse
from quickfuse import doctor

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "optimizer.py"


def model_with_gradients(device: str, layers: int = 10) -> torch.nn.Sequential:
    """A sequence of linear layers after a backward pass; smaller than the document's on the CPU."""
    size = 1024 if device == "cuda" else 64
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size, False, device=device) for _ in range(layers)])
    model(torch.rand(size, device=device)).sum().backward()
    return model


def copy_with_gradients(model: torch.nn.Module) -> torch.nn.Module:
    twin = copy.deepcopy(model)
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        assert theirs.grad is not None
        mine.grad = theirs.grad.clone()
    return twin


def assert_same_parameters(model: torch.nn.Module, twin: torch.nn.Module) -> None:
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def assert_same_state(optimizer: torch.optim.Optimizer, twin: torch.optim.Optimizer) -> None:
    mine, theirs = optimizer.state_dict(), twin.state_dict()
    assert mine["param_groups"] == theirs["param_groups"]
    for key, expected in theirs["state"].items():
        assert list(mine["state"][key]) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(mine["state"][key][name], value, rtol=1e-5, atol=1e-7)


def compiled_step(optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    """The document's `fn`."""

    @quickfuse.compile(**options)
    def fn() -> None:
        optimizer.step()

    return fn


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_the_compiled_step_is_the_eager_step(device: str, fullgraph: bool) -> None:
    model = model_with_gradients(device)
    twin = copy_with_gradients(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    eager = torch.optim.Adam(twin.parameters(), lr=0.01)
    fn = compiled_step(optimizer, fullgraph=fullgraph)
    for _ in range(5):  # the document's warm-up runs
        assert fn() is None
        eager.step()
    assert_same_parameters(model, twin)
    assert_same_state(optimizer, eager)
    assert fn.graph_count == 1, "the first call compiles, and no other"


@pytest.mark.parametrize("device", DEVICES)
def test_eager_and_compiled_steps_take_turns(device: str) -> None:
    """The document times `opt.step` after it compiled `fn`: both work on one optimizer."""
    model = model_with_gradients(device)
    twin = copy_with_gradients(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    eager = torch.optim.Adam(twin.parameters(), lr=0.01)
    fn = compiled_step(optimizer)
    for step in [optimizer.step, fn, fn, optimizer.step, fn]:
        step()
        eager.step()
    assert_same_parameters(model, twin)
    assert_same_state(optimizer, eager)
    assert fn.graph_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_the_number_of_parameters_is_what_counts(device: str) -> None:
    """The choice of the model does not matter; and ten times the parameters are the same kernels, run for more members."""
    kernels = []
    for layers in (1, 10):
        fn = compiled_step(torch.optim.Adam(model_with_gradients(device, layers).parameters(), lr=0.01))
        fn()
        kernels.append([specialisation.kernels for specialisation in fn.specialisations])
    assert kernels == [[2], [2]]


@pytest.mark.parametrize("device", DEVICES)
def test_benchmark_helper(device: str) -> None:
    def benchmark_torch_function_in_microseconds(f: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
        timer = benchmark.Timer(stmt="f(*args, **kwargs)", globals={"args": args, "kwargs": kwargs, "f": f})
        return timer.blocked_autorange(min_run_time=0.05).mean * 1e6

    optimizer = torch.optim.Adam(model_with_gradients(device).parameters(), lr=0.01)
    fn = compiled_step(optimizer)
    fn()
    assert benchmark_torch_function_in_microseconds(optimizer.step) > 0
    assert benchmark_torch_function_in_microseconds(fn) > 0
    assert fn.graph_count == 1


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_is_printed_logged_or_warned(
    device: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = model_with_gradients(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    groups = [dict(group) for group in optimizer.param_groups]
    fn = compiled_step(optimizer)
    capfd.readouterr()
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        for _ in range(3):
            fn()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert optimizer.param_groups == groups, "no setting of the optimizer is left changed"


def test_an_old_gpu_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "An old GPU")
    sentence = doctor.gpu_too_old()
    assert sentence is not None and "An old GPU has compute capability 6.1" in sentence and "7.0" in sentence


def test_the_example_exits_cleanly_on_an_old_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    monkeypatch.setattr(sys, "argv", ["optimizer.py", "--device", "cuda"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert stopped.value.code == 0
    assert "7.0" in capsys.readouterr().out
