"""On a GPU, operators that optimizers use give eager's results to the last bit, in one kernel each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

pytestmark = pytest.mark.gpu
T = torch.Tensor


def foreach(name: str, *rest: Any) -> Callable[..., T]:
    """An operator on lists of one tensor, in place on a copy of its first operand."""

    def run(x: T, *others: T) -> T:
        target = [x.clone()]
        getattr(torch, name)(target, *[[o] for o in others], *rest)
        return target[0]

    return run


OPERATORS: dict[str, tuple[Callable[..., T], int]] = {
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=0.3), 2),
    "product": (lambda x: x * 0.317, 1),
    "quotient by a number": (lambda x: x / 0.317, 1),
    "quotient": (lambda x, y: x / y, 2),
    "reciprocal": (lambda x: x.reciprocal(), 1),
    "root": (lambda x: x.abs().sqrt(), 1),
    "reciprocal root": (lambda x: x.abs().rsqrt(), 1),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.001), 3),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.001), 3),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.1), 2),
    "far lerp": (lambda x, y: torch.lerp(x, y, 0.9), 2),
    "chain": (lambda x, y: (x * 0.9 + y * 0.1) * x - y, 2),
    "foreach addcdiv": (foreach("_foreach_addcdiv_"), 3),
    "foreach addcdiv, numbers": (foreach("_foreach_addcdiv_", [-0.0123]), 3),
    "foreach addcmul": (foreach("_foreach_addcmul_", 0.001), 3),
    "foreach lerp": (foreach("_foreach_lerp_", 0.1), 2),
    "foreach quotient": (foreach("_foreach_div_", [0.317]), 1),
    "exp": (torch.exp, 1),
    "sigmoid": (torch.sigmoid, 1),
    "tanh": (torch.tanh, 1),
    "sin": (torch.sin, 1),
}


@pytest.mark.parametrize(("function", "operands"), OPERATORS.values(), ids=OPERATORS)
def test_bits(function: Callable[..., T], operands: int) -> None:
    values = [torch.randn(100_000, device="cuda") for _ in range(operands)]
    compiled = quickfuse.compile(lambda *args: function(*args))
    assert torch.equal(compiled(*values), function(*values))
    assert [s.kernels for s in compiled.specialisations] == [1]


@pytest.mark.parametrize("beta", [0.9, 0.99, 0.999])
def test_bias_correction(beta: float) -> None:
    """A power that is wrong in its last bit is wrong in the fifth digit after `1 - beta ** step`."""
    compiled = quickfuse.compile(lambda step: 1 - beta**step)
    steps = [torch.tensor(float(k), device="cuda") for k in range(1, 100)]
    pairs = [(compiled(step), 1 - beta**step) for step in steps]
    same = sum(bool(torch.equal(a, b)) for a, b in pairs)
    assert same >= 85, f"{same} of 99 are equal"
