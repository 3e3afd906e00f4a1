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


def by_contents_in_trees(x):
    one, other = lambda x: {"a": x.sin(), "b": (x[0] * 2,)}, lambda x: {"a": x * 3, "b": (x.sum(0),)}
    return torch.cond(x.sum() > 0, one, other, (x,))


def by_contents_twice(x):
    for k in range(2):
        inner = lambda x, k=k: torch.cond(x[0, 0] > k, lambda x: x * 2, lambda x: x * 3, (x,))
        x = torch.cond((x.sum() > k).view(1, 1), inner, lambda x: x.cos(), (x,))
    return x


def with_infinite_gradients(x):
    """Formulas of gradients of the side that is not chosen give NaN for a gradient of zero."""
    zeros = x * 0
    return torch.cond(x.sum() > 0, lambda: zeros.cos() + x, lambda: zeros.sqrt() + x.sin().log(), ())


def out_of_range(x):
    """An index that is in range where its side is chosen."""
    k = torch.tensor([1, 2]) * (1 + 3 * (x.sum() < 0))
    return torch.cond((k < 4).all(), lambda x: x[k], lambda x: x[:2] * 2, (x,))


BY_CONTENTS = [by_contents, by_contents_in_trees, by_contents_twice, with_infinite_gradients, out_of_range]


def until_large(x):
    return while_loop(lambda x: x.sum() < 100, lambda x: (x.abs() * 1.5,), (x.detach(),))


#: Of which eager has other gradients in PyTorch 2.11 than later, and than those of loops written out.
WRONG_GRADIENTS = [sums, backwards, of_trees, by_contents_twice]
IN_ONE_GRAPH = [by_size, count, sums, backwards, of_trees, associative, of_rows, of_rows_in_trees]


def with_gradients(function, x):
    results = function(x)
    total = sum((t * (k + 1)).sum() for k, t in enumerate(torch.utils._pytree.tree_leaves(results)) if t.requires_grad)
    return results, torch.autograd.grad(total, x) if isinstance(total, torch.Tensor) else None


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("function", [*IN_ONE_GRAPH, *BY_CONTENTS, until_large])
def test_like_eager(function, whole):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
    whole = whole and function is not until_large
    compiled = quickfuse.compile(function, fullgraph=whole)
    step = quickfuse.compile(lambda x: with_gradients(function, x), fullgraph=whole)
    for value in (x, (-2 * x).detach().requires_grad_(), x):
        torch.testing.assert_close(compiled(value), function(value), equal_nan=True)
        found, wanted = step(value), with_gradients(function, value)
        right = torch.__version__ >= "2.12" or function not in WRONG_GRADIENTS
        torch.testing.assert_close(found if right else found[0], wanted if right else wanted[0], equal_nan=True)
        with torch.no_grad():
            torch.testing.assert_close(compiled(value), function(value), equal_nan=True)


def test_a_module_chosen_in_training_steps():
    class Either(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return torch.cond(x.mean() > 0, self.one, self.other, (x,))

    def trained(wrap):
        torch.manual_seed(0)
        model = Either()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        step = wrap(step)
        return [step(torch.randn(4, 8)) for _ in range(6)], [p.detach() for p in model.parameters()]

    torch.testing.assert_close(trained(lambda step: quickfuse.compile(step, fullgraph=True)), trained(lambda step: step))


REFUSED = {
    "draws random numbers": lambda x: torch.cond(x.sum() > 0, torch.nn.functional.dropout, torch.sin, (x,)),
    "tensors of other kinds": lambda x: torch.cond(x.sum() > 0, torch.sin, lambda x: x.sum(), (x,)),
    "changes a tensor in place": lambda x: torch.cond(x.sum() > 0, torch.sin, lambda x: x.mul_(2), (x,)),
    "what it was given": lambda x: torch.cond(x.sum() > 0, torch.sin, lambda x: print(x) or x, (x,)),
}


@pytest.mark.parametrize("reason", [*REFUSED])
def test_sides_that_cannot_both_be_computed(reason):
    with pytest.raises(quickfuse.errors.GraphBreak) as caught:
        quickfuse.compile(REFUSED[reason], fullgraph=True)(torch.ones(2, 2))
    assert "torch.cond by a tensor's value" in caught.value.reason
    assert reason in caught.value.reason or reason == "what it was given"


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
        return isinstance(error, Exception)


def test_a_region_that_pytorch_compiles_once():
    region = torch.compiler.nested_compile_region(lambda x: x.sin() * 2)
    x = torch.randn(3)
    torch.testing.assert_close(quickfuse.compile(lambda x: region(x) + region(x + 1))(x), region(x) + region(x + 1))
