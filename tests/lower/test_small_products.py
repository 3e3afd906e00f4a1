"""Small products of matrices are kernels: right for all sizes, strides and types, and nothing is called for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse.ir.loop import Extern
from quickfuse.ir.products import SmallProduct
from schedule_interpreter import compile_for_test
from trace_helper import flatten

T = torch.Tensor
SIZES = (1, 2, 5, 8, 15, 16, 17, 31, 33)


def named(function: Callable[..., Any], *inputs: Any) -> list[str]:
    """The names of the calls of PyTorch and of small products in a function."""
    schedule, _ = compile_for_test(function, *inputs)
    return [step.target.__name__ for step in schedule.steps if isinstance(step, Extern)]


def check(function: Callable[..., Any], *inputs: Any) -> None:
    """A compiled function gives what the function gives, but for rounding: three times, with other inputs."""
    compiled = quickfuse.compile(function)
    for k in range(3):
        given = [t + k for t in inputs]
        precise = flatten(function(*[t.double() for t in given]))
        for found, wanted in zip(flatten(compiled(*given)), precise, strict=True):
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4, equal_nan=True)


def drawn(rows: int, columns: int, transposed: bool, dtype: torch.dtype) -> T:
    return torch.randn(columns, rows, dtype=dtype).t() if transposed else torch.randn(rows, columns, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", SIZES)
def test_sizes(rows: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows)
    functions = {
        False: lambda x, w, b: x @ w,
        True: lambda x, w, b: torch.relu(torch.addmm(b, x, w)),
    }
    for columns, depth, left, right in itertools.product((1, 3, 16, 33), (1, 7, 20), (False, True), (False, True)):
        x, w = drawn(rows, depth, left, dtype), drawn(depth, columns, right, dtype)
        b = torch.randn(columns, dtype=dtype)
        for function in functions.values():
            schedule, run = compile_for_test(function, x, w, b)
            assert [type(step.target) for step in schedule.steps if isinstance(step, Extern)] == [SmallProduct]
    for function in functions.values():
        check(function, x, w, b)


@pytest.mark.parametrize("depth", [1, 3, 15, 16, 17, 64, 511, 512])
def test_depths(depth: int) -> None:
    check(lambda x, w: x @ w.t(), torch.randn(5, depth), torch.randn(7, depth))
    check(lambda x, w: x.t() @ w, torch.randn(depth, 5), torch.randn(depth, 7))


@pytest.mark.parametrize("count", [1, 3, 16, 50, 300])
def test_vectors(count: int) -> None:
    a, x, y = torch.randn(7, count), torch.randn(count), torch.randn(count)
    functions: list[Any] = [
        lambda a, x, y: x @ y, lambda a, x, y: torch.dot(x, y - 1), lambda a, x, y: a @ x,
        lambda a, x, y: torch.mv(a, x * 2), lambda a, x, y: (x + 1).dot(x + 1).sqrt() * y,
        lambda a, x, y: a[::2].t() @ a[::2, 0], lambda a, x, y: x @ a.t(),
    ]  # fmt: skip
    for function in functions:
        check(function, a, x, y)
    for function in functions[:-1]:
        assert not named(function, a, x, y)
    assert named(functions[0], a, *[torch.randn(5000)] * 2) == ["matmul"]


def test_gradients_of_products_of_vectors() -> None:
    given = [torch.randn(5, 6, dtype=torch.double), *torch.randn(2, 6, dtype=torch.double)]
    compiled = quickfuse.compile(lambda a, x, y: (a @ x).dot(a @ y) + (x @ y))
    for _ in range(2):
        found = []
        for run in (compiled, lambda a, x, y: (a @ x).dot(a @ y) + (x @ y)):
            leaves = [t.clone().requires_grad_() for t in given]
            found.append(torch.autograd.grad(run(*leaves), leaves))
        torch.testing.assert_close(found[0], found[1])


def test_vectors_that_do_not_fit() -> None:
    for function in (lambda x, y: x @ y, torch.dot, lambda x, y: x.dot(y), lambda x, y: torch.mv(x[None], y)):
        for other in (torch.randn(4), torch.randn(3).double()):
            with pytest.raises(RuntimeError):
                quickfuse.compile(function)(torch.randn(3), other)


def test_parts_of_tensors() -> None:
    x, w = torch.randn(12, 20), torch.randn(20, 30)
    check(lambda x, w: x[2:9, 3:17] @ w[3:17, 5:], x, w)
    check(lambda x, w: x[::2, 3:17] @ w[3:17, 5:], x, w)
    check(lambda x, w: F.linear(x[1:, 2:12], w[:, 4:14]), x, w)
    check(lambda x, w: F.linear(x[1:, 2:12], w[:, 4:24:2]), x, w)
    check(lambda x, w: x[:1].expand(4, 20) @ w, x, w)
    check(lambda x, w: x @ w[:, :1].expand(20, 6), x, w)


def test_batches() -> None:
    x, y = torch.randn(6, 5, 9), torch.randn(6, 9, 11)
    assert named(torch.bmm, x, y) == ["small_product"]
    check(torch.bmm, x, y)
    check(lambda x, y: torch.bmm(x.transpose(1, 2), (y.transpose(1, 2) + 1).transpose(1, 2)[:, :5]), x, y)
    check(lambda x, y: torch.bmm(x[:1].expand(6, 5, 9), y), x, y)
    check(lambda x, y: torch.bmm(x.permute(1, 0, 2), y.permute(1, 2, 0)[:5]), torch.randn(6, 5, 11), torch.randn(6, 9, 11))


def test_layers_on_more_axes() -> None:
    x, w, b = torch.randn(2, 3, 4, 10), torch.randn(6, 10), torch.randn(6)
    assert named(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b) == ["small_product_relu"]
    check(lambda x, w, b: F.linear(x, w, b).relu(), x, w, b)
    check(lambda x, w, b: F.linear(x.transpose(1, 2), w, b).relu(), x, w, b)


def test_numbers_that_are_none() -> None:
    x, w, b = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
    x[0, 2], x[1, 3], w[2, 1], b[4] = torch.inf, torch.nan, -torch.inf, torch.nan
    for function in (lambda x, w, b: x @ w, lambda x, w, b: torch.addmm(b, x, w).relu()):
        torch.testing.assert_close(quickfuse.compile(function)(x, w, b), function(x, w, b), equal_nan=True)


def test_large_products_stay_calls() -> None:
    assert named(lambda x, w: x @ w, torch.randn(128, 128), torch.randn(128, 128)) != ["small_product"]
    assert named(lambda x, w: x @ w, torch.randn(1, 600), torch.randn(600, 1)) == ["matmul"]
    assert named(lambda x, w: x @ w, torch.randn(4, 4).bfloat16(), torch.randn(4, 4).bfloat16()) == ["matmul"]


def test_an_activation_that_others_need_the_operand_of() -> None:
    def function(x: T, w: T) -> tuple[T, T]:
        made = x @ w
        return made.relu(), made * 2

    assert named(function, torch.randn(4, 6), torch.randn(6, 5)) == ["small_product"]
    check(function, torch.randn(4, 6), torch.randn(6, 5))


def _check_changing(function: Callable[[T, T], T], w: T) -> None:
    """Three calls of a function that changes its first argument."""
    theirs, mine = torch.ones(4, 6), torch.ones(4, 6)
    compiled = quickfuse.compile(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(mine, w), function(theirs, w))
        torch.testing.assert_close(mine, theirs)


def test_an_input_that_is_changed() -> None:
    def function(x: T, w: T) -> T:
        made = x @ w
        x.add_(1)
        return made + x @ w

    _check_changing(function, torch.randn(6, 5))


def test_a_product_that_is_stored_in_an_input() -> None:
    def function(x: T, w: T) -> T:
        x.copy_((x @ w).relu())
        return x * 1

    _check_changing(function, torch.randn(6, 6))


def test_results_have_memory_of_their_own() -> None:
    compiled = quickfuse.compile(lambda x, w: (x @ w).relu())
    x, w = torch.randn(4, 6), torch.randn(6, 5)
    first = compiled(x, w)
    kept = first.clone()
    compiled(x + 1, w)
    assert torch.equal(first, kept) and first.is_contiguous()


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_training(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 33), activation(), nn.Linear(33, 20), activation(), nn.Linear(20, 3)).double()
    compiled = quickfuse.compile(model)
    for rows in (7, 7, 16):
        x = torch.randn(rows, 10, dtype=torch.double, requires_grad=True)
        found = []
        for run in (model, compiled):
            made = run(x)
            found.append([made, *torch.autograd.grad(made.square().sum(), [x, *model.parameters()])])
        torch.testing.assert_close(found[1], found[0])


def test_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    compiled, x = quickfuse.compile(layer), torch.randn(2, 6, 16)
    for _ in range(2):
        found = []
        for run in (layer, compiled):
            made = run(x)
            found.append([made, *torch.autograd.grad(made.square().sum(), [*layer.parameters()])])
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
