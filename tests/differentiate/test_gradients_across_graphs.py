"""Gradients that reach parameters through a tensor that an earlier graph computed: `torch.autograd.grad` after a break."""

from __future__ import annotations

import pytest
import torch

import quickfuse


@pytest.mark.parametrize("allow_unused", [False, True])
@pytest.mark.parametrize("also", [False, True])
def test_grad_after_a_break(allow_unused: bool, also: bool) -> None:
    x = torch.randn(5, dtype=torch.float64)
    w, v = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def step() -> tuple[torch.Tensor | None, ...]:
        hidden = torch.tanh(x * w)
        quickfuse.graph_break()
        loss = (hidden * v).square().sum()
        wanted = [w, v, hidden] if also else [w, v]
        return torch.autograd.grad(loss, wanted, allow_unused=allow_unused)

    for ours, eager in zip(quickfuse.compile(step)(), step(), strict=True):
        torch.testing.assert_close(ours, eager)


def test_grad_with_respect_to_what_an_earlier_graph_computed_is_captured() -> None:
    x, w = torch.randn(5), torch.randn(5, requires_grad=True)

    def step() -> torch.Tensor:
        hidden = torch.tanh(x * w)
        quickfuse.graph_break()
        return torch.autograd.grad((hidden * 3).square().sum(), hidden)[0]

    compiled = quickfuse.compile(step)
    torch.testing.assert_close(compiled(), step())
    assert quickfuse.explain(step)().graph_break_count == 1
