"""Numbers that change from call to call, in graphs with gradients."""

from __future__ import annotations

import math

import pytest
import torch

from differentiate.twins import check, leaf


@pytest.mark.parametrize(
    "function",
    [abs, math.floor, lambda n: max(n, 0.0), lambda n: min(n, 1e4), lambda n: n % 100, lambda n: math.copysign(n, 2.0),
     lambda n: n * 1.0, lambda n: -n],
)  # fmt: skip
def test_functions_of_numbers_are_computed_for_each_number(function) -> None:
    """A function may give its operand itself for the number that a trace sees, and another one in a later call."""

    def program(x, n):
        return (x * function(n)).sum() + (x.sin() * n).sum()

    assert check(program, *[(leaf(3), n) for n in (3.5, -2.5, 2e4, 0.0)]).graph_count == 1


def test_numbers_that_are_almost_equal() -> None:
    """The logarithm of a root is half the logarithm, but for rounding, which differs from number to number."""

    def program(x, n):
        return (x - math.log(math.sqrt(2 * n))).sum() + (x * (0.5 * math.log(2 * n))).sum()

    assert check(program, *[(leaf(3), n) for n in (math.pi, 0.1, 7.0)]).graph_count == 1


def test_the_density_and_the_entropy_of_a_distribution() -> None:
    def program(mean, scale):
        normal = torch.distributions.Normal(mean, scale)
        return normal.log_prob(mean + 1).sum() + normal.entropy().sum()

    check(program, (leaf(3), torch.rand(3, requires_grad=True)))
