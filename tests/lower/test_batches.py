"""Many small products of matrices become few: right results, and as few calls as there should be."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse.capture import capture
from quickfuse.differentiate.expand import expand
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import compile_for_test
from trace_helper import copy_inputs, flatten

T = torch.Tensor
torch.manual_seed(0)
V = torch.randn(96, 64)


def calls(function: Callable[..., Any], *inputs: Any) -> Counter[str]:
    """The names of the calls that are left of a function, which gives what it gives in eager mode: "mm" is any product."""
    schedule, run = compile_for_test(function, *inputs)
    expected = flatten(function(*inputs))
    torch.testing.assert_close(run(*copy_inputs(inputs)), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(flatten(quickfuse.compile(function)(*inputs)), expected, rtol=1e-4, atol=1e-4)
    names = [step.target.__name__ for step in schedule.steps if isinstance(step, Extern)]
    return Counter(name.replace("small_product", "mm") for name in names)


# --- sums ---


def summed(*pairs: T) -> T:
    total = torch.zeros(64, 96)
    for left, right in zip(pairs[::2], pairs[1::2], strict=True):
        total = total + left.t() @ right
    return total


def summed_in_a_formula(x: T, *pairs: T) -> T:
    return (summed(*pairs) + x).sin() * 2


def summed_twice(*pairs: T) -> tuple[T, T]:
    total = summed(*pairs)
    return total + 1, total * 2


def with_a_summand_read_elsewhere(a: T, b: T, c: T, d: T) -> tuple[T, T]:
    one = a.t() @ b
    return one + c.t() @ d, one.sin()


def with_unlike_summands(a: T, b: T, c: T, d: T) -> T:
    return a.t() @ b + (c.t() @ d)[:1] + (a.t() @ d) * 2


def with_a_summand_that_counts_twice(a: T, b: T, c: T, d: T) -> T:
    one = a.t() @ b
    return one + one + c.t() @ d


def with_a_summand_that_is_a_factor(a: T, b: T, c: T, d: T) -> T:
    one = a.t() @ b
    return (one + c.t() @ d) * one


def pairs(count: int, rows: int = 3) -> list[T]:
    return [torch.randn(rows, 64 if k % 2 == 0 else 96) for k in range(2 * count)]


@pytest.mark.parametrize("count", [2, 5, 20])
def test_sums(count: int) -> None:
    assert calls(summed, *pairs(count)) == {"cat": 2, "mm": 1}
    assert calls(summed_in_a_formula, torch.randn(64, 96), *pairs(count)) == {"cat": 2, "mm": 1}


def test_sums_that_are_read_twice() -> None:
    assert calls(summed_twice, *pairs(6)) == {"cat": 2, "mm": 1}


def test_sums_of_few_elements_stay() -> None:
    """Their operands are larger than the results."""
    assert calls(summed, *pairs(3, rows=60))["cat"] == 0


def test_what_is_read_elsewhere_stays() -> None:
    assert calls(with_a_summand_read_elsewhere, *pairs(2))["cat"] == 0
    assert calls(with_unlike_summands, *pairs(2))["cat"] == 0


def test_what_one_formula_reads_twice_stays() -> None:
    assert calls(with_a_summand_that_counts_twice, *pairs(2))["cat"] == 0
    assert calls(with_a_summand_that_is_a_factor, *pairs(2))["cat"] == 0


def test_large_sums_are_cut() -> None:
    """Nothing is gained by products of more rows, and their operands would have to wait longer."""
    made = calls(summed, *pairs(40, rows=16))
    assert made["cat"] == 2 * made["mm"] and made["mm"] == 3


def test_sums_in_other_types_stay() -> None:
    halves = [t.bfloat16() for t in pairs(3)]
    assert calls(lambda *p: p[0].t() @ p[1] + p[2].t() @ p[3], *halves[:4])["cat"] == 0
    doubles = [t.double() for t in pairs(3)]
    assert calls(lambda *p: p[0].t() @ p[1] + p[2].t() @ p[3], *doubles[:4]) == {"cat": 2, "mm": 1}


# --- rows ---


def independent(weight: T, *rows: T) -> list[T]:
    return [torch.tanh(F.linear(row, weight)) for row in rows]


def one_after_the_other(x: T, w: T) -> T:
    for _ in range(4):
        x = torch.tanh(x @ w)
    return x


def crossing(x: T, y: T, v: T, w: T) -> T:
    """The first product by v needs one by w, and the second one by w one by v: both pairs cannot be put together."""
    a = torch.tanh(torch.tanh(x @ w) @ v)
    b = torch.tanh(torch.tanh(y @ v) @ w)
    return a + b


def layers(x: T, v: T, w: T, b: T) -> T:
    """Two layers that go through five steps: what does not depend on the step before is one product."""
    one = two = x[0] * 0
    total: T = torch.zeros(())
    for step in x.unbind(0):
        one = torch.tanh(torch.addmm(b, step, v) + one @ w)
        two = torch.tanh(torch.addmm(b, one, w) + two @ v)
        total = total + two.sum()
    return total


def test_independent_rows() -> None:
    rows = [torch.randn(2, 64) for _ in range(6)]
    made = calls(independent, V, *rows)
    assert made["cat"] == 1 and sum(made.values()) == 2


def test_calls_as_they_are_captured() -> None:
    def function(a: T, b: T, w: T) -> T:
        return torch.tanh(a @ w) + torch.tanh(b @ w)

    graph = capture(function, (torch.randn(2, 64), torch.randn(2, 64), torch.randn(64, 64)), {}).graph
    assert sum(isinstance(step, Extern) for step in lower(graph, expand=expand).steps) == 2


def test_dependent_rows_stay() -> None:
    w = torch.randn(64, 64) / 8
    assert calls(one_after_the_other, torch.randn(2, 64), w)["cat"] == 0


def test_crossing_dependences() -> None:
    w, v = torch.randn(64, 64) / 8, torch.randn(64, 64) / 8
    made = calls(crossing, torch.randn(2, 64), torch.randn(2, 64), v, w)
    assert made["cat"] == 1 and sum(made.values()) == 4


def test_layers_of_a_recurrent_network() -> None:
    w, v, b = torch.randn(64, 64) / 8, torch.randn(64, 64) / 8, torch.randn(64)
    made = calls(layers, torch.randn(5, 2, 64), v, w, b)
    assert made["cat"] == 2 and sum(made.values()) == 2 + 2 + 10


def test_many_rows_stay() -> None:
    assert calls(independent, V, torch.randn(70, 64), torch.randn(70, 64))["cat"] == 0


def test_results_that_are_returned_have_memory_of_their_own() -> None:
    first, second = quickfuse.compile(lambda x, y: (x @ V.t(), y @ V.t()))(torch.ones(1, 64), torch.ones(1, 64) * 2)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


def test_inputs_that_change() -> None:
    """Each of them is read by what changes the other one."""

    def function(x: T, y: T, weight: T, *rows: T) -> T:
        made = [torch.tanh(F.linear(row, weight)) for row in (*rows, x, y)]
        old = x * 1
        x.copy_(y + made[0][:, :64])
        y.copy_(old * 2 + made[1][:, :64])
        return sum(made)  # type: ignore[return-value]

    inputs = [torch.randn(2, 64), torch.randn(2, 64), V, *[torch.randn(2, 64) for _ in range(4)]]
    theirs, mine = copy_inputs(inputs), copy_inputs(inputs)
    expected, found = function(*theirs), quickfuse.compile(function)(*mine)
    torch.testing.assert_close([found, *mine], [expected, *theirs])
    schedule, _ = compile_for_test(function, *inputs)
    assert sum(isinstance(step, Extern) for step in schedule.steps) == 2


def random_program(seed: int) -> Callable[..., list[T]]:
    """Products by few weights, sums of them, and functions of them, in any order."""

    def function(x: T, *weights: T) -> list[T]:
        choice = random.Random(seed)
        values = list(x.unbind(0))
        wide: list[T] = []
        for _ in range(20):
            one, other = choice.choice(values[-8:]), choice.choice(values)
            kind = choice.randrange(6)
            if kind < 3:
                values.append(one @ choice.choice(weights))
            elif kind == 3:
                wide.append(one.t() @ other)
            elif kind == 4:
                values.append(torch.tanh(one) + other)
            else:
                values.append(one[:, :32].repeat(1, 2) * 0.5 + torch.tanh(other))
        sums = [sum(wide[k::2], torch.zeros(64, 64, dtype=torch.double)) for k in range(2)]
        return [*choice.sample(values, 4), *sums, values[-1] @ sums[0]]

    return function


@pytest.mark.parametrize("seed", range(5))
def test_random_programs(seed: int) -> None:
    inputs = [torch.randn(6, 2, 64).double(), *[torch.randn(64, 64).double() / 8 for _ in range(3)]]
    function = random_program(seed)
    _, run = compile_for_test(function, *inputs)
    torch.testing.assert_close(run(*copy_inputs(inputs)), flatten(function(*inputs)))


# --- a network ---


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(48, 48) for _ in range(2))

    def forward(self, x: T) -> T:
        states = [x.new_zeros(x.shape[0], 48) for _ in self.cells]
        results = []
        for step in x.unbind(1):
            for k, cell in enumerate(self.cells):
                step = states[k] = cell(step, states[k])
            results.append(step)
        return torch.stack(results, 1)


@pytest.mark.parametrize("time", [1, 2, 7])
def test_training(time: int) -> None:
    model, x = Recurrent().double(), torch.randn(3, time, 48, dtype=torch.double)
    compiled = quickfuse.compile(model, fullgraph=True)
    for _ in range(2):
        found, expected = [], []
        for forward, results in ((compiled, found), (model, expected)):
            inner = x.clone().requires_grad_()
            value = forward(inner)
            results += [value, *torch.autograd.grad(value.square().sum(), [inner, *model.parameters()])]
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
