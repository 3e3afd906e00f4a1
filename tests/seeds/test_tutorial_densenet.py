"""The part of PyTorch's tutorial "Introduction to torch.compile" that evaluates and trains DenseNet-121.

The tutorial times it; `quickfuse bench models` does that. Here the results are compared with eager's.
"""

from __future__ import annotations

import copy

import pytest
import torch

import quickfuse
from vision import vision_models

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
N_ITERS = 2


def init_model(device: str) -> torch.nn.Module:
    model: torch.nn.Module = vision_models().densenet121().to(torch.float32).to(device)
    return model


def generate_data(b: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The tutorial's, but for the size of the images."""
    return torch.randn(b, 3, 64, 64, device=device), torch.randint(1000, (b,), device=device)


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    """How far apart two tensors are, as a share of their size."""
    return ((one - two).norm() / two.norm().clamp_min(1e-6)).item()


def check_statistics(actual: torch.nn.Module, expected: torch.nn.Module, tolerance: float) -> None:
    for (name, one), two in zip(actual.named_buffers(), expected.buffers(), strict=True):
        if one.is_floating_point():
            assert distance(one, two) < tolerance, name
        else:
            assert one.equal(two), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("training", [True, False], ids=["as in the tutorial", "eval"])
def test_evaluation(device: str, training: bool) -> None:
    """The tutorial leaves the model in training mode, so that evaluation moves the running statistics."""
    model = init_model(device).train(training)
    twin = copy.deepcopy(model)
    model_opt = quickfuse.compile(twin, mode="reduce-overhead", fullgraph=True)
    for _ in range(N_ITERS):
        inp = generate_data(4, device)[0]
        with torch.no_grad():
            assert distance(model_opt(inp), model(inp)) < 1e-3
    check_statistics(twin, model, 1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_training(device: str) -> None:
    """zero_grad, forward, loss, backward and the optimizer's step, in one compiled function."""
    models = [init_model(device)]
    models.append(copy.deepcopy(models[0]))
    steps = []
    for model in models:
        opt = torch.optim.Adam(model.parameters())

        def train(mod, data, opt=opt):
            opt.zero_grad(True)
            pred = mod(data[0])
            loss = torch.nn.CrossEntropyLoss()(pred, data[1])
            loss.backward()
            opt.step()
            return loss.detach()

        steps.append(train)
    steps[1] = quickfuse.compile(steps[1], mode="reduce-overhead")
    for iteration in range(N_ITERS):
        inp = generate_data(4, device)
        before = [parameter.detach().clone() for parameter in models[0].parameters()]
        expected, actual = (step(model, inp) for step, model in zip(steps, models, strict=True))
        assert abs(actual - expected).item() < 1e-3, iteration
        moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(models[0].parameters(), before, strict=True)])
        here = torch.cat([(p.detach() - q).flatten() for p, q in zip(models[1].parameters(), before, strict=True)])
        # Adam moves by the sign of the gradient at first, also where that is nothing but a rounding error.
        assert distance(here, moved) < 0.3, iteration
        models[1].load_state_dict(models[0].state_dict())
    check_statistics(models[1], models[0], 1e-2)
