"""Attributes that programs hang on tensors: gradients of samples, averages, marks for the optimizer."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import quickfuse
from whole_programs import difference


def averages(layer, x, y):
    for name, p in layer.named_parameters():
        p.mark = name
        p.average = p.detach().clone() if not hasattr(p, "average") else p.average.lerp_(p.detach(), 0.1)
    return layer(x) * layer.weight.average.sum()


def gradients(layer, x, y):
    layer(x).square().sum().backward()
    for p in layer.parameters():
        p.sums = getattr(p, "sums", 0) + p.grad
        p.grad = None
    return [p.sums for p in layer.parameters()]


def results(layer, x, y):
    made, leaf = layer(x), nn.Parameter(x * 2)
    made.cause, leaf.kept = (x, made), True
    same = made.contiguous()
    same.note = "of the same object"
    return made, leaf, made.note, hasattr(made.view(-1), "note")


def switches(layer, x, y):
    if hasattr(layer.weight, "busy"):
        del layer.weight.busy
        return x * 2
    layer.weight.busy = x.sum()
    return x * 3


def lacks(layer, x, y):
    texts = []
    for _ in range(2):
        try:
            x.calls = 1
            del x.calls
            del x.calls
        except AttributeError as e:
            texts.append(str(e))
    return x * 2, texts


def other(layer, x, y):
    x.seen = getattr(x, "seen", 0) + 1
    y.seen = getattr(y, "seen", 10) + 1
    return x * y.seen, x.seen


def asks(layer, x, y):
    x.size_before = x.size(0)
    return x * 2, hasattr(y, "size_before")


PROGRAMS = [averages, gradients, results, switches, lacks, other, asks]


def state(value):
    """A value, and what hangs on the tensors in it."""
    if isinstance(value, (list, tuple)):
        return [state(v) for v in value]
    if isinstance(value, nn.Module):
        return [state(p) for p in value.parameters()]
    if not isinstance(value, torch.Tensor):
        return value
    plain = (bool, int, str)  # another value may hold the tensor itself
    hung = {name: v if isinstance(v, plain) else getattr(v, "data", type(v)) for name, v in vars(value).items()}
    hung = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in hung.items()}
    return type(value).__name__, value.detach().clone(), value.requires_grad, hung


def outcomes(program, shared):
    """Of calls with tensors that are each other in some of them."""
    torch.manual_seed(0)
    layer, tensors = nn.Linear(3, 3), [torch.randn(2, 3) for _ in range(3)]
    found = []
    for first, second in (0, 1), (0, 1), (1, 2), shared, (2, 0), shared:
        x, y = tensors[first], tensors[second]
        found += [state(program(layer, x, y)), state([layer, *tensors])]
    return found


@pytest.mark.parametrize("shared", [(0, 1), (1, 1)], ids=["two", "one"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program, shared):
    compiled = quickfuse.compile(program, options={"raise_internal_errors": True})
    assert difference(outcomes(program, shared), outcomes(compiled, shared)) is None
    assert not compiled.breaks


def test_methods_and_transforms_are_left_to_python():
    def shadows(x):
        x.t = 2  # a method of tensors
        return x * x.t

    def maps(x):
        def one(row):
            row.mark = 3
            return row * row.mark

        return torch.func.vmap(one)(x)

    for program in shadows, maps:
        x, compiled = torch.randn(2, 3), quickfuse.compile(program)
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()))
        assert compiled.breaks


def test_a_tensor_that_is_another_one_later():
    def function(pair):
        pair.first.mark = 1
        return pair.first * 2, hasattr(pair.second, "mark")

    found = []
    for called in (function, quickfuse.compile(function)):
        pair = SimpleNamespace(first=torch.ones(2), second=torch.zeros(2))
        found.append([called(pair)[1]])
        del pair.first.mark
        pair.second = pair.first
        found[-1].append(called(pair)[1])
    assert found == [[False, True]] * 2
