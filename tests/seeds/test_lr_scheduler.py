"""The statements of PyTorch's recipe "Running the compiled optimizer with an LR Scheduler", for quickfuse."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import quickfuse

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
Schedule = Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]


def model_with_gradients(device: str) -> torch.nn.Sequential:
    """The document's sequence of ten linear layers after a backward pass; smaller on the CPU."""
    size = 1024 if device == "cuda" else 32
    model = torch.nn.Sequential(*[torch.nn.Linear(size, size, False, device=device) for _ in range(10)])
    model(torch.rand(size, device=device)).sum().backward()
    return model


class Training:
    """Two equal models, optimizers and schedulers: one in a compiled function, one eager."""

    def __init__(self, device: str, lr: Any, schedule: Schedule) -> None:
        self.model = model_with_gradients(device)
        self.twin = copy.deepcopy(self.model)
        for mine, theirs in zip(self.twin.parameters(), self.model.parameters(), strict=True):
            assert theirs.grad is not None
            mine.grad = theirs.grad.clone()
        self.optimizer, self.scheduler = self._make(self.model, lr, schedule)
        self.eager_optimizer, self.eager_scheduler = self._make(self.twin, lr, schedule)
        optimizer, scheduler = self.optimizer, self.scheduler

        @quickfuse.compile(fullgraph=False)
        def fn() -> None:
            optimizer.step()
            scheduler.step()

        self.compiled = fn

    @staticmethod
    def _make(model: torch.nn.Module, lr: Any, schedule: Schedule) -> tuple[Any, Any]:
        lr = lr.clone() if isinstance(lr, torch.Tensor) else lr
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        return optimizer, schedule(optimizer)

    def step(self) -> None:
        self.compiled()
        self.eager_optimizer.step()
        self.eager_scheduler.step()

    def check(self) -> None:
        for mine, theirs in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
        assert self.optimizer.param_groups[0]["lr"] == self.eager_optimizer.param_groups[0]["lr"]
        assert self.scheduler.state_dict() == self.eager_scheduler.state_dict()


def linear(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.LinearLR(optimizer, total_iters=5)


def constant(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
    return lr_scheduler.ConstantLR(optimizer, factor=0.001, total_iters=4)


@pytest.mark.parametrize("device", DEVICES)
def test_tensor_lr_with_linear_lr(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(device, torch.tensor(0.01), linear)
    for _ in range(5):
        training.step()
        print(training.optimizer.param_groups[0]["lr"])
    rates = ["tensor(0.0047)", "tensor(0.0060)", "tensor(0.0073)", "tensor(0.0087)", "tensor(0.0100)"]
    assert capsys.readouterr().out.splitlines() == rates
    training.check()
    assert training.compiled.graph_count == 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("schedule", [constant, linear])
def test_float_lr_does_not_recompile(device: str, schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    """Where the document shows a recompilation in every step."""
    quickfuse.set_logs(recompiles=True)
    training = Training(device, 0.01, schedule)
    for _ in range(6):
        training.step()
        training.check()
    assert not [message for message in caplog.messages if "['lr']" in message]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)], ids=["float", "tensor"])
def test_a_changed_lr_is_an_argument(device: str, lr: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a scheduler does to the learning rate, without a scheduler: five rates, one specialisation."""
    quickfuse.set_logs(recompiles=True, graph_breaks=True)
    model, twin = model_with_gradients(device), model_with_gradients(device)
    twin.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=copy.deepcopy(lr))
    eager = torch.optim.Adam(twin.parameters(), lr=copy.deepcopy(lr))
    compiled = quickfuse.compile(lambda: optimizer.step())
    for rate in (0.0047, 0.0060, 0.0073, 0.0087, 0.0100):
        for group in (optimizer.param_groups[0], eager.param_groups[0]):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            mine.grad = torch.randn_like(mine)
            theirs.grad = mine.grad.clone()
        compiled()
        eager.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)
    assert compiled.graph_count == 1
    assert caplog.messages == []


@pytest.mark.parametrize("device", DEVICES)
def test_specialised_floats_recompile_and_name_the_guard(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The document's log: each step names the guards of all specialisations so far, the last one first."""
    monkeypatch.setattr(quickfuse.config, "specialize_floats", True)
    quickfuse.set_logs(recompiles=True)
    optimizer = torch.optim.Adam(model_with_gradients(device).parameters(), lr=0.01)

    @quickfuse.compile(fullgraph=False)
    def fn() -> None:
        optimizer.step()

    for rate in (0.01, 0.006, 0.0073):
        optimizer.param_groups[0]["lr"] = rate
        fn()
    assert fn.graph_count == 3
    first, second = caplog.messages
    assert "Recompiling function" in first and "triggered by the following guard failure(s):" in first
    assert _failed_rates(first) == ["0.01"]
    assert _failed_rates(second) == ["0.006", "0.01"]


@pytest.mark.parametrize("device", DEVICES)
def test_the_log_of_the_document(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With a scheduler and specialised floats, the log is the document's, with the user's own terms after it."""
    monkeypatch.setattr(quickfuse.config, "specialize_floats", True)
    quickfuse.set_logs(recompiles=True)
    optimizer = torch.optim.Adam(model_with_gradients(device).parameters(), lr=0.01)
    scheduler = lr_scheduler.LinearLR(optimizer, total_iters=5)

    @quickfuse.compile(fullgraph=False)
    def fn() -> None:
        optimizer.step()
        scheduler.step()

    for _ in range(5):
        fn()
    step = inspect.unwrap(torch.optim.Adam.step).__code__
    here = f"{__file__}:{fn.function.__code__.co_firstlineno}"
    rates = ["0.003333333333333333", "0.004666666666666667", "0.006000000000000001", "0.007333333333333335"]
    assert len(caplog.messages) == 4
    for count, message in enumerate(caplog.messages, 1):
        head, trigger, *lines = message.splitlines()
        assert head == (
            f"[recompiles] Recompiling function step in {step.co_filename}:{step.co_firstlineno}, called by fn in {here}"
        )
        assert trigger == "    triggered by the following guard failure(s):"
        guards = [line.partition("  # ")[0] for line in lines]
        assert guards == [f"    - L['self'].param_groups[0]['lr'] == {rate}" for rate in reversed(rates[:count])]
        assert all("  # self is C['optimizer'], at " in line for line in lines)


@pytest.mark.parametrize("device", DEVICES)
def test_the_log_of_a_compiled_step(
    device: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`Optimizer.step` is a wrapper of `*args`; the log names what it wraps."""
    monkeypatch.setattr(quickfuse.config, "specialize_floats", True)
    quickfuse.set_logs(recompiles=True)
    optimizer = torch.optim.Adam(model_with_gradients(device).parameters(), lr=0.01)
    compiled = quickfuse.compile(optimizer.step)
    for rate in (0.01, 0.006):
        optimizer.param_groups[0]["lr"] = rate
        compiled()
    (message,) = caplog.messages
    step = inspect.unwrap(torch.optim.Adam.step).__code__
    assert message.startswith(f"[recompiles] Recompiling function step in {step.co_filename}:{step.co_firstlineno}\n")
    assert "    - L['self'].param_groups[0]['lr'] == 0.01  # " in message


def _failed_rates(message: str) -> list[str]:
    lines = [line.strip() for line in message.splitlines() if line.strip().startswith("- ")]
    assert all("param_groups[0]['lr'] == " in line for line in lines)
    return [line.partition("['lr'] == ")[2].split()[0] for line in lines]
