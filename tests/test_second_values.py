"""A number or a length that has its second value is compiled for it, however many specialisations held the first one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse


def drawn(x: torch.Tensor, kind: str, n: int) -> torch.Tensor:
    y = torch.rand(n).sum() + x
    if kind == "a":
        return y + 1
    if kind == "b":
        return y * 2
    return y - 3 if kind == "c" else y.sin()


def summed(x: torch.Tensor, kind: str, n: int) -> torch.Tensor:
    return drawn(x, kind, 3) + sum([x * 2] * n)


def after_a_break(x: torch.Tensor, kind: str, n: int) -> torch.Tensor:
    time.time()
    return drawn(x, kind, n)


CASES = [(drawn, "abcd", 0), (summed, "abcd", 0), (after_a_break, "ab", 1)]


@pytest.mark.parametrize(("function", "kinds", "breaks"), CASES)
def test_the_second_value_is_no_break(function: Callable[..., Any], kinds: str, breaks: int) -> None:
    compiled = quickfuse.compile(function)
    x = torch.randn(3)
    for kind, n in [*((kind, 3) for kind in kinds * 2), *((kind, 2) for kind in kinds), (kinds[0], 3)]:
        torch.manual_seed(0)
        expected = function(x, kind, n)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x, kind, n), expected)
    assert len(compiled.breaks) == breaks
