"""Blocks of inference mode within a graph, such as a decorated `forward`, and whole calls in inference mode."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse


class Decorated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    @torch.inference_mode()
    def forward(self, x: Any) -> Any:
        return torch.relu(self.norm(self.linear(x))).sum(1)


MODEL = Decorated()


def handed_out(x: Any) -> Any:
    z = MODEL(torch.sin(x) * 2 + 1)
    return torch.tanh(z.clone()) + 1, z


def within(x: Any) -> Any:
    return torch.tanh(MODEL(x * 2)) + 1


def twice(x: Any) -> Any:
    a, b = MODEL(x + 1), MODEL(x - 1)
    return a + b, a, b


def view_of_a_plain_tensor(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        v, w = y.t(), y + 1
    return y, v, w


def view_of_an_inference_tensor(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        w = y + 1
        v = w.t()
    return y, v, w, w[0]


def handed_out_twice(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        w = y + 1
    return y, w, w


def in_place_inside(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        w = y + 1
        w += 1
    return y, w


def in_place_outside(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        w = y + 1
    try:
        w += 1
    except RuntimeError:
        return y, w, "refused"
    return y, w, "changed"


def gradients_through(x: Any) -> Any:
    with torch.inference_mode():
        w = x + 1
    try:
        return MODEL.linear(w), "computed"
    except RuntimeError:
        return w, "refused"


def normal_inside(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        w = y + 1
        with torch.inference_mode(False):
            z = y + 2
    return y, w, z


def several(x: Any) -> Any:
    y = x * 2
    with torch.inference_mode():
        a, b = y.topk(2, 1)
        c = y.chunk(2, 1)
    return y, a, b, *c


def computed_of_a_view(x: Any) -> Any:
    with torch.inference_mode():
        return x[0] * 2, x.view(-1) + 1


def views_alone(x: Any) -> Any:
    with torch.inference_mode():
        return x[0], x.view(-1), x.sum()


def detached(x: Any) -> Any:
    with torch.inference_mode():
        return x.detach(), x * 2


PROGRAMS = [
    computed_of_a_view, views_alone, detached, handed_out, within, twice, view_of_a_plain_tensor,
    view_of_an_inference_tensor, handed_out_twice, in_place_inside, in_place_outside, gradients_through, normal_inside,
    several,
]  # fmt: skip


def described(values: Any) -> Any:
    def of(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.is_inference(), value.requires_grad, value.is_leaf, value.shape, value.stride()

    return [*map(of, values)]


def same(expected: Any, found: Any) -> None:
    expected, found = ((v,) if isinstance(v, torch.Tensor) else v for v in (expected, found))
    assert described(expected) == described(found)
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
    for i, j in itertools.combinations(range(len(expected)), 2):
        tensors = [(values[i], values[j]) for values in (expected, found)]
        if all(isinstance(t, torch.Tensor) for t in tensors[0]):
            shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a, b in tensors]
            assert shared[0] == shared[1] and (tensors[0][0] is tensors[0][1]) == (tensors[1][0] is tensors[1][1])


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_inside(function: Callable[..., Any], around: Any) -> None:
    compiled = quickfuse.compile(function)
    for _ in range(3):
        with around():
            x = torch.randn(4, 8)
            same(function(x), compiled(x))
            same(function(x.requires_grad_()), compiled(x))


@pytest.mark.parametrize("function", [handed_out, within, twice, computed_of_a_view, views_alone], ids=lambda f: f.__name__)
def test_has_kernels(function: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(function)
    compiled(torch.randn(4, 8))
    assert [s.without_kernels for s in compiled.specialisations] == [""]
