"""Networks on a GPU: convolutions with channels last, batch norms, and the output layer of a language model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse import logs

pytestmark = pytest.mark.gpu
MODES = [None, "reduce-overhead"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 8, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).cuda()  # fmt: skip


def compiled(function: Any, mode: str | None) -> Any:
    return quickfuse.compile(function, mode=mode, options={"raise_internal_errors": True})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(dtype: torch.dtype, mode: str | None) -> None:
    nets = [network(), network()]
    before = logs.counts.get("cuda graphs", 0)
    target = torch.randint(10, (16,), device="cuda")

    def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype is torch.bfloat16):
            return F.cross_entropy(net(x), target)

    functions = [loss_of, compiled(loss_of, mode)]
    for _ in range(4):
        x = torch.randn(16, 3, 64, 64, device="cuda")
        for net, function in zip(nets, functions, strict=True):
            net.zero_grad()
            function(net, x).backward()
    # Convolutions round to TF32, in another order.
    tolerance = 3e-2 if dtype is torch.float32 else 0.2
    for one, two in zip(*(net.parameters() for net in nets), strict=True):
        assert one.grad is not None and two.grad is not None and one.grad.stride() == two.grad.stride()
        assert (one.grad - two.grad).norm() <= tolerance * one.grad.norm() + 1e-3
    for one, two in zip(*(net.buffers() for net in nets), strict=True):
        torch.testing.assert_close(two, one, rtol=2e-2, atol=2e-2)
    if mode is not None:
        assert logs.counts["cuda graphs"] == before + 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_evaluation(dtype: torch.dtype, mode: str | None) -> None:
    net = network().eval().to(dtype)
    fast, before = compiled(copy.deepcopy(net), mode), logs.counts.get("cuda graphs", 0)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(16, 3, 64, 64, device="cuda", dtype=dtype)
            made, expected = fast(x), net(x)
            assert made.stride() == expected.stride()
            torch.testing.assert_close(made, expected, rtol=3e-2, atol=3e-2)
    if mode is not None:
        assert logs.counts["cuda graphs"] == before + 1


def test_the_scores_of_a_language_model_are_never_in_memory() -> None:
    rows, classes, depth = 8192, 50257, 256
    x = torch.randn(rows, depth, device="cuda", requires_grad=True)
    w = (torch.randn(classes, depth, device="cuda") / 16).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")

    def loss_of(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(F.linear(x, w), target)

    fast = compiled(loss_of, None)
    fast(x, w).backward()
    made = x.grad, w.grad
    x.grad = w.grad = None
    torch.cuda.synchronize()
    start = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fast(x, w).backward()
    assert torch.cuda.max_memory_allocated() - start < 700 << 20  # the scores have 800 MB in bfloat16
    x.grad = w.grad = None
    loss_of(x, w).backward()
    for one, two in zip(made, (x.grad, w.grad), strict=True):
        assert one is not None and two is not None
        assert (one - two).norm() <= 2e-2 * two.norm()
