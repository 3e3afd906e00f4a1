"""Concatenations that begin as others do, which share memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from differentiate.test_memory import distinct_bytes
from quickfuse.differentiate.expand import expand
from quickfuse.ir.loop import Loop
from quickfuse.lower import lower
from quickfuse.lower.shared_concatenations import prefix_chains
from trace_helper import trace

A, B, C, D = (torch.randn(2, n, 48, 48) for n in (8, 4, 4, 16))
X = torch.Tensor


def nested(a: X, b: X, c: X, d: X) -> Any:
    x = torch.cat([a, b], 1)
    y = torch.cat([x, c], 1)
    return torch.cat([y, d], 1).exp() + 1, y.sum((0, 2, 3)), x.mean((0, 2, 3))


def of_lists(a: X, b: X, c: X, d: X) -> Any:
    parts, sums = [a], []
    for part in (b, c, d):
        parts.append(part + 1)
        sums.append(torch.cat(parts, 1).sum((2, 3)))
    return sums


def along_rows(a: X, b: X, c: X, d: X) -> Any:
    parts = [t.flatten(0, 1) for t in (a, b, c, d)]
    return [torch.cat(parts[:k], 0).sin().sum(0) for k in (1, 2, 3, 4)]


def changed_between(a: X, b: X, c: X, d: X) -> Any:
    a = a + 1
    x = torch.cat([a, b], 1).sum((2, 3))
    a.mul_(2)
    y = torch.cat([a, b, c], 1).sum((2, 3))
    return x, y, torch.cat([a, b, c, d], 1).sum((2, 3))


def result_changed(a: X, b: X, c: X, d: X) -> Any:
    x = torch.cat([a, b], 1)
    x.mul_(2)
    y = torch.cat([x, c], 1).relu_()
    return x.sum((2, 3)), y.sum((2, 3)), torch.cat([y, d], 1).sum((2, 3))


def returned(a: X, b: X, c: X, d: X) -> Any:
    x = torch.cat([a, b], 1)
    y = torch.cat([a, b, c], 1)
    return x, y, torch.cat([a, b, c, d], 1), x + 1


def read_by_calls(a: X, b: X, c: X, d: X) -> Any:
    parts, products = [a], []
    for part in (b, c, d):
        parts.append(part)
        products.append(torch.cat(parts, 1).flatten(2) @ torch.ones(48 * 48, 3))
    return products


def other_types(a: X, b: X, c: X, d: X) -> Any:
    x = torch.cat([a, b.double()], 1).sum((2, 3))
    y = torch.cat([a, b.double(), c], 1).sum((2, 3))
    return x, y, torch.cat([a, b], 1).sum((2, 3)), torch.cat([a, b, c], 1).sum((2, 3))


PROGRAMS: list[Callable[..., Any]] = [
    nested, of_lists, along_rows, changed_between, result_changed, returned, read_by_calls, other_types,
]  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_programs(program: Callable[..., Any], channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    inputs = [t.to(memory_format=layout) for t in (A, B, C, D)]
    expected, found = program(*inputs), quickfuse.compile(program, fullgraph=True)(*inputs)
    for e, f in zip(expected, found, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-4, atol=1e-4)
        assert f.stride() == e.stride()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_gradients(program: Callable[..., Any]) -> None:
    def gradients(function: Callable[..., Any]) -> Any:
        inputs = [t.double().requires_grad_() for t in (A, B, C, D)]
        results = function(*inputs)
        return torch.autograd.grad(sum((r * r).sum() for r in results), inputs, allow_unused=True)

    if program is read_by_calls:
        pytest.skip("of float32 alone")
    for e, f in zip(gradients(program), gradients(quickfuse.compile(program, fullgraph=True)), strict=True):
        torch.testing.assert_close(f, e)


def test_each_part_is_stored_once() -> None:
    def plain(a: X, b: X, c: X, d: X) -> Any:
        return [torch.cat([a, b, c, d][:k], 1).sum((2, 3)) for k in (1, 2, 3, 4)]

    graph = trace(plain, A, B, C, D).graph
    (chain,) = prefix_chains(graph)
    assert [node.meta["val"].shape[1] for node in chain.nodes] == [8, 12, 16, 32]
    temps = {s.access.buffer for step in lower(graph, expand=expand).steps if isinstance(step, Loop) for s in step.stores}
    assert [t.meta.shape for t in temps if len(t.meta.shape) == 4 and t.meta.shape[2] == 48] == [(2, 32, 48, 48)]


class Dense(nn.Module):
    """Layers that each get all that those before them gave, as in DenseNet."""

    def __init__(self, layers: int, as_list: bool) -> None:
        super().__init__()
        self.as_list = as_list
        sizes = [16 + 8 * k for k in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in sizes)
        self.convolutions = nn.ModuleList(nn.Conv2d(n, 8, 3, padding=1, bias=False) for n in sizes)

    def forward(self, x: X) -> X:
        parts = [x]
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            x = torch.cat(parts, 1) if self.as_list else x
            y = convolution(F.relu(norm(x)))
            parts.append(y)
            x = torch.cat([x, y], 1)
        return torch.cat(parts, 1) if self.as_list else x


@pytest.mark.parametrize("as_list", [False, True])
def test_dense_blocks(as_list: bool) -> None:
    model = Dense(5, as_list)
    twin = copy.deepcopy(model)
    compiled: Any = quickfuse.compile(twin, fullgraph=True)
    for _ in range(2):
        x = torch.randn(4, 16, 24, 24)
        one, two = model(x), compiled(x)
        (one * one).mean().backward()
        (two * two).mean().backward()
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)
    for e, f in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(f.grad, e.grad, rtol=1e-3, atol=1e-5)
    for e, f in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(f, e)


def test_saved_memory_does_not_grow_with_the_square_of_the_layers() -> None:
    def saved(layers: int) -> int:
        model = Dense(layers, as_list=True)
        compiled: Any = quickfuse.compile(model, fullgraph=True)
        x = torch.randn(4, 16, 24, 24)
        result = compiled(x)
        return distinct_bytes(result.grad_fn.saved_tensors, model, x)

    assert saved(16) < 2.2 * saved(8)
