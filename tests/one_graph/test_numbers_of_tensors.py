"""Numbers that PyTorch tells of tensors: how often they were changed, and what operators of the user's own give."""

import pytest
import torch

import quickfuse


@torch.library.custom_op("numbers_of_tensors::rows", mutates_args=())
def rows(x: torch.Tensor, factor: int = 2) -> int:
    return int(x.sum()) * factor


@torch.library.custom_op("numbers_of_tensors::largest", mutates_args=())
def largest(x: torch.Tensor) -> float:
    return x.max().item()


@torch.library.custom_op("numbers_of_tensors::decide", mutates_args=())
def decide(x: torch.Tensor) -> bool:
    return bool(x.sum() > 3)


@rows.register_fake
def _(x, factor=2):
    return factor


@largest.register_fake
def _(x):
    return 1.0


@decide.register_fake
def _(x):
    return True


def test_operators_that_give_numbers():
    def f(x):
        y = x.sin() * rows(x, factor=3) + largest(x)
        return y * 2, rows(x), decide(x), largest(x) * 2

    compiled = quickfuse.compile(f, fullgraph=True)
    for fill in (1.0, 2.0, 0.5):
        for gradients in (False, True):
            x = torch.full((3,), fill, requires_grad=gradients)
            wanted, found = f(x), compiled(x)
            torch.testing.assert_close(found, wanted)
            assert [*map(type, found)] == [*map(type, wanted)] and found[1:] == wanted[1:]
            if gradients:
                assert torch.autograd.grad(found[0].sum(), x)[0].equal(torch.autograd.grad(wanted[0].sum(), x)[0])


def test_branches_on_such_a_number():
    def f(x):
        y = x * 2
        if decide(x):
            y = y + 1
        for _ in range(rows(x)):
            y = y.cos()
        return y

    compiled = quickfuse.compile(f)
    for fill in (0.0, 1.0, 2.0, 0.0):
        x = torch.full((3,), fill)
        torch.testing.assert_close(compiled(x), f(x))


def test_how_often_a_tensor_was_changed():
    def f(x):
        before = x._version
        x.mul_(2)
        x[0].add_(1)
        return x.sin() * x._version, before, x.view(-1)._version, x.detach()._version

    compiled, given, other = quickfuse.compile(f, fullgraph=True), torch.ones(3), torch.ones(3)
    for _ in range(4):
        wanted, found = f(given), compiled(other)
        torch.testing.assert_close(found, wanted)
        assert found[1:] == wanted[1:]
        given.add_(1)
        other.add_(1)


@pytest.mark.parametrize("gradients", [False, True])
def test_of_a_parameter_and_of_what_is_made_inside(gradients):
    def f(x, w):
        y = x * w
        quickfuse.graph_break()
        y.add_(1)
        return y, w._version, y._version, x._version

    compiled = quickfuse.compile(f)
    for _ in range(3):
        x, w = torch.ones(3, requires_grad=gradients), torch.nn.Parameter(torch.ones(3))
        found = compiled(x, w)
        assert str(found[1:]) == str(f(x, w)[1:])
