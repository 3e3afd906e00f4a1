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
from seeding import seed_torch
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


class Twins:
    """One model three times: eager, compiled, and eager in float64, which tells what the others should have computed.

    Batch norm over few elements multiplies rounding errors, so results are right if they are about as near to those in
    float64 as eager's are.
    """

    def __init__(self, example: Example, training: bool) -> None:
        model = example.model.train(training)
        wide = copy.deepcopy(model).double()
        self.example = example
        self.models = {"eager": model, "compiled": copy.deepcopy(model), "wide": wide}
        self.inputs = {"eager": example.input, "compiled": example.input, "wide": example.input}
        if example.input.is_floating_point():
            self.inputs["wide"] = example.input.double()

    def check(self, name: str, results: dict[str, torch.Tensor | None]) -> None:
        eager, compiled, wide = results["eager"], results["compiled"], results["wide"]
        assert (compiled is None) == (eager is None), name
        if eager is None or compiled is None or wide is None:
            return
        assert (compiled.dtype, compiled.shape, compiled.stride()) == (eager.dtype, eager.shape, eager.stride()), name
        if not eager.is_floating_point():
            assert compiled.equal(eager), name
            return
        error, usual = ((one - wide).norm().item() for one in (compiled, eager))
        # A rounding error that takes an element across zero switches a ReLU, and a gradient with it.
        share = 0.05 if "gradient" in name else 1e-5
        assert error <= 10 * usual + share * wide.norm().item() + 1e-6, f"{name}: off by {error}, eager by {usual}"


@pytest.mark.parametrize("name", MODELS)
def test_evaluation(name: str) -> None:
    twins = Twins(MODELS[name](), training=False)
    calls: dict[str, Callable[..., Any]] = dict(twins.models)
    calls["compiled"] = quickfuse.compile(twins.models["compiled"], fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            twins.check("output", {kind: call(twins.inputs[kind]) for kind, call in calls.items()})


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    """Loss, gradients and buffers of three steps."""
    twins = Twins(MODELS[name](), training=True)
    losses = {kind: _loss(twins.example, model) for kind, model in twins.models.items()}
    losses["compiled"] = quickfuse.compile(losses["compiled"], fullgraph=True)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in twins.models.values()]
    for step in range(3):
        values = {}
        for kind, loss in losses.items():
            seed_torch(step)
            twins.models[kind].zero_grad(set_to_none=True)
            value = loss(twins.inputs[kind], twins.example.target)
            value.backward()
            values[kind] = value.detach()
        twins.check(f"loss of step {step}", values)
        parameters = {kind: dict(model.named_parameters()) for kind, model in twins.models.items()}
        buffers = {kind: dict(model.named_buffers()) for kind, model in twins.models.items()}
        for entry in parameters["eager"]:
            twins.check(f"gradient of {entry}", {kind: found[entry].grad for kind, found in parameters.items()})
        for entry in buffers["eager"]:
            twins.check(entry, {kind: found[entry] for kind, found in buffers.items()})
        for optimizer in optimizers:
            optimizer.step()
        for kind in ("compiled", "wide"):  # each step starts from equal parameters, or else errors would grow
            twins.models[kind].load_state_dict(twins.models["eager"].state_dict())


def _loss(example: Example, model: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda x, y: example.loss(model(x), y)
