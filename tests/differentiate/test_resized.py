"""Tensors that are made without elements in a graph with gradients, and get some: `x.data.new().resize_(3, 1)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import quickfuse


def mask_of_dropout(x: Tensor) -> Any:
    mask = x.data.new().resize_((3, 1)).bernoulli_(0.5).expand_as(x) / 0.5
    return (mask * x).sin()


def two_names(x: Tensor) -> Any:
    made = torch.empty(0)
    other = made
    made.resize_(5).fill_(2)
    return other * x, other


def as_another(x: Tensor) -> Any:
    noise = x.data.new()
    noise.resize_as_(x).normal_()
    return noise * x, noise


def gets_gradients(x: Tensor) -> Any:
    made = x.data.new().resize_(3, 5).zero_()
    made.requires_grad_()
    (made + x).sin().sum().backward()
    return made.grad * 2, x * 2


def copied_to(x: Tensor) -> Any:
    made = x.new_empty(0, 3).resize_(3, 5)
    made.copy_(x.detach())
    return made * x, made


def seen_before(x: Tensor) -> Any:
    made = x.new_empty(0, 3)
    view = made.view(3, 0)
    made.resize_(3).zero_()
    return made.sum() + x, view


def smaller_again(x: Tensor) -> Any:
    made = torch.empty(0)
    made.resize_(x.size())
    made.fill_(3).resize_(0)
    return x * 2, made


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("program", [
    mask_of_dropout, two_names, as_another, gets_gradients, copied_to, seen_before, smaller_again,
], ids=lambda program: program.__name__)  # fmt: skip
def test_resized(program: Callable[..., Any], gradients: bool) -> None:
    compiled = quickfuse.compile(program)
    for seed in range(3):
        seen = []
        for run in (program, compiled):
            torch.manual_seed(seed)
            x = torch.randn(3, 5, requires_grad=gradients)
            results = run(x)
            results = results if isinstance(results, tuple) else (results,)
            for result in results:
                if result.requires_grad:
                    result.sum().backward()
            looks = [(t.shape, t.stride(), t.requires_grad, t._version) for t in results]
            seen.append((looks, [t.detach() for t in results], x.grad))
        assert seen[0][0] == seen[1][0]
        torch.testing.assert_close(seen[1][1:], seen[0][1:])
    if program in (mask_of_dropout, two_names, as_another, gets_gradients, copied_to):
        assert all(not s.without_kernels for s in compiled.specialisations)


def test_memory_that_is_filled() -> None:
    def program(x: Tensor) -> Any:
        made = x.data.new().resize_(3, 5)
        return made * x, made

    compiled = quickfuse.compile(program)
    for filled in (False, True, False, True):
        torch.use_deterministic_algorithms(filled)
        try:
            result = compiled(torch.ones(3, 5, requires_grad=True))
        finally:
            torch.use_deterministic_algorithms(False)
        assert not filled or (result[0].isnan().all() and result[1].isnan().all())
