"""The output layer of a language model whose `backward()` is called outside of the compiled function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.capture import capture
from quickfuse.differentiate import differentiate, early_gradients
from quickfuse.ir import target

ROWS, CLASSES, DEPTH = 64, 301, 8


@pytest.fixture(autouse=True)
def chunked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_gradients, "costs_on", lambda device: replace(target.GPU_COSTS, least_chunked=1 << 12))


def operands(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    wanted = torch.randint(CLASSES, (ROWS,))
    wanted[3] = -100
    x, w = torch.randn(ROWS, DEPTH, dtype=dtype), torch.randn(CLASSES, DEPTH, dtype=dtype) / 3
    return [x.requires_grad_(), w.requires_grad_(), wanted]


def plain(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((torch.tanh(x) @ w.t()).float(), wanted)


def summed(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w), wanted, reduction="sum") / 7 + x.square().mean()


def of_text(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    scores = F.linear(x.view(4, ROWS // 4, DEPTH), w).transpose(1, 2)
    return F.cross_entropy(scores, wanted.view(4, -1))


def used_twice(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    scores = F.linear(x, w)
    return F.cross_entropy(scores, wanted) + scores.sin().sum()


def smoothed(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, w), wanted, label_smoothing=0.1)


LOSSES = {f.__name__: f for f in (plain, summed, of_text, used_twice, smoothed)}


def kept(loss: Callable[..., Any], inputs: list[torch.Tensor]) -> list[int]:
    """The elements of what forward keeps, but for inputs."""
    made = differentiate(capture(loss, tuple(inputs), {}).graph)  # type: ignore[arg-type]
    outputs = next(node for node in made.forward.nodes if node.op == "output").args[0]
    return [outputs[s.index].meta["val"].numel for s in made.saved if not s.of_input]  # type: ignore[index,union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [1.0, 0.25, 3.0])
def test_gradients_are_those_of_eager(name: str, dtype: torch.dtype, scale: float) -> None:
    compiled = quickfuse.compile(LOSSES[name], fullgraph=True)
    results = []
    for function in (LOSSES[name], compiled):
        x, w, wanted = operands(dtype)
        value = function(x, w, wanted)
        (value * scale).backward(retain_graph=True)
        (value * scale).backward()
        results.append((value.detach(), x.grad, w.grad))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}[dtype]
    for one, two in zip(*results, strict=True):
        assert one is not None and two is not None
        torch.testing.assert_close(two, one, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["plain", "summed", "of_text"])
def test_scores_are_not_kept(name: str) -> None:
    assert max(kept(LOSSES[name], operands())) == CLASSES * DEPTH


def test_scores_are_kept_where_gradients_could_vanish_or_others_read_them() -> None:
    assert max(kept(plain, operands(torch.float16))) == ROWS * CLASSES
    assert max(kept(used_twice, operands())) == ROWS * CLASSES

    def two(x: torch.Tensor, w: torch.Tensor, wanted: torch.Tensor) -> Any:
        value = plain(x, w, wanted)
        return value, value * x.sum()

    assert max(kept(two, operands())) == ROWS * CLASSES


def test_gradients_of_gradients_are_eager_s() -> None:
    results = []
    for function in (plain, quickfuse.compile(plain)):
        x, w, wanted = operands()
        (grad,) = torch.autograd.grad(function(x, w, wanted), x, create_graph=True)
        results.append(torch.autograd.grad(grad.square().sum(), w)[0])
    torch.testing.assert_close(*results)
