"""Whole training steps as exported programs: parameters, gradients and optimizer state are in the signature."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import quickfuse
from export.programs import through_file
from quickfuse import errors

x, y = torch.randn(8, 4), torch.randint(3, (8,))

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, weight decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1, nesterov=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


class Training:
    """A model, its optimizer, and a step."""

    def __init__(self, make: Callable[[Any], torch.optim.Optimizer], clip: bool = False) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = make(self.model.parameters())
        self.clip = clip

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step(name: str, clip: bool, tmp_path: Any) -> None:
    training = Training(OPTIMIZERS[name], clip)
    exported = quickfuse.export(training.step, (x, y))
    modules = [exported.module(), through_file(exported, tmp_path).module()]
    for _ in range(4):
        wanted = training.step(x, y)
        for module in modules:
            torch.testing.assert_close(module(x, y), wanted.detach(), rtol=1e-6, atol=1e-6)
    for module in modules:
        for key, parameter in training.model.named_parameters():
            ours = module.get_parameter(f"model.{key}")
            torch.testing.assert_close(ours, parameter, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(ours.grad, parameter.grad, rtol=1e-5, atol=1e-6)
        for key, buffer in training.model.named_buffers():
            torch.testing.assert_close(module.get_buffer(f"model.{key}"), buffer, rtol=1e-5, atol=1e-6)


def test_the_signature_of_a_step() -> None:
    training = Training(OPTIMIZERS["Adam"])
    signature = quickfuse.export(training.step, (x, y)).graph_signature
    names = [f"model.{name}" for name, _ in training.model.named_parameters()]
    assert sorted(signature.changed_parameters) == sorted(names) == sorted(signature.gradients)
    assert "optimizer.state.model.0.weight.exp_avg" in signature.changed_buffers
    assert "model.1.running_mean" in signature.changed_buffers
    assert signature.user_inputs == ["x", "y"] and signature.user_outputs == ["result"]


def test_what_a_step_is_specialised_on() -> None:
    training = Training(OPTIMIZERS["Adam"])
    found = [str(a) for a in quickfuse.export(training.step, (x, y)).assumptions]
    assert any(text.endswith("lr == 0.01") for text in found)
    assert any(text.startswith("training == True") for text in found)


def test_exporting_changes_nothing() -> None:
    training = Training(OPTIMIZERS["Adam"])
    before = copy.deepcopy(training.model.state_dict())
    quickfuse.export(training.step, (x, y)).module()(x, y)
    for name, tensor in training.model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    assert all(p.grad is None for p in training.model.parameters())


def test_gradients_that_are_there_before() -> None:
    model = nn.Linear(4, 3)

    def accumulate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    accumulate(x, y)
    exported = quickfuse.export(accumulate, (x, y))
    assert exported.graph_signature.gradients == ["model.weight", "model.bias"]
    module = exported.module()
    with pytest.raises(errors.ExportedCallError, match="model.weight.grad is a tensor in the exported program, got None"):
        module(x, y)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    module(x, y)
    torch.testing.assert_close(module.get_parameter("model.weight").grad, model.weight.grad + 1)


def test_gradients_that_are_taken_away() -> None:
    model = nn.Linear(4, 3)
    model(x).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            return model(x)

    exported = quickfuse.export(step, (x,))
    assert sorted(exported.graph_signature.cleared) == ["model.bias", "model.weight"]
    module = exported.module()
    for parameter, ours in zip(model.parameters(), module.parameters(), strict=True):
        assert parameter.grad is not None
        ours.grad = parameter.grad.clone()
    torch.testing.assert_close(module(x), step(x))
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"maximize": True, "foreach": False}, {"weight_decay": 0.1}])
def test_momentum_of_a_first_step(options: dict[str, Any], tmp_path: Any) -> None:
    """It is a buffer of the program that begins as zeros, so one program is the first step and all others."""
    training = Training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, **options))
    original = copy.deepcopy(training)
    exported = through_file(quickfuse.export(training.step, (x, y)), tmp_path)
    assert "optimizer.state.model.0.weight.momentum_buffer" in exported.graph_signature.changed_buffers
    module = exported.module()
    for _ in range(3):
        wanted = original.step(x, y).detach()
        torch.testing.assert_close(module(x, y), wanted, rtol=0, atol=0)
        torch.testing.assert_close(training.step(x, y).detach(), wanted, rtol=0, atol=0)
    for name, parameter in original.model.named_parameters():
        torch.testing.assert_close(module.get_parameter(f"model.{name}"), parameter, rtol=0, atol=0)


class OwnMomentum(torch.optim.Optimizer):
    """An optimizer that is not PyTorch's, and makes its state in the first step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            if "average" not in self.state[p]:
                self.state[p]["average"] = p.grad.clone()
            self.state[p]["average"].mul_(0.9).add_(p.grad)
            p.add_(self.state[p]["average"], alpha=-self.param_groups[0]["lr"])


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), OwnMomentum], ids=["dampening", "own"]
)
def test_a_first_step_that_is_another_program_than_later_ones(make: Any) -> None:
    training = Training(make)
    with pytest.raises(errors.ExportError, match="optimizer.state.*take one step of the optimizer before"):
        quickfuse.export(training.step, (x, y))
    training.step(x, y)
    module = quickfuse.export(training.step, (x, y)).module()
    for _ in range(3):
        torch.testing.assert_close(module(x, y), training.step(x, y).detach())


def test_a_gradient_penalty_is_differentiable() -> None:
    def penalty(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
        return gradient.square().sum()

    leaves = [torch.randn(5, 4, requires_grad=True), torch.randn(4, 2, requires_grad=True)]
    module = quickfuse.export(penalty, tuple(leaves)).module()
    wanted = torch.autograd.grad(penalty(*leaves), leaves)
    for ours, other in zip(torch.autograd.grad(module(*leaves), leaves), wanted, strict=True):
        torch.testing.assert_close(ours, other)


def test_a_scheduler_changes_python_objects() -> None:
    training = Training(OPTIMIZERS["SGD"])
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = training.step(x, y)
        scheduler.step()
        return loss

    with pytest.raises((errors.ExportError, errors.GraphBreak), match="scheduler|lr"):
        quickfuse.export(step, (x, y))
