"""Complex parameters, which optimizers see as pairs of real numbers: memory of two types that is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import quickfuse


class Spectral(nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, dtype=torch.complex64) * 0.1)
        self.conv = nn.Conv1d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        modes = self.weight.shape[-1]
        found = torch.fft.rfft(x)
        made = torch.zeros_like(found)
        made[..., :modes] = torch.einsum("bim,iom->bom", found[..., :modes], self.weight)
        return F.gelu(torch.fft.irfft(made, n=x.shape[-1]) + self.conv(x))


def tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for element in values for tensor in tensors_of(element)]


def reasons(compiled: Any) -> list[str]:
    return [s.without_kernels for s in compiled.specialisations if s.without_kernels]


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.Adam(p, lr=0.01), lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    lambda p: torch.optim.Adam(p, lr=0.01, foreach=True), lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.NAdam(p), lambda p: torch.optim.Adadelta(p),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
], ids=["adam", "adamw", "foreach", "rmsprop", "adagrad", "nadam", "adadelta", "sgd"])  # fmt: skip
@pytest.mark.parametrize("clip", [False, True])
def test_whole_steps(make: Callable[[Any], torch.optim.Optimizer], clip: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 4, 1), Spectral(4, 8), Spectral(4, 8), nn.Conv1d(4, 1, 1))
    data = [(torch.randn(3, 1, 32), torch.randn(3, 1, 32)) for _ in range(4)]
    runs = []
    for wrap in (lambda function: function, quickfuse.compile):
        model = copy.deepcopy(net)
        optimizer = make(model.parameters())

        def step(x: Any, y: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return loss.detach()

        run = wrap(step)
        found = []
        for pair in data:
            found += [run(*pair), *tensors_of([*model.parameters()]), *tensors_of(optimizer.state_dict()["state"])]
        runs.append(found)
    torch.testing.assert_close(runs[1], runs[0], rtol=1e-3, atol=1e-5)
    assert not reasons(run)


def shown(p: torch.Tensor, q: torch.Tensor) -> Any:
    pairs = torch.view_as_real(p)
    pairs.mul_(0.9).add_(q[..., None])
    doubled = p * 2
    pairs[..., 0] = 1.0
    return doubled, p.abs().sum(), pairs.sum()


def shown_as_complex(p: torch.Tensor, q: torch.Tensor) -> Any:
    pairs = torch.stack([q, q], -1)
    turned = torch.view_as_complex(pairs)
    turned.mul_(1j)
    return pairs.sum(0) + q.mean(), turned.abs()


def both_sides(p: torch.Tensor, q: torch.Tensor) -> Any:
    for _ in range(3):
        p.mul_(1 + 0.1j)
        pairs = torch.view_as_real(p)
        pairs.add_(q[..., None] * 2).sigmoid_()
    return torch.tanh(p.abs()) + q


@pytest.mark.parametrize("function", [shown, shown_as_complex, both_sides])
def test_memory_of_two_types(function: Any) -> None:
    compiled = quickfuse.compile(function)
    for number in range(3):
        torch.manual_seed(number)
        p, q = torch.randn(3, 4, dtype=torch.complex64), torch.randn(3, 4)
        inputs = [[p.clone(), q.clone()] for _ in range(2)]
        torch.testing.assert_close(compiled(*inputs[1]), function(*inputs[0]))
        torch.testing.assert_close(inputs[1], inputs[0])


def test_gradients_through_both_types() -> None:
    def function(p: torch.Tensor) -> torch.Tensor:
        doubled = p * 2
        pairs = torch.view_as_real(doubled)
        pairs.mul_(0.5)
        pairs[..., 1].add_(1)
        turned = torch.view_as_complex(torch.sin(pairs))
        turned.mul_(1j)
        return turned.abs().square().sum() + pairs.sum()

    compiled = quickfuse.compile(function)
    for number in range(3):
        torch.manual_seed(number)
        leaves = [torch.randn(3, 4, dtype=torch.complex64).requires_grad_() for _ in range(2)]
        with torch.no_grad():
            leaves[1].copy_(leaves[0])
        for run, leaf in zip((function, compiled), leaves, strict=True):
            run(leaf).backward()
        torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
