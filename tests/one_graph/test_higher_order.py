"""`torch.cond`, `while_loop`, `scan`, `associative_scan` and `map`: the functions they are given are part of the program."""

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_mask, flex_attention

import quickfuse

WEIGHTS = torch.randn(8, 8, generator=torch.Generator().manual_seed(3))


def by_size(x):
    return torch.cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x.cos(), (x,))


def by_number(x, n):
    return torch.cond(n > 3, lambda x: x * n, lambda x: x.cos(), (x,))


def count(x):
    return while_loop(lambda k, x: k < 5, lambda k, x: (k + 1, x * 1.1), (torch.tensor(0), x.detach()))


def sums(x):
    return scan(lambda total, row: (total + row, (total * row).clone()), torch.zeros(8), x)


def backwards(x):
    return scan(lambda h, row: (torch.tanh(h + row), (h * row).sin()), torch.zeros(4), x, dim=1, reverse=True)


def of_trees(x):
    def step(state, rows):
        return {"h": state["h"] * 0.5 + rows[0] @ WEIGHTS}, (rows[1] * state["h"], [rows[0].cos()])

    return scan(step, {"h": torch.zeros(8)}, (x, x * 2))


def associative(x):
    return associative_scan(lambda a, b: a * 0.5 + b, x, dim=0, combine_mode="generic")


def of_rows(x):
    return map_rows(lambda row, w: (row @ w).sin(), x, WEIGHTS)


def of_rows_in_trees(x):
    return map_rows(lambda rows, w: (rows[0] + 1, {"k": rows[1] * w[0]}), (x, x * 2), WEIGHTS)


def by_contents(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x @ WEIGHTS, (x,))


def until_large(x):
    return while_loop(lambda x: x.sum() < 100, lambda x: (x.abs() * 1.5,), (x.detach(),))


IN_ONE_GRAPH = [by_size, count, sums, backwards, of_trees, associative, of_rows, of_rows_in_trees]


def with_gradients(function, x):
    results = function(x)
    total = sum((t * (k + 1)).sum() for k, t in enumerate(torch.utils._pytree.tree_leaves(results)) if t.requires_grad)
    return results, torch.autograd.grad(total, x) if isinstance(total, torch.Tensor) else None


@pytest.mark.parametrize("function", [*IN_ONE_GRAPH, by_contents, until_large])
def test_like_eager(function):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    whole = function in IN_ONE_GRAPH
    compiled = quickfuse.compile(function, fullgraph=whole)
    step = quickfuse.compile(lambda x: with_gradients(function, x), fullgraph=whole)
    for value in (x, (-2 * x).detach().requires_grad_(), x):
        torch.testing.assert_close(compiled(value), function(value))
        torch.testing.assert_close(step(value), with_gradients(function, value))


def test_a_number_decides():
    compiled = quickfuse.compile(by_number, fullgraph=True)
    for n in (1, 2, 5, 7, 3):
        torch.testing.assert_close(compiled(torch.ones(3), n), by_number(torch.ones(3), n))


def test_functions_that_cannot_be_captured():
    seen = []

    def mask(b, h, i, j):
        print(end="")
        return i >= j

    def of_a_row(row):
        seen.append(row.shape[0])
        return row * 2

    x = torch.randn(2, 2, 8, 8)
    compiled = quickfuse.compile(lambda x: create_mask(mask, 2, 2, 8, 8, "cpu") * x)
    torch.testing.assert_close(compiled(x), create_mask(mask, 2, 2, 8, 8, "cpu") * x)
    functions = [
        lambda x: flex_attention(x * 2, x, x, lambda score, b, h, i, j: mask(b, h, i, j) * score),
        lambda x: map_rows(lambda row: of_a_row(row) + len(print.__name__) * mask(0, 0, 1, 1), x * 2),
    ]
    for function in functions:
        assert _outcome(lambda: quickfuse.compile(function)(x)) == _outcome(lambda: function(x))


def _outcome(call):
    try:
        return call().shape
    except Exception as error:  # PyTorch's own compiler refuses what cannot be captured
        return type(error).__name__
