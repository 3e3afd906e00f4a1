"""Autocast that is switched off: the operators in it are compiled as if it were not there."""

from __future__ import annotations

import torch

import quickfuse


def test_autocast_that_is_off_without_gradients() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())

    def evaluate(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=False):
            y = model(x)
        return y * 2

    explanation = quickfuse.explain(evaluate)(torch.randn(4, 8))
    assert explanation.graph_count == 1 and explanation.without_kernels == [""]
    compiled, x = quickfuse.compile(evaluate), torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), evaluate(x))
    assert not torch.is_autocast_enabled("cpu")


def test_autocast_that_is_off_before_it_is_on() -> None:
    weight = torch.randn(8, 8)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", torch.float16, enabled=False):
            y = x @ weight
            with torch.autocast("cpu", torch.bfloat16):
                z = y @ weight
        return y, z

    compiled, x = quickfuse.compile(both, fullgraph=True), torch.randn(4, 8)
    for ours, eager in zip(compiled(x), both(x), strict=True):
        assert ours.dtype is eager.dtype
        torch.testing.assert_close(ours, eager)


def test_conjugates_under_autocast_are_views() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.conj(), x.conj().imag, x.mH, x.conj() * 2

    x = torch.randn(3, 3, dtype=torch.complex64)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = function(x), quickfuse.compile(function, fullgraph=True)(x)
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
        assert (one.is_conj(), one.is_neg(), one._is_view()) == (other.is_conj(), other.is_neg(), other._is_view())
