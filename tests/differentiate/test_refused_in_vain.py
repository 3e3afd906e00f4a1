"""Operators whose results nobody needs, and that refuse what is in their operands: the exception comes all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse

T = torch.Tensor

REFUSING: dict[str, Callable[[T, T], Any]] = {
    "gather": lambda x, k: x.gather(0, k) * 2,
    "index": lambda x, k: x[k].sin(),
    "embedding": lambda x, k: F.embedding(k, x[:, None]),
    "one_hot": lambda x, k: F.one_hot(k, 3),
    "cross_entropy": lambda x, k: F.cross_entropy(x[None], k),
    "whole quotient": lambda x, k: (k - 5) // (k - 5),
    "index_add": lambda x, k: x.index_add(0, k, x[:1]).exp(),
    "inverse": lambda x, k: torch.linalg.inv((k - 5) * x[:1].new_zeros(2, 2)),
}


def outside(refusing: Callable[[T, T], Any]) -> Callable[..., Any]:
    def program(x: T, k: T, w: T) -> T:
        refusing(x, k)
        return (w * 2).sum()

    return program


def inside(refusing: Callable[[T, T], Any]) -> Callable[..., Any]:
    def program(x: T, k: T, w: T) -> T:
        loss = (w * 2).sum()
        loss.backward()
        refusing(x, k)
        return loss.detach()

    return program


def outcome(program: Callable[..., Any], index: int) -> Any:
    w = torch.ones(3, requires_grad=True)
    try:
        return program(torch.arange(3.0), torch.tensor([index]), w).item(), w.grad
    except (RuntimeError, IndexError) as error:
        return type(error), str(error), w.grad


@pytest.mark.parametrize("place", [outside, inside])
@pytest.mark.parametrize("name", REFUSING)
def test_refused_in_vain(place: Callable[..., Any], name: str) -> None:
    program = place(REFUSING[name])
    compiled = quickfuse.compile(program, fullgraph=name != "inverse")
    for index in (2, 5, 1, 5):
        wanted, found = outcome(program, index), outcome(compiled, index)
        assert found[:-1] == wanted[:-1]
        assert (found[-1] is None) == (wanted[-1] is None)
