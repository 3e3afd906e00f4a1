"""The sign of zero, forward and in gradients, for single elements and for whole vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import exact

T = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

UNARY: dict[str, Callable[[T], Any]] = {
    "relu": torch.relu, "relu6": F.relu6, "relu in place": lambda x: x.clone().relu_(), "hardtanh": F.hardtanh,
    "hardtanh from 0": lambda x: F.hardtanh(x, 0.0, 1.0), "clamp": lambda x: x.clamp(0, 1), "hardsigmoid": F.hardsigmoid,
    "clamp from -0": lambda x: x.clamp(-0.0, 1), "clamp to -0": lambda x: x.clamp(-1, -0.0), "hardswish": F.hardswish,
    "clamp_min": lambda x: x.clamp_min(0), "clamp_max": lambda x: x.clamp_max(0), "min -0": lambda x: x.clamp(min=-0.0),
    "max -0": lambda x: x.clamp(max=-0.0), "threshold": lambda x: F.threshold(x, 0.0, -0.0), "leaky": F.leaky_relu,
    "elu": F.elu, "selu": F.selu, "celu": F.celu, "hardshrink": F.hardshrink, "abs": torch.abs, "neg": torch.neg,
    "sign": torch.sign, "round": torch.round, "trunc": torch.trunc, "ceil": torch.ceil, "floor": torch.floor,
    "times 0": lambda x: x * 0, "plus 0": lambda x: x + 0, "plus -0": lambda x: x + -0.0, "0 minus": lambda x: 0 - x,
    "tanh": torch.tanh, "sin": torch.sin, "gelu": F.gelu, "silu": F.silu, "one over relu": lambda x: 1 / x.relu(),
    "one over clamp": lambda x: 1 / x.clamp(0, 1), "sums of one element": lambda x: x[..., None].sum(-1),
    "means of one element": lambda x: x[..., None].mean(-1), "cummax": lambda x: x.cummax(0)[0],
    "average": lambda x: F.avg_pool1d(x[None], 1), "maxima of windows": lambda x: F.max_pool1d(x[None], 1),
}  # fmt: skip

BINARY: dict[str, Callable[[T, T], Any]] = {
    "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "max": torch.max,
    "clamp": lambda x, y: x.clamp(y, y + 1), "clamp_min": lambda x, y: x.clamp_min(y),
    "clamp_max": lambda x, y: x.clamp_max(y),
    "foreach": lambda x, y: torch._foreach_maximum([x], [y]), "amax": lambda x, y: torch.stack([x, y]).amax(0),
    "amin": lambda x, y: torch.stack([x, y], 1).amin(1), "largest": lambda x, y: torch.stack([x, y]).max(0)[0],
    "where": lambda x, y: torch.where(x > y, x, y), "copysign": torch.copysign, "fmod": torch.fmod, "mul": torch.mul,
}  # fmt: skip


def _with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    def program(x: T, *others: T) -> Any:
        result = function(x, *others)
        tangent = torch.where(torch.arange(result.numel()) % 3 == 0, -0.0, 1.0).to(result.dtype).reshape(result.shape)
        return result, torch.autograd.grad(result, x, tangent)

    return program


def _differences(function: Callable[..., Any], *arguments: T) -> list[str]:
    found = exact.differences(function, *arguments, exactly=False)
    return [line for line in found if "values" in line or not line.startswith("tensor")]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_tensor(name: str, dtype: torch.dtype, grad: bool) -> None:
    """Where eager's vectors and its single elements agree."""
    for count in (1, 40):
        x = torch.tensor([-0.0, 0.0, 1.0, -1.0, 0.5, -3.0, 7.0] * count, dtype=dtype, requires_grad=grad)
        assert not _differences(_with_gradient(UNARY[name]) if grad else UNARY[name], x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_tensors(name: str, dtype: torch.dtype) -> None:
    """The first of two zeros, as in eager's code for single elements. (Its code for whole vectors gives the second one.)"""
    x, y = torch.tensor([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0], [1.0, -0.0]], dtype=dtype).unbind(1)
    assert not _differences(BINARY[name], x.contiguous(), y.contiguous())
