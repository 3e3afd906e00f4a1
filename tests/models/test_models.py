"""Real models, small: evaluation and three training steps agree with eager, each in one graph.

DenseNet-121 is in tests/seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from quickfuse.bench.zoo import GPT, Example, LstmLanguageModel, UNet
from vision import vision_models


def _classifier(name: str, size: int = 32, batch: int = 4, **settings: Any) -> Callable[[], Example]:
    def make() -> Example:
        model = getattr(vision_models(), name)(num_classes=10, **settings)
        return Example(model, torch.randn(batch, 3, size, size), torch.randint(10, (batch,)))

    return make


def _language(model: Callable[[], nn.Module], time: int) -> Callable[[], Example]:
    def make() -> Example:
        tokens = torch.randint(50, (3, time + 1))
        return Example(model(), tokens[:, :-1].clone(), tokens[:, 1:].clone())

    return make


def _vit() -> Example:
    transformer = vision_models().VisionTransformer(32, 8, 2, 4, 32, 64, num_classes=10)
    return Example(transformer, torch.randn(2, 3, 32, 32), torch.randint(10, (2,)))


MODELS: dict[str, Callable[[], Example]] = {
    "resnet18": _classifier("resnet18", 64),
    "resnet50": _classifier("resnet50", 64),
    "mobilenet_v3_large": _classifier("mobilenet_v3_large", 64),
    "vit": _vit,
    "unet": lambda: Example(UNet(4, 2), torch.randn(2, 3, 16, 16), torch.randint(4, (2, 16, 16))),
    "gpt": _language(lambda: GPT(50, 16, 32, 4, 2), 12),
    "lstm": _language(lambda: LstmLanguageModel(50, 16), 6),
    "lstm_cells": _language(lambda: LstmLanguageModel(50, 16, cells=True), 4),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Small work, and a machine that may be busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(name: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for rounding, compared with the size of the whole tensor: elements may cancel."""
    assert (actual.dtype, actual.shape, actual.stride()) == (expected.dtype, expected.shape, expected.stride()), name
    difference = (actual - expected).abs().max().item() if actual.is_floating_point() else float(not actual.equal(expected))
    assert difference <= 1e-3 * max(expected.abs().max().item(), 1e-3), f"{name}: {difference}"


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name: str) -> None:
    example = MODELS[name]()
    model = example.model.eval()
    compiled = quickfuse.compile(model, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            same("output", compiled(example.input), model(example.input))


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    """Loss, gradients of the first step, parameters and buffers after three."""
    example = MODELS[name]()
    models = [example.model.train(), copy.deepcopy(example.model).train()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    losses = [lambda x, y, model=model: example.loss(model(x), y) for model in models]
    losses[1] = quickfuse.compile(losses[1], fullgraph=True)
    for step in range(3):
        values = []
        for loss, optimizer in zip(losses, optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad(set_to_none=True)
            value = loss(example.input, example.target)
            value.backward()
            values.append(value.detach())
        same(f"loss of step {step}", values[1], values[0])
        if step == 0:
            for (parameter_name, expected), actual in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
                assert (actual.grad is None) == (expected.grad is None), parameter_name
                if expected.grad is not None:
                    same(f"gradient of {parameter_name}", actual.grad, expected.grad)
        for optimizer in optimizers:
            optimizer.step()
    for (entry, expected), actual in zip(models[0].state_dict().items(), models[1].state_dict().values(), strict=True):
        same(entry, actual, expected)
