"""Operators that draw random numbers, or make a tensor like another one: layouts, numbers and gradients are eager's."""

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from seeding import seed_torch

OPERATORS = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, False),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.5, inplace=True),
    "normal_": lambda x: x.clone().normal_(1, 2),
    "uniform_": lambda x: x.clone().uniform_(),
    "geometric_": lambda x: x.clone().geometric_(0.4),
    "a generator": lambda x: x.clone().random_(generator=torch.default_generator),
    "bernoulli": torch.bernoulli,
    "bernoulli_ of a tensor": lambda x: x.clone().bernoulli_(x.detach()),
    "normal": lambda x: torch.normal(x, torch.ones(3, 1, 1)),
    "rrelu": lambda x: F.rrelu(x - 0.5, training=True),
    "poisson": torch.poisson,
    "rand_like": torch.rand_like,
    "randn_like": lambda x: torch.randn_like(x, memory_format=torch.contiguous_format),
    "randint_like": lambda x: torch.randint_like(x, 2, 9, device=torch.device("cpu")),
    "full_like": lambda x: torch.full_like(x, 2, dtype=torch.float64, device="cpu"),
    "channels last": lambda x: torch.zeros_like(x, memory_format=torch.channels_last),
    "with a gradient": lambda x: torch.zeros_like(x, requires_grad=True),
}
LAYOUTS = {
    "plain": lambda: torch.rand(3, 4),
    "transposed": lambda: torch.rand(5, 70, 90).transpose(0, 1),
    "part": lambda: torch.rand(6, 8)[::2, ::2],
    "expanded": lambda: torch.rand(1, 4).expand(3, 4),
    "channels last": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "number": lambda: torch.rand(()),
    "empty": lambda: torch.rand(0, 3),
}


def outcome(function, x):
    """What is made of a tensor, what may be asked of it, and the random number after it; an exception's type."""
    seed_torch(3)
    try:
        made = function(x)
        return made.detach(), made.shape, made.stride(), made.requires_grad, made.is_leaf, made is x, torch.rand(1)
    except Exception as error:
        return (type(error),)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_as_eager(name, layout, gradients):
    x = LAYOUTS[layout]().requires_grad_(gradients)
    compiled = quickfuse.compile(OPERATORS[name])
    found, wanted = outcome(compiled, x), outcome(OPERATORS[name], x)
    assert len(found) == len(wanted) and found[1:-1] == wanted[1:-1]
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[-1], wanted[-1]) if found[1:] else found == wanted


@pytest.mark.parametrize("hard", [False, True])
def test_a_temperature_that_is_lowered(hard):
    def program(x, temperature):
        return F.gumbel_softmax(x, tau=temperature, hard=hard)

    compiled = quickfuse.compile(program)
    for k in range(4):
        one, other = (torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_() for _ in range(2))
        results = []
        for run, x in ((program, one), (compiled, other)):
            seed_torch(k)
            made = run(x, 0.9**k)
            made.square().sum().backward()
            results.append((made.detach(), x.grad, torch.rand(1)))
        torch.testing.assert_close(results[1], results[0])
    assert compiled.graph_count == 1
