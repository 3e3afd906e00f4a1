"""Tensors made of constants, where control flow asks for what is in them, and where they are sizes."""

import pytest
import torch

from case_registry import case, cases, x0
from one_graph.programs import agrees


@case
def as_a_size():
    def f(x):
        chunks = torch.div(x.shape[1], 2, rounding_mode="trunc")
        zeros = x.new_zeros((torch.tensor(1), chunks + 0, 2))
        return x.view(x.shape[0], chunks, 2) + zeros, x.expand(torch.tensor(x.shape[0]), -1)

    return (f,)


@case
def as_a_size_from_numbers():
    class Attention:
        window = 1

    attention = Attention()

    def f(x, n):
        chunks = torch.div(x.shape[1], n * attention.window, rounding_mode="trunc")
        zeros = x.new_zeros((x.shape[0], chunks + 1, n))
        return x.view(x.shape[0], chunks, n), zeros, x[: torch.tensor(n)], torch.tensor(n) * x

    return f, lambda: (x0(), 2), lambda: (x0(), 1), lambda: (x0(), 2)


@case
def as_an_index():
    def f(x):
        last = torch.tensor(2)
        return x[:last] + x[last - 1], [1, 2, 3][last - 1], x[0, last:], [*range(last.item())]

    return (f,)


@case
def in_a_condition():
    def f(x):
        sizes = torch.tensor([(1, 2), (2, 1)])
        assert (sizes[:, 0] * sizes[:, 1]).sum() == 4
        lengths = torch.tensor([x.shape[0], 2])
        if lengths.max().item() > 2 and not (lengths == 9).any():
            x = x * int(lengths[1]) + float(lengths.sum())
        return x * 2

    return (f,)


@case
def as_a_list():
    def f(x):
        parts = [x[:h, :w].sum() for h, w in torch.tensor([[1, 2], [2, 2]]).tolist()]
        return torch.stack(parts), torch.arange(0, torch.tensor(3)), torch.tensor(4).tolist()

    return (f,)


@pytest.mark.parametrize("name", cases(__name__))
def test_one_graph(name):
    agrees(__name__, name)


def _changed_inside(x):
    count = torch.tensor([1, 2])
    first = count[0]
    first.add_(1)
    y = x[: count[0].item()]
    count.detach()[0] = 3
    if count[0] > 2:
        y = y * 2
    return y, count


def _grows(x):
    steps = torch.tensor(0)
    while steps < 100:
        steps = steps + 7
    return x * steps


def _random(x):
    return x * 2 if torch.rand(()).item() > 0.5 else x


@pytest.mark.parametrize("program", [_changed_inside, _grows, _random])
def test_what_is_changed_or_random_is_no_constant(program):
    import quickfuse

    x = torch.randn(4, 3)
    for seed in range(4):
        torch.manual_seed(seed)
        wanted = program(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(quickfuse.compile(program)(x), wanted)
