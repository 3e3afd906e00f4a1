"""The order in which leaves get their gradients, which their hooks can tell."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from differentiate.twins import compiled
from quickfuse.launch.autograd_nodes import edges_for

MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    **{f"{count} layers": (lambda count=count: nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)]), torch.ones(2, 4))
       for count in (1, 2, 3, 4, 7)},
    "images": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 4)),
               torch.ones(2, 1, 5, 5)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.ones(2, 3, 8)),
    "words": (lambda: nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 4)), torch.tensor([[1, 2]])),
}  # fmt: skip


def _order(model: nn.Module, x: torch.Tensor, inside: bool, hook: str, wrap: Callable[..., Any]) -> list[str]:
    names: list[str] = []
    for name, parameter in model.named_parameters():
        getattr(parameter, hook)(lambda _, name=name: names.append(name))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return model(x).square().sum()

    def step(x: torch.Tensor) -> None:
        loss(x).backward()

    run = wrap(step) if inside else wrap(loss)
    for _ in range(2):
        result = run(x)
        if not inside:
            result.backward()
    return names


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_hooks_of_parameters(name: str, inside: bool, hook: str) -> None:
    make, x = MODELS[name]
    model = make()
    expected = _order(copy.deepcopy(model), x, inside, hook, lambda f: f)
    assert _order(model, x, inside, hook, compiled) == expected


def _as_autograd(edges: list[int]) -> Iterator[int]:
    """The order in which autograd goes on to these nodes, found by experiment."""
    found: list[int] = []

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *leaves: torch.Tensor) -> torch.Tensor:
            return torch.ones(())

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return tuple([gradient] * len(edges))

    leaves = [torch.ones((), requires_grad=True) for _ in edges]
    for k, leaf in zip(edges, leaves, strict=True):
        leaf.register_hook(lambda _, k=k: found.append(k))
    Node.apply(*leaves).backward()
    yield from found


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 13, 50])
def test_edges(count: int) -> None:
    generator = torch.Generator().manual_seed(count)
    for order in itertools.islice((torch.randperm(count, generator=generator).tolist() for _ in itertools.count()), 3):
        assert list(_as_autograd(edges_for(order))) == order


def several(w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    first = w.sin()
    third, second = (w * 2).cos(), (w * 3).exp()
    return [first, second, third]


def each_of_its_own(w: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    second = v.square()
    return [w.sin(), second, (w * v).cos()]


@pytest.mark.parametrize("leaves", [True, False])
@pytest.mark.parametrize("registered", [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0], [1]])
@pytest.mark.parametrize("program", [several, each_of_its_own])
def test_hooks_of_results(program: Callable[..., list[torch.Tensor]], registered: list[int], leaves: bool) -> None:
    def names(run: Callable[..., list[torch.Tensor]]) -> list[str]:
        found: list[str] = []
        for _ in range(2):
            w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
            results = run(w, v) if leaves else run(w * 1, v * 1)
            for k in registered:
                results[k].register_hook(lambda _, k=k: found.append(f"result {k}"))
                results[k].register_hook(lambda gradient, k=k: gradient * (k + 1))
            sum(result.sum() for result in results).backward()
            found.append(f"{w.grad.sum():.3f} {v.grad}")
        return found

    assert names(compiled(program)) == names(program)
