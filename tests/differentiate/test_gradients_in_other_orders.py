"""Gradients that come with their axes in another order than those of the result: backward's results lie as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from differentiate.twins import compiled, leaf

FUNCTIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda w: w.sigmoid().clone(),
    lambda w: (w / (w.square() + 1)).tanh_(),
    lambda w: w * 2 + 1,
    lambda w: w.sin().t() * 2,
    lambda w: w.softmax(1),
    lambda w: w @ w,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_keep_the_order_of_axes(function: Callable[..., Any]) -> None:
    ours, w = quickfuse.compile(function), leaf(3, 3)
    plain = torch.linspace(-1, 1, 9).reshape(3, 3)
    for given in (plain, plain.t(), plain, torch.linspace(-1, 1, 54).reshape(9, 6)[::3, ::2].t(), plain.t()):
        (expected,), (found,) = (torch.autograd.grad(f(w), w, given) for f in (function, ours))
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()


def test_axes_of_images() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.relu(x * 2) + x.sin()

    ours, x = quickfuse.compile(function), leaf(2, 3, 4, 5)
    for axes in ("0123", "0231", "3210", "1023", "2301", "3012", "1302", "0231"):
        order = [*map(int, axes)]
        back = [order.index(k) for k in range(4)]
        given = torch.linspace(-1, 1, 120).reshape(2, 3, 4, 5).permute(order).contiguous().permute(back)
        (expected,), (found,) = (torch.autograd.grad(f(x), x, given) for f in (function, ours))
        torch.testing.assert_close(found, expected)
    joined = ours.specialisations[0].glue.constants["_joined"]
    assert len(joined.backwards) == 5  # others are copied


@pytest.mark.parametrize("changed", [False, True])
def test_keys_of_an_attention_after_a_break(changed: bool) -> None:
    """Also where the graph changes them in place: what they were before gets no zeros, which would have another layout."""

    def attend(w: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        key = w / (w.square() + 1)
        quickfuse.graph_break()
        if changed:
            key.tanh_()
        return F.scaled_dot_product_attention(q[None], key[None], q[None])[0]

    w, q = leaf(3, 3), torch.linspace(-1, 1, 9).reshape(3, 3)
    expected, found = (torch.autograd.grad(f(w, q).square().sum(), w)[0] for f in (attend, quickfuse.compile(attend)))
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()  # (1, 3) with PyTorch 2.13, not with 2.15


def test_one_of_two_results() -> None:
    def function(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return w.sin(), w.exp() * 2

    ours, w = compiled(function), leaf(3, 3)
    plain = torch.linspace(-1, 1, 9).reshape(3, 3)
    for numbers in ((0, 1), (0,), (1,)):
        for orders in ((plain, plain.t()), (plain.t(), plain), (plain.t(), plain.t())):
            given = [orders[k] for k in numbers]
            expected, found = (torch.autograd.grad([f(w)[k] for k in numbers], w, given)[0] for f in (function, ours))
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
