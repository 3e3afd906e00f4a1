"""Branches on whether numbers are finite: the usual outcome is one graph, and the other one is right."""

import math

import pytest
import torch

import quickfuse
from seeding import seed_torch


def clamped(x):
    x = (x * 2).exp()
    if not torch.isfinite(x).all():
        x = torch.clamp(x, min=-100.0, max=100.0)
    return x + 1


def either(x):
    y = x.log()
    if torch.isnan(y).any() or torch.isinf(y).any():
        return torch.nan_to_num(y)
    return y * 2


def of_one_number(x):
    loss = (x * 3).sum()
    if torch.isfinite(loss):
        loss = loss * 2
    return loss


def as_a_number(x):
    bad = (torch.isnan(x) | torch.isinf(x)).any().item()
    return x - 1 if bad else x + 1


def with_random_numbers(x):
    x = torch.nn.functional.dropout(x + 1)
    if torch.isinf(x).any():
        x = x.nan_to_num(posinf=3.0)
    return x + torch.rand(2, 2)


def changing_its_argument_afterwards(x):
    y = x.sqrt()
    if torch.isnan(y).any():
        return y
    x.add_(1)
    return y


PROGRAMS = [clamped, either, of_one_number, as_a_number, with_random_numbers, changing_its_argument_afterwards]
USUAL = torch.tensor([[1.0, 2.0], [3.0, 0.5]])
UNUSUAL = [torch.tensor([[1.0, value], [100.0, 4.0]]) for value in (math.inf, math.nan, -math.inf)]


@pytest.mark.parametrize("function", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("fullgraph", [False, True])
def test_both_sides(function, backend, fullgraph):
    compiled = quickfuse.compile(function, backend=backend, fullgraph=fullgraph)
    for k, x in enumerate([USUAL, *UNUSUAL, USUAL, *UNUSUAL, USUAL]):
        ours, eager = x.clone(), x.clone()
        seed_torch(k)
        wanted = function(eager)
        seed_torch(k)
        torch.testing.assert_close(compiled(ours), wanted, equal_nan=True)
        torch.testing.assert_close(ours, eager, equal_nan=True)
        assert torch.rand(()) is not None
        if k == 0:
            assert compiled.graph_count == 1 and not compiled.breaks


def test_the_unusual_side_becomes_a_break():
    compiled = quickfuse.compile(clamped)
    for _ in range(6):
        torch.testing.assert_close(compiled(UNUSUAL[0]), clamped(UNUSUAL[0]))
    assert [b.reason for b in compiled.breaks] == ["a branch on a tensor's value"]
    torch.testing.assert_close(compiled(USUAL), clamped(USUAL))


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_gradients(backend):
    weight = torch.nn.Parameter(torch.tensor([[0.5, 1.0], [2.0, 0.1]]))

    def step(x):
        weight.grad = None
        loss = clamped(x @ weight).sum()
        loss.backward()
        return loss.detach()

    compiled = quickfuse.compile(step, backend=backend)
    for x in (USUAL, UNUSUAL[0], USUAL, UNUSUAL[0], UNUSUAL[0], USUAL, UNUSUAL[0]):
        wanted, wanted_grad = step(x), weight.grad
        torch.testing.assert_close(compiled(x), wanted, equal_nan=True)
        torch.testing.assert_close(weight.grad, wanted_grad, equal_nan=True)


def test_forward_only():
    weight = torch.nn.Parameter(torch.tensor([[0.5, 1.0], [2.0, 0.1]]))
    compiled = quickfuse.compile(lambda x: clamped(x @ weight))
    for x in (USUAL, UNUSUAL[0], USUAL, UNUSUAL[0]):
        (wanted,) = torch.autograd.grad(clamped(x @ weight).sum(), weight)
        (found,) = torch.autograd.grad(compiled(x).sum(), weight)
        torch.testing.assert_close(found, wanted, equal_nan=True)


class Normalised(torch.nn.Module):
    """What is changed before the branch keeps the graph from going on."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, x):
        return clamped(self.norm(x))


def test_after_a_change():
    seed_torch(0)
    ours, eager = Normalised(), Normalised()
    compiled = quickfuse.compile(ours)
    for x in (USUAL, UNUSUAL[0], USUAL):
        torch.testing.assert_close(compiled(x), eager(x), equal_nan=True)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()), equal_nan=True)


def changing_its_argument_before(x):
    x.add_(1)
    y = x.sqrt()
    if torch.isnan(y).any():
        y = y.nan_to_num(7.0)
    x.mul_(2)
    return y + 1


class Network(torch.nn.Module):
    """Running statistics change before the branch, and random numbers are drawn."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        x = torch.nn.functional.dropout(self.norm(self.linear(x)), 0.1) * 1e30
        x = x * x
        if not torch.isfinite(x).all():
            x = torch.clamp(x, max=3.0)
        assert x.max() <= 3
        return self.norm(self.linear(x))


def changing_its_argument_and_checking(x):
    x.add_(1)
    y = x.sqrt()
    try:
        torch._check_tensor_all(torch.isfinite(y))
        y = y * 2 if torch.isfinite(y).all().item() else y
    finally:
        x.mul_(2)
    return y + 1


def outcome(function, *args):
    try:
        return function(*args)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
@pytest.mark.parametrize("function", [changing_its_argument_before, changing_its_argument_and_checking])
def test_after_changes(backend, function):
    compiled = quickfuse.compile(function, backend=backend)
    for k, x in enumerate([USUAL, UNUSUAL[1], USUAL, *UNUSUAL, USUAL]):
        ours, eager = x.clone(), x.clone()
        found, wanted = outcome(compiled, ours), outcome(function, eager)
        assert found == wanted if type(wanted) is str else torch.testing.assert_close(found, wanted, equal_nan=True) is None
        torch.testing.assert_close(ours, eager, equal_nan=True)
        assert k or backend == "eager" or function is not changing_its_argument_before or compiled.graph_count == 1


@pytest.mark.parametrize("backend", ["eager", "quickfuse"])
def test_training_after_changes(backend):
    def step(network, x):
        seed_torch(1)
        network.zero_grad()
        loss = network(x).square().sum()
        loss.backward()
        return loss.detach(), [p.grad for p in network.parameters()], torch.rand(2)

    seed_torch(0)
    ours, eager = Network(), Network()
    eager.load_state_dict(ours.state_dict())
    whole, forward = quickfuse.compile(step, backend=backend), quickfuse.compile(ours, backend=backend)
    for k in range(5):
        x = USUAL * 1e-20 if k == 3 else USUAL
        wanted = step(eager, x)
        found = whole(ours, x) if k % 2 else step(forward, x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(dict(ours.named_buffers()), dict(eager.named_buffers()))
