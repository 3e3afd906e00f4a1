"""Numbers that change from call to call, in graphs with gradients."""

from __future__ import annotations

import math
import random

import pytest
import torch

from differentiate.twins import check, compiled, joined, leaf, reasons
from quickfuse.differentiate import shapes
from quickfuse.ir.memo import Memo


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


@pytest.mark.parametrize("power", [lambda w, n: n**w, lambda w, n: torch.pow(n, w) * n + w.abs() ** n])
def test_bases(power) -> None:
    def program(w, n):
        return power(w, n).sum()

    twin = check(program, *[(leaf(3), n) for n in (2.5, 3.5, 0.5, 1.0, math.inf)])
    assert twin.graph_count == 1 and not reasons(twin)
    check(program, *[(leaf(3), n) for n in (2.5, 0.0, -2.0, 7.0, math.nan)])
    check(program, *[(leaf(3), n) for n in (2, 3, 0, -1, 5)])


def test_comparisons_with_numbers() -> None:
    def program(x, n):
        y = x.sin() + x
        kept = torch.where(y.ne(n), y, y * 0) + (y > n) * y + (n >= y) * y.cos()
        return kept.sum(), y.le(n + 1), torch.lt(y, n)

    assert check(program, *[(leaf(5), n) for n in (0.3, -0.5, 4, 1)]).graph_count == 2


def test_truth_values_that_change() -> None:
    """Which are results, or decide something between two graphs."""

    def program(x, n):
        small = n < 1
        return (x * n).sin().sum(), small, n + small

    assert check(program, *[(leaf(3), n) for n in (3.5, -2.5, 0.5)]).graph_count == 1


def test_draws_that_decide_between_graphs_with_gradients() -> None:
    def program(x, ratio):
        hidden = (x * x).tanh()
        return hidden.sin().sum() if random.random() < ratio else hidden.cos().sum()

    twin = compiled(program)
    for seed in range(6):
        grads = []
        for function in (program, twin):
            random.seed(seed)
            x = leaf(3)
            function(x, 0.5).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
    assert joined(twin)


def test_numbers_that_are_put_into_tensors() -> None:
    def program(x, n):
        y = x.sin() * x
        z = torch.zeros_like(y)
        z[y > 0] = n
        z[0] = n * 2
        z[1:3] = n + 1
        y = y * z + torch.where(y > 0, n, y) + torch.where(y < 0, y, n * 3.0)
        y[y < -1] = n
        scale = torch.tensor(n) * torch.full((5,), n) + torch.as_tensor(n * 2)
        return (y * scale).sum(), z

    for dtype in (torch.float32, torch.float64):
        twin = check(program, *[(leaf(5, dtype=dtype), n) for n in (0.3, -0.5, 2.0)])
        assert twin.graph_count == 1 and joined(twin)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.bfloat16, torch.float16, torch.uint8])
def test_numbers_that_tensors_round(dtype) -> None:
    """Which make one number of several: nothing may be taken for a constant that is computed from one that changes."""

    def program(x, n, k):
        z = torch.zeros(4, dtype=dtype)
        z[0] = n
        z[1] = k
        z[x > 0] = k
        made = torch.tensor(n, dtype=dtype) + torch.full((4,), k, dtype=dtype)
        chosen = torch.where(x > 0, z, k if dtype != torch.bool else n > 1)
        return (x * z.float()).sum() + (x * made.float()).sum() + (x.cos() * chosen.float()).sum()

    check(program, *[(leaf(4), n, k) for n, k in ((0.3, 1), (0.8, 2), (1.7, 3), (0.0, 0))], fallback=True)


def test_an_index_that_changes() -> None:
    def program(x, n, k):
        y = x * 2
        y[k] = n
        z = y.clone()
        z[:k] = n
        z[k:] = 3.0
        return y.sum() + (z * x).sum()

    check(program, *[(leaf(5), 0.5 + k, k) for k in (1, 3, 2, 4, 0, 3, 1)])


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


def set_items(x, n):
    y = x.sin()
    y[[n, -1]] = x[[0, n]] * 2
    return y


@pytest.mark.parametrize(
    "function",
    [lambda x, n: x[[n, 0, n]].sin(), lambda x, n: x[:, [0, n]] * x[([n], [n])], set_items,
     lambda x, n: torch.where(x > 0, x.bfloat16(), n)],
)  # fmt: skip
def test_numbers_whose_values_matter(function) -> None:
    """They are held by guards, until they have changed several times."""
    assert check(function, *[(leaf(4, 4), n) for n in (1, 2, 1)]).graph_count == 2
    check(function, *[(leaf(4, 4), n) for n in (1, 2, 3, 0, -1, -2, -3)], fallback=True)


def test_tensors_in_place_of_numbers() -> None:
    def program(x, rate):
        y = torch.add(x * 2, x.sin(), alpha=rate)
        doubled = rate * 2
        z = torch.sub(y, y * x, alpha=doubled)
        doubled.add_(1)
        (slope,) = torch.autograd.grad(z.sum(), x, create_graph=True)
        return z.addcmul(y, slope, value=doubled)

    assert check(program, *[(leaf(3), torch.tensor(0.5 + k)) for k in range(3)]).graph_count == 1


def stepped(x, n):
    loss = (torch.tensor([n, 2 * n]) * x).sin().sum()
    loss.backward()
    return loss.detach(), x.grad


def out_of_a_tensor(x, n):
    y = torch.tensor([x[0].item(), n], dtype=torch.float64) * x
    return y * torch.as_tensor([n > 2, True]) * torch.tensor((n, 3), dtype=torch.uint8)


@pytest.mark.parametrize("number", [2, 0.5])
@pytest.mark.parametrize(
    "function",
    [lambda x, n: x * torch.tensor([[n, 1]]), lambda x, n: (x * torch.tensor([n] * 500, dtype=torch.half)[:2]).exp(),
     stepped, out_of_a_tensor],
)  # fmt: skip
def test_lists_of_numbers_become_tensors(function, number) -> None:
    assert check(function, *[(leaf(2), number * n) for n in (1, 2, 7, 100)]).graph_count == 1


def test_truth_values_in_lists_that_keep_changing() -> None:
    """As the ends of episodes in what is drawn from a replay memory: each alone has two values, all together have many."""

    def program(x, batch, flag):
        rewards, ends = [reward for reward, _ in batch], [end for _, end in batch]
        x = x * 2 if flag else x
        chosen = 1 if ends[0] else 2
        return ((torch.tensor(rewards) + x) * (1 - torch.tensor(ends, dtype=torch.float32)) * chosen).sum()

    random.seed(0)
    calls = [[(random.random(), random.random() < 0.5) for _ in range(12)] for _ in range(20)]
    twin = check(program, *[(leaf(12), batch, k % 2 == 0) for k, batch in enumerate(calls)])
    assert twin.graph_count <= 9  # four until it is known, and then two for each outcome of the branches


def test_gradients_that_share_memory_beside_a_number_that_changes(monkeypatch) -> None:
    """The first trace took what was tried to find out the strides of their copies for operators of the program."""
    monkeypatch.setattr(shapes, "_memo", Memo())

    def joined_rows(a, b, n):
        return (torch.cat([a, b], 1) * n).sin().sum()

    twin = compiled(joined_rows)
    for n in (1.5, 2.5):
        found = []
        for run in (joined_rows, twin):
            parts = leaf(4, 1, 3), leaf(4, 1, 3, seed=1)
            run(*parts, n).backward()
            found.append([part.grad for part in parts])
        torch.testing.assert_close(found[1], found[0])
    assert joined(twin)
