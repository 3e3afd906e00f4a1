"""Functions of one code that close over different variables, given to a compiled function one after the other.

They are known by their code, so that each call may be given another one: what is done with a variable is done with that of
the function at hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

Made = tuple[Callable[..., Any], Callable[[], Any]]


def assigns(v: Any) -> Made:
    def function(x):
        nonlocal v
        v = x.sum() if x.ndim else 2
        return x * 2

    return function, lambda: v


def counts(v: Any) -> Made:
    def function(x):
        nonlocal v
        v += 1
        return x * v

    return function, lambda: v


def breaks(v: Any) -> Made:
    def function(x):
        y = x * 2
        time.time()
        return y * v

    return function, lambda: v


def breaks_and_assigns(v: Any) -> Made:
    def function(x):
        nonlocal v
        y = x * v
        time.time()
        v = v + 1
        return y * v

    return function, lambda: v


def in_an_inner_function(v: Any) -> Made:
    def function(x):
        def inner(y):
            nonlocal v
            v = v * 2
            return y + v

        x = inner(x)
        return sum(x * u for u in (v, 1))

    return function, lambda: v


def one(x, a, b):
    return a(x)


def both(x, a, b):
    return a(b(x))


def first_again(x, a, b):
    x = a(b(x))
    time.time()
    return b(a(x))


@pytest.mark.parametrize("call", [one, both, first_again])
@pytest.mark.parametrize("make", [assigns, counts, breaks, breaks_and_assigns, in_an_inner_function])
def test_each_has_its_own(make: Callable[[Any], Made], call: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(call)
    for same in (False, True, False, False, True):
        for value in (1, 3, 0.5):
            seen = []
            for run in (call, compiled):
                (a, left), (b, right) = make(value), make(value + 4)
                b = a if same else b
                seen.append((run(torch.ones(2), a, b).tolist(), str(left()), str(right())))
            assert seen[1] == seen[0]
