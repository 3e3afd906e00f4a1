"""Rows of their own that go to what a mask selects: their number tells how many that are, for the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same

T = torch.Tensor


def rows(x: T, ids: T, given: T) -> T:
    out = x.sin()
    out[ids == 3] = given.cos()
    return (out * 2).tanh()


def by_an_input(x: T, ids: T, given: T) -> T:
    out = given.new_zeros((*ids.shape, given.shape[1]))
    out[ids.bool()] = torch.cat([given, given.sin()])[:6]
    return out.sin() * x


def scattered(x: T, ids: T, given: T) -> T:
    return x.sin().masked_scatter((ids == 3).unsqueeze(-1).expand_as(x), given.cos()).tanh()


def in_a_view(x: T, ids: T, given: T) -> T:
    out = x.clone()
    out[..., 1][ids == 3] = given[:, 0] ** 2
    return out.exp()


def several_by_one_mask(x: T, ids: T, given: T) -> T:
    out, other, mask = x.clone(), x.clone(), ids == 3
    out[mask] = given
    other[mask] = given.sum(0)
    other[mask] = given.prod() + x.sum()
    return out * other


def one_row(x: T, ids: T, given: T) -> T:
    out = x.clone()
    out[ids == 7] = given[:1]
    return out.sin()


def one_row_for_all(x: T, ids: T, given: T) -> T:
    out = x.clone()
    out[ids == 3] = given[:1]
    return out.sin()


def behind_another_axis(x: T, ids: T, given: T) -> T:
    out = x.clone()
    out[:, ids[0] == 1] = given[1] * x[:, :1]
    return out.sin()


def behind_several(x: T, ids: T, given: T) -> T:
    out = x.new_zeros(2, *x.shape)
    out[:, ids == 3] = given
    return out.sin() * x


PROGRAMS = [
    rows, by_an_input, scattered, in_a_view, several_by_one_mask, one_row, one_row_for_all, behind_another_axis,
    behind_several,
]  # fmt: skip


def step_of(program: Callable[[T, T, T], T]) -> Callable[[T, T, T], Any]:
    def step(x: T, ids: T, given: T) -> Any:
        loss = program(x, ids, given).sum()
        loss.backward()
        return loss.detach()

    return step


def outcomes(called: Callable[[T, T, T], Any]) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for k in range(4):
        ids = torch.tensor([[3, 1, 3, 7], [1, 3, 0, 0]]).roll(k, 1)
        x = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
        given = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        if k == 2:
            ids.fill_(k)  # for which eager raises where there are not as many rows
        try:
            made = called(x, ids, given)
            if made.requires_grad:
                made.sum().backward()
        except (RuntimeError, IndexError) as error:
            made = str(error)
        found.append((made, x.grad, given.grad))
    return found


@pytest.mark.parametrize("program", [*PROGRAMS, *map(step_of, PROGRAMS)])
def test_as_eager(program: Callable[[T, T, T], Any]) -> None:
    compiled = quickfuse.compile(program)
    expected, got = outcomes(program), outcomes(compiled)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    assert not compiled.breaks
    assert not any(s.without_kernels for s in compiled.specialisations)
