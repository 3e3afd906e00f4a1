"""What forward keeps for backward: never more than eager, and less where it can be computed again cheaply."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from differentiate.test_models import Block, Language
from differentiate.twins import compiled
from quickfuse import logs
from quickfuse.bench.models import memory_bytes
from quickfuse.bench.step import Step
from quickfuse.bench.zoo import LstmLanguageModel
from vision import vision_models


def distinct_bytes(tensors, model: nn.Module, *batch) -> int:
    """Bytes of the memory of tensors, without parameters, buffers and inputs."""
    known = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers(), *batch]}
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(size for address, size in storages.items() if address not in known)


def kept_by_eager(model: nn.Module, *batch) -> int:
    alive = []

    def pack(tensor):
        alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = model(*batch)
    del result
    return distinct_bytes(alive, model, *batch)


def share(model: nn.Module, *batch) -> float:
    """What the one node of autograd's graph that is ours and saves tensors keeps, as a share of what eager's nodes keep."""
    eager = kept_by_eager(copy.deepcopy(model), *batch)
    result = compiled(type(model).forward)(model, *batch)
    output = result[0] if isinstance(result, tuple) else result
    node = output.grad_fn
    while "Dependent" in type(node).__name__:
        assert not node.saved_tensors
        node = node.next_functions[0][0]
    assert "Joined" in type(node).__name__
    return distinct_bytes(node.saved_tensors, model, *batch) / eager


def test_transformer_block_keeps_less() -> None:
    assert share(Block(32, 4), torch.randn(2, 16, 32)) < 0.75


def test_language_model_keeps_less() -> None:
    assert share(Language(), torch.randint(0, 20, (3, 8))) < 0.8


def test_densenet_keeps_less() -> None:
    models = vision_models()
    model = models.DenseNet(growth_rate=8, block_config=(3, 3), num_init_features=16, num_classes=10)
    assert share(model, torch.randn(2, 3, 32, 32)) < 0.7


def test_recurrent_network_keeps_less() -> None:
    assert share(LstmLanguageModel(20, 16, cells=True), torch.randint(0, 20, (3, 6))) < 0.9


def test_steps_of_a_recurrent_network_share_kernels() -> None:
    """Neither forward nor backward computes the states of earlier steps again, in kernels that get longer."""

    def new_kernels(time: int) -> int:
        model = LstmLanguageModel(20, 16, cells=True)
        before = logs.counts.get("distinct kernels", 0)
        compiled(type(model).forward)(model, torch.randint(0, 20, (3, time))).sum().backward()
        return logs.counts["distinct kernels"] - before

    new_kernels(4)
    assert new_kernels(10) <= 3


@pytest.mark.parametrize(
    "model, shape",
    [
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (4, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Dropout(), nn.MaxPool2d(2)), (2, 3, 12, 12)),
        (nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1), nn.LayerNorm(8), nn.Tanh(), nn.Sigmoid()), (4, 8)),
    ],
)
def test_never_more_than_eager(model, shape) -> None:
    assert share(model, torch.randn(shape)) <= 1.0


@pytest.mark.parametrize("layer", [nn.Tanh, nn.GELU, nn.ReLU])
def test_backward_lets_go_of_what_was_kept_as_it_goes_along(layer) -> None:
    """The gradients of all weights and all that was kept are never there at once."""
    model = nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(128, 128), layer())])
    x, peaks = torch.randn(128, 128), []

    def loss(x):
        return model(x).square().sum()

    for run in (loss, compiled(loss)):

        def step(x, run=run):
            model.zero_grad()
            run(x).backward()

        step(x)
        peaks.append(memory_bytes(Step(lambda: step, (x,)), step)["peak"])
    assert peaks[1] <= 1.02 * peaks[0]  # eager has fewer scalars


def test_what_is_retained_is_kept() -> None:
    def function(x, w):
        return (x @ w).tanh().exp().sum()

    x, w = torch.randn(90, 90, requires_grad=True), torch.randn(90, 90, requires_grad=True)
    loss = compiled(function)(x, w)
    first = torch.autograd.grad(loss, [x, w], retain_graph=True)
    second = torch.autograd.grad(loss, [x, w])
    expected = torch.autograd.grad(function(x, w), [x, w])
    torch.testing.assert_close(first, expected)
    torch.testing.assert_close(second, expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, [x, w])
