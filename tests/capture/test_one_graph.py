"""What is one graph under `fullgraph=True` although PyTorch does something special in it, and what it keeps alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, hessian, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import quickfuse
from own_gradients import Square


def training_step(model: Any, x: Any) -> Any:
    for parameter in model.parameters():
        parameter.grad = None
    loss = Square.apply(model(x)).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return loss.detach()


def functional_gradient(model: Any, x: Any) -> Any:
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return grad(lambda p: functional_call(model, p, (x,)).sum())(parameters)


def checkpointed(model: Any, x: Any) -> Any:
    return checkpoint(model, x, use_reentrant=False).sum()


def mixed_precision(model: Any, x: Any) -> Any:
    with torch.autocast("cpu"):
        return model(x)


def gradient_penalty(model: Any, x: Any) -> Any:
    (gradient,) = torch.autograd.grad(model(x).sum(), model[0].weight, create_graph=True)
    return gradient.norm()


def inference(model: Any, x: Any) -> Any:
    with torch.inference_mode():
        return F.softmax(model(x), -1)


def transforms(model: Any, x: Any) -> Any:
    value, pull = vjp(model, x)
    _, tangent = jvp(torch.tanh, (x,), (x * 2,))
    return pull(value * 2)[0], tangent, vmap(torch.dot)(x, x), hessian(lambda v: (v**3).sum())(x[0])


PROGRAMS = [
    training_step, functional_gradient, checkpointed, mixed_precision, gradient_penalty, inference, transforms,
]  # fmt: skip


def model_and_input() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh()), torch.randn(2, 3)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any], backend: str) -> None:
    compiled = quickfuse.compile(program, backend=backend, fullgraph=True)
    model, x = model_and_input()
    twin, _ = model_and_input()
    for _ in range(2):
        torch.testing.assert_close(compiled(model, x), program(twin, x))
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert compiled.graph_count <= 2  # the first call of a training step finds no gradients


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_nothing_is_kept_alive(program: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(program, backend="eager")
    model, x = model_and_input()
    for _ in range(2):
        compiled(model, x)
    references = [weakref.ref(model), weakref.ref(x), *map(weakref.ref, model.parameters())]
    del model, x
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_settings_are_restored_where_an_operator_raises() -> None:
    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"), torch.no_grad():
            return (x @ x)[y]

    compiled = quickfuse.compile(run, backend="eager")
    x = torch.randn(3, 3)
    assert torch.equal(compiled(x, torch.tensor([0, 1])), run(x, torch.tensor([0, 1])))
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([0, 7]))
        assert not torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()
        assert torch.autocast_increment_nesting() == 1
        assert torch.autocast_decrement_nesting() == 0


def test_generators_are_inputs() -> None:
    @quickfuse.compile(fullgraph=True)
    def draw(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(3, generator=generator) + torch.empty(3).normal_(generator=generator)

    x = torch.ones(3)
    for seed in range(3):
        mine, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
        expected = x + torch.rand(3, generator=theirs) + torch.empty(3).normal_(generator=theirs)
        assert torch.equal(draw(x, mine), expected)
    assert draw.graph_count == 1


def test_the_graph_of_a_backward_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    def printing(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        gm.graph.print_tabular()
        return gm.forward

    model, x = model_and_input()
    quickfuse.compile(training_step, backend=printing)(model, x)
    printed = capsys.readouterr().out
    assert "Square_apply" in printed and "torch.autograd" in printed or "grad" in printed
