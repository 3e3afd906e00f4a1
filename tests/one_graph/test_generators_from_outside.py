"""Generators that are made before a call and consumed in it, such as `model.parameters()` as an argument."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse

MODEL = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, bias=False))
SEEN: list[int] = []


def counted(n: int, *, begin: int = 0) -> Iterator[torch.Tensor]:
    """It says what it has done."""
    for k in range(begin, n):
        SEEN.append(k)
        yield torch.ones(2) * k
    SEEN.append(-1)


def failing(n: int) -> Iterator[int]:
    yield n
    raise ValueError(f"no more than {n}")


def nested(n: int) -> Iterator[torch.Tensor]:
    yield from counted(n)
    yield torch.zeros(2)


def total(ts: Any) -> Any:
    return sum((t.sum() for t in ts), torch.zeros(()))


def first(ts: Any) -> Any:
    return next(ts) * 2


def until_one(ts: Any) -> Any:
    for k, t in enumerate(ts):
        if k == 1:
            return t
    return torch.zeros(2)


def twice(ts: Any) -> Any:
    return [t * 2 for t in ts], [t * 3 for t in ts]


def pairs(ts: Any, others: Any) -> Any:
    return [a.sum() * b.sum() for a, b in zip(ts, others, strict=False)]


def handled(ts: Any) -> Any:
    found = []
    try:
        for t in ts:
            found.append(torch.ones(2) * t)
    except ValueError as error:
        found.append(torch.zeros(len(str(error))))
    return found


def largest(ts: Any) -> Any:
    """A break in front of what has a generator that goes through the other."""
    return max(t.sum() for t in ts)


def again(ts: Any) -> Any:
    def inner() -> Iterator[torch.Tensor]:
        yield from ts

    return sum(inner(), torch.zeros(2)), iter(ts) is ts


def begun(n: int) -> Iterator[torch.Tensor]:
    made = counted(n)
    next(made)
    return made


def closed(n: int) -> Iterator[torch.Tensor]:
    made = counted(n)
    made.close()
    return made


def asked(ts: Any) -> Any:
    """How far it is."""
    before = ts.gi_frame is None, ts.gi_running
    return before, [t * 2 for t in ts], ts.gi_frame is None, inspect.getgeneratorstate(ts) == inspect.GEN_CLOSED


def asked_between(ts: Any) -> Any:
    return next(ts), ts.gi_frame.f_lasti > 20, ts.gi_suspended, total(ts), ts.gi_suspended


def asking_itself() -> Iterator[Any]:
    held: list[Any] = []

    def asking(held: list[Any]) -> Iterator[Any]:
        yield held[0].gi_running
        yield held[0].gi_frame is None

    held.append(asking(held))
    return held[0]


def same_twice() -> tuple[Any, ...]:
    made = counted(4)
    return made, made


#: The function, its arguments, and how many graphs there are.
CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], bool]] = {
    "parameters": (total, lambda: (MODEL.parameters(),), True),
    "an expression": (total, lambda: ((p for p in MODEL.parameters() if p.ndim > 1),), True),
    "an expression over a list": (total, lambda: ((t * 2 for t in [torch.ones(2), torch.ones(3)]),), True),
    "a function's": (total, lambda: (counted(3),), True),
    "with a keyword": (total, lambda: (counted(3, begin=1),), True),
    "that delegates": (total, lambda: (nested(3),), True),
    "two": (pairs, lambda: (MODEL.parameters(), counted(3)), False),
    "the shorter one first": (pairs, lambda: (counted(2), MODEL.parameters()), False),
    "two of a library": (pairs, lambda: (MODEL.parameters(), MODEL.parameters()), True),
    "one twice": (pairs, same_twice, True),
    "consumed twice": (twice, lambda: (counted(3),), True),
    "one element": (first, lambda: (counted(3),), False),
    "left in a loop": (until_one, lambda: (counted(3),), False),
    "that has begun": (total, lambda: (begun(3),), False),
    "that has ended": (total, lambda: (closed(3),), False),
    "consumed by another": (again, lambda: (counted(3),), True),
    "consumed by another in a break": (largest, lambda: (counted(3),), False),
    "with numbers": (lambda ts: [k * t for k, t in enumerate(ts, 1)], lambda: (counted(3),), True),
    "after itself": (lambda ts: [t + 1 for t in itertools.chain(ts, ts)], lambda: (counted(3),), True),
    "as arguments": (lambda ts: torch.stack([*ts]), lambda: (counted(3),), True),
    "through a function": (lambda ts: list(map(torch.relu, ts)), lambda: (counted(3),), True),
    "taken apart": (lambda ts: [(a + b, c) for a, b, *c in [ts]], lambda: (counted(3),), True),
    "asked how far it is": (asked, lambda: (counted(3),), False),
    "asked between": (asked_between, lambda: (counted(3),), False),
    "asking itself": (lambda ts: [t + 0 for t in ts], lambda: (asking_itself(),), False),
    "that fails": (handled, lambda: (failing(3),), True),
    "that closes over a variable": (total, lambda: ((MODEL[0].bias * k for k in range(3)),), True),
}


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function, arguments, _ = CASES[name]
    compiled = quickfuse.compile(function)
    for _ in range(3):
        outcomes = []
        for run in (function, compiled):
            del SEEN[:]
            given = arguments()
            result = run(*given)
            left = [[t if isinstance(t, int) else t.tolist() for t in g] for g in given]
            outcomes.append((result, left, [*SEEN]))
        torch.testing.assert_close(outcomes[1][0], outcomes[0][0])
        assert outcomes[1][1:] == outcomes[0][1:]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2]])
def test_one_graph(name: str) -> None:
    function, arguments, _ = CASES[name]
    compiled = quickfuse.compile(function, fullgraph=True)
    for _ in range(3):
        compiled(*arguments())


def test_others_than_before() -> None:
    """Of another function, of other values, or one that has begun, as the first call's had not."""
    compiled = quickfuse.compile(total)
    other = nn.Linear(2, 2)
    for make in [
        lambda: counted(3), lambda: counted(4), lambda: counted(3, begin=2), lambda: nested(3), MODEL.parameters,
        other.parameters, lambda: begun(3), lambda: counted(3), lambda: closed(3), lambda: (t for t in [torch.ones(3)]),
        lambda: [torch.ones(2)], lambda: iter([torch.ones(2)]), lambda: counted(3),
    ]:  # fmt: skip
        wanted = total(make())
        torch.testing.assert_close(compiled(make()), wanted)


def test_clipping() -> None:
    for p in MODEL.parameters():
        p.grad = torch.ones_like(p)
    norm = quickfuse.compile(nn.utils.clip_grad_norm_, fullgraph=True)(MODEL.parameters(), 1.0)
    torch.testing.assert_close(norm, torch.tensor(float(sum(p.numel() for p in MODEL.parameters()))).sqrt())
    torch.testing.assert_close(nn.utils.get_total_norm([p.grad for p in MODEL.parameters()]), torch.tensor(1.0))
