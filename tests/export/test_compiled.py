"""Programs that come back from files compile, to the kernels of the originals."""

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
from quickfuse.bench.zoo import GPT, Example, LstmLanguageModel, UNet
from vision import vision_models

MODELS: dict[str, Callable[[], Example]] = {
    "resnet18": lambda: Example(
        vision_models().resnet18(num_classes=10), torch.randn(2, 3, 64, 64), torch.randint(10, (2,))
    ),
    "unet": lambda: Example(UNet(4, 2), torch.randn(2, 3, 16, 16), torch.randint(4, (2, 16, 16))),
    "gpt": lambda: _language(GPT(50, 16, 32, 4, 2), 12),
    "lstm": lambda: _language(LstmLanguageModel(50, 16), 6),
    "lstm_cells": lambda: _language(LstmLanguageModel(50, 16, cells=True), 4),
}


def _language(model: nn.Module, time: int) -> Example:
    tokens = torch.randint(50, (3, time + 1))
    return Example(model, tokens[:, :-1].clone(), tokens[:, 1:].clone())


def kernels(compiled: Any) -> list[tuple[int, str]]:
    return [(s.kernels, s.without_kernels) for s in compiled._compiled.specialisations]


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_program_has_the_same_kernels(name: str, training: bool, tmp_path: Any) -> None:
    torch.manual_seed(0)
    example = MODELS[name]()
    model = example.model.train(training)
    loaded = through_file(quickfuse.export(model, (example.input,)), tmp_path).module()
    model = copy.deepcopy(model)
    ours, theirs = quickfuse.compile(loaded, fullgraph=True), quickfuse.compile(model, fullgraph=True)
    with torch.set_grad_enabled(training):
        got, wanted = ours(example.input), theirs(example.input)
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
    assert kernels(ours) == kernels(theirs)
    if training:
        for result in (got, wanted):
            example.loss(result, example.target).backward()
        for one, two in zip(loaded.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-5)
        for one, two in zip(loaded.buffers(), model.buffers(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)


def test_a_loaded_step_compiles(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 4), torch.randint(3, (8,))

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    module = through_file(quickfuse.export(step, (x, y)), tmp_path).module()
    compiled = quickfuse.compile(module)
    for _ in range(4):
        torch.testing.assert_close(compiled(x, y), step(x, y), rtol=1e-5, atol=1e-6)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(module.get_parameter(f"model.{name}"), parameter, rtol=1e-4, atol=1e-5)


def test_numbers_and_nesting_compile() -> None:
    def program(x: torch.Tensor, s: float, options: dict[str, Any]) -> dict[str, Any]:
        return {"x": x * s + options["y"], "twice": s * 2, "kind": options["kind"]}

    x = torch.randn(3)
    module = quickfuse.export(program, (x, 2.0, {"y": x, "kind": "a"})).module()
    compiled = quickfuse.compile(module, fullgraph=True)
    for s in (2.0, 0.5, 7.0):
        found, wanted = compiled(x, s, {"y": x, "kind": "a"}), program(x, s, {"y": x, "kind": "a"})
        torch.testing.assert_close(found["x"], wanted["x"])
        assert (found["twice"], found["kind"]) == (wanted["twice"], wanted["kind"])
    assert compiled._compiled.graph_count == 1


def test_a_call_that_does_not_fit_is_an_error_in_compiled_code_too() -> None:
    module = quickfuse.export(lambda x: x + 1, (torch.randn(3),)).module()
    compiled = quickfuse.compile(module)
    compiled(torch.randn(3))
    with pytest.raises(quickfuse.errors.ExportedCallError, match="x.shape\\[0\\] is 3 in the exported program, got 4"):
        compiled(torch.randn(4))


def test_convolutions_with_lists_as_sizes() -> None:
    weight = torch.randn(64, 32, 3, 3, dtype=torch.float64)

    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.relu(functional.conv2d(x, weight, stride=[2, 2], padding=[1, 1]))

    x = torch.randn(1, 32, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(quickfuse.compile(program)(x), program(x))
