"""Parameters of activations, losses and norms at the edges: numbers beyond a type, infinite ones, operands that are one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quickfuse
from differential import same

ZEROS = torch.tensor([0.0, -0.0, 1.0, -1.0, 3e4, -torch.inf, torch.nan, 0.0] * 3 + [0.0, -0.0])

ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "elu": F.elu, "celu": F.celu, "leaky_relu": F.leaky_relu, "softplus": F.softplus, "hardshrink": F.hardshrink,
    "softshrink": F.softshrink, "hardtanh": lambda x, n: F.hardtanh(x, -n, n),
    "threshold": lambda x, n: F.threshold(x, n, 0.0),
}  # fmt: skip


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numbers_that_change_and_do_not_fit(name: str, dtype: torch.dtype) -> None:
    function = ACTIVATIONS[name]
    compiled = quickfuse.compile(lambda x, n: function(x, n))
    x = ZEROS.to(dtype)
    for number in (0.5, 0.75, 1.5, 7e4, 1e10, 1e39, torch.inf):
        expected, got = outcome(function, x, number), outcome(compiled, x, number)
        rtol = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        assert same(expected, got, rtol=rtol, atol=1e-6), f"{number}: {expected}\n{got}"


@pytest.mark.parametrize("alpha", [torch.inf, -torch.inf, -1.0])
def test_zeros_of_elu(alpha: float) -> None:
    expected, got = F.elu(ZEROS, alpha), quickfuse.compile(lambda x: F.elu(x, alpha))(ZEROS)
    assert same(expected, got)
    known = ~expected.isnan()
    assert torch.equal(expected.signbit()[known], got.signbit()[known])


def test_a_beta_that_is_no_number() -> None:
    compiled = quickfuse.compile(lambda x, beta: F.smooth_l1_loss(x, x * 2, beta=beta))
    for beta in (1.0, 2.0, 0.5):
        compiled(ZEROS, beta)
    for beta in (torch.nan, -1.0):
        with pytest.raises(RuntimeError, match="negative values for beta"):
            compiled(ZEROS, beta)
    with pytest.raises(RuntimeError, match="negative values for beta"):
        quickfuse.compile(lambda x: F.smooth_l1_loss(x, x * 2, beta=torch.nan))(ZEROS)


@pytest.mark.parametrize("delta", [0.1, 0.3, 0.7777, 1.3333])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_delta_is_rounded(delta: float, reduction: str) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(2, 1003).bfloat16()
    compiled = quickfuse.compile(lambda x, y: F.huber_loss(x, y, delta=delta, reduction=reduction))
    assert torch.equal(compiled(x, y), F.huber_loss(x, y, delta=delta, reduction=reduction))


class Norm(torch.nn.Module):
    """A batch norm with a statistic in the memory of its weight."""

    def __init__(self, statistic: str) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        setattr(self.norm, statistic, self.norm.weight.data)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).square()


@pytest.mark.parametrize("statistic", ["running_mean", "running_var"])
@pytest.mark.parametrize("grad", [True, False])
def test_a_running_statistic_that_is_the_weight(statistic: str, grad: bool) -> None:
    found = []
    for compile_ in (lambda m: m, quickfuse.compile):
        torch.manual_seed(0)
        module = Norm(statistic)
        called = compile_(module)
        with torch.set_grad_enabled(grad):
            found.append([called(torch.randn(5, 4)).detach() for _ in range(3)] + [module.norm.weight.detach()])
    assert same(*found, rtol=1e-5, atol=1e-6)


def test_statistics_that_are_one_made_inside() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.ones(4) * 2
        return F.batch_norm(x * 1, both, both, None, None, True), both

    x = torch.randn(5, 4)
    assert same(function(x), quickfuse.compile(function)(x), rtol=1e-5, atol=1e-6)
