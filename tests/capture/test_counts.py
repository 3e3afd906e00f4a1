"""`torch.bincount` with `minlength=`: in one graph while all numbers are less than that, and right where one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor


def means(x: T, groups: T, n: int) -> tuple[T, T]:
    count = torch.bincount(groups, minlength=n)
    return x.new_zeros(len(count), 2).index_add(0, groups, x) / count.clamp(min=1)[:, None], count


def weighted(x: T, groups: T, n: int) -> tuple[T, T]:
    return torch.bincount(groups, x[:, 0], n), groups.bincount(weights=x[:, 1].double(), minlength=n) * 2


def of_bytes(x: T, groups: T, n: int) -> tuple[T, T]:
    return groups.byte().bincount(minlength=300), groups.int().bincount(minlength=n)


def counted_in_place(x: T, groups: T, n: int) -> T:
    return x[:n, 0].mul_(2).add_(groups.bincount(minlength=n))


PROGRAMS: list[Callable[..., Any]] = [means, weighted, of_bytes, counted_in_place]


def groups_of(seed: int) -> tuple[T, T]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(30, 2, generator=made), torch.randint(0, 5, (30,), generator=made)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(program, fullgraph=True)
    for seed in range(4):
        x, groups = groups_of(seed)
        torch.testing.assert_close(compiled(x.clone(), groups, 5), program(x, groups, 5))
    assert compiled.graph_count == 1


@pytest.mark.parametrize("program", PROGRAMS[:3], ids=lambda program: program.__name__)
def test_greater_numbers(program: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(program)
    for seed in range(10):
        x, groups = groups_of(seed)
        if seed % 3 == 1:
            groups[4] = 7
        torch.testing.assert_close(compiled(x, groups, 5), program(x, groups, 5))


@pytest.mark.parametrize("numbers", [[-1, 2], [[1, 2]], [1.5], []])
def test_what_eager_says(numbers: list[Any]) -> None:
    outcomes = []
    for function in (of_bytes, quickfuse.compile(of_bytes), means, quickfuse.compile(means)):
        x, groups = torch.ones(len(numbers), 2), torch.tensor(numbers, dtype=None if numbers else torch.int64)
        try:
            outcomes.append(str(function(x, groups, 5)))
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    assert outcomes[2] == outcomes[3]
