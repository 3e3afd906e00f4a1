"""Numbers that change from call to call, in graphs with gradients."""

from __future__ import annotations

import math
import random

import pytest
import torch

from differentiate.twins import check, compiled, joined, leaf, reasons


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


def change_in_place(x, n):
    y = x * 2
    y[0] = n * 0.5
    y[y > n] = n
    return y


@pytest.mark.parametrize(
    "function",
    [lambda x, n: x * (x < n) * (n <= x + 1) * (torch.arange(3) != n), lambda x, n: torch.where(x > 0, x, n / 2),
     lambda x, n: torch.where(x > n, n, x), lambda x, n: x * torch.full((3,), n) + x.clip(-n, n), lambda x, n: x % (n + 0.1),
     lambda x, n: x * (torch.arange(3) // (n * n + 1)), change_in_place, lambda x, n: x.gt(n) * x + x.sin().fmod(n * n + 1)],
)  # fmt: skip
def test_numbers_that_are_compared_and_chosen(function) -> None:
    twin = check(function, *[(leaf(3), n) for n in (2, 3, 0, -1)], *[(leaf(3), n) for n in (0.25, 0.0, -1.5)])
    assert twin.graph_count == 2


@pytest.mark.parametrize("power", [lambda x, n: x**n, lambda x, n: torch.pow(x, exponent=n), lambda x, n: (x * 1).pow_(n)])
def test_exponents(power) -> None:
    """One graph for each type of exponent, and one for zero: its gradient is zero where others have infinities."""

    def program(x, n):
        return power(x, n).sum() + power(x.sin() + 1, n).sum()

    for exponents in ((2, 3, 0, 1, 0, -1), (2.0, 0.5, 0.0, 1.0, 3.0)):
        roots = torch.tensor([0.0, 1.5, 0.25])
        twin = check(program, *[(roots.clone().requires_grad_(), n) for n in exponents])
        assert twin.graph_count == 2


def test_truth_values_that_only_python_sees() -> None:
    def program(x, bound):
        y = x.sin() * 2
        if random.random() < bound:
            y = y * 2
        found = bool(y.sum() > bound)
        return y.cos(), found

    twin = compiled(program)
    for seed in range(4):
        sides = []
        for run in (program, twin):
            random.seed(seed)
            x = leaf(3, seed=seed)
            result, found = run(x, 0.5)
            result.sum().backward()
            sides.append((result.detach(), torch.tensor(found), x.grad))
        torch.testing.assert_close(sides[1], sides[0])
    assert joined(twin), reasons(twin)
