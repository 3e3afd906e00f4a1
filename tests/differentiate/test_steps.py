"""Whole training steps, with `backward()` inside, and autocast: graphs of ATen operators like those of gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from differentiate.twins import check, compiled, leaf, reasons


def model():
    return nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 8), nn.GELU(),
        nn.Linear(8, 3),
    )  # fmt: skip


def step_of(net, optimizer, clip):
    def step(x, labels):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_training_step(make, clip) -> None:
    torch.manual_seed(0)
    eager = model()
    mine = copy.deepcopy(eager)
    optimizers = [make(net.parameters()) for net in (eager, mine)]
    runs = [step_of(eager, optimizers[0], clip), compiled(step_of(mine, optimizers[1], clip))]
    for number in range(4):
        losses = []
        for optimizer, run in zip(optimizers, runs, strict=True):
            torch.manual_seed(number)
            optimizer.param_groups[0]["lr"] = 0.01 / (number + 1)
            losses.append(run(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])))
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        for (name, one), (_, other) in zip(mine.named_parameters(), eager.named_parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
        for one, other in zip(mine.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    assert not reasons(runs[1])


def test_gradients_taken_inside() -> None:
    def function(x, w):
        y = (x * w).sin()
        (first,) = torch.autograd.grad(y.sum(), [x], create_graph=True)
        return (first**2).sum() + y.sum()

    check(function, (leaf(3, 4), leaf(3, 4, seed=1)))


def test_autocast() -> None:
    linear = nn.Linear(8, 8)

    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = linear(linear(x).relu())
            z = y.float().softmax(-1)
        return z.sum(0) * x, y

    check(function, (leaf(4, 8),), (leaf(4, 8, seed=1),), rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
    with torch.no_grad():
        check(function, (leaf(4, 8),), rtol=2e-2, atol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
