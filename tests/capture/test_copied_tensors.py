"""`copy.deepcopy` of tensors without gradients, and of what they are in: snapshots of weights, buffers that are kept."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor
Program = tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]


def given(k: int) -> T:
    return torch.arange(4.0) + k


def outside() -> Program:
    def f(x: T) -> Any:
        y = copy.deepcopy(x)
        y += 1
        return x * y, y

    return f, lambda k: (given(k),)


def made() -> Program:
    def f(x: T) -> Any:
        z = x * 2
        y = copy.deepcopy(z)
        y += 1
        z.mul_(3)
        return z * y, y

    return f, lambda k: (given(k),)


def twice() -> Program:
    def f(x: T) -> Any:
        t = copy.deepcopy([x, {"a": x * 2}, x])
        t[0].add_(1)
        return t, x * 2, t[0] is t[2]

    return f, lambda k: (given(k),)


def snapshot() -> Program:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    best: dict[str, Any] = {}

    def f(x: T) -> Any:
        best["state"] = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            model[0].weight.add_(1)
        return x @ best["state"]["0.weight"], [*best["state"]], type(best["state"]), dict(best["state"]._metadata)

    return f, lambda k: (given(k),)


def of_an_object() -> Program:
    class State:
        def __init__(self) -> None:
            self.total = torch.zeros(4)
            self.others = [1, torch.ones(4)]

    state = State()

    def f(x: T) -> Any:
        kept = copy.deepcopy(state)
        kept.total += x
        state.total.add_(1)
        return kept.total * 2, kept.others, kept.others[1] is state.others[1], state.total + 0

    return f, lambda k: (given(k),)


def channels_last() -> Program:
    def f(x: T) -> Any:
        y = copy.deepcopy(x)
        return y.relu(), y.stride(), y

    return f, lambda k: (torch.arange(96.0).reshape(2, 3, 4, 4).contiguous(memory_format=torch.channels_last) - k,)


# what is not the same in each call, and what Python copies


def shared() -> Program:
    def f(a: T, b: T) -> Any:
        c, d = copy.deepcopy((a, b))
        c.zero_()
        return c + d * 2, c is d

    def arguments(k: int) -> tuple[T, T]:
        t = torch.arange(8.0)
        return (t[:4], t[4:]) if k == 2 else (t, t.view(8)) if k in (3, 5) else (t, t) if k == 6 else (t, t.clone())

    return f, arguments


def tied() -> Program:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    model = torch.nn.Sequential(first, second)

    def f(x: T) -> T:
        state = copy.deepcopy(model.state_dict())
        state["0.weight"].zero_()
        return x @ state["1.weight"]

    return f, lambda k: (given(k),)


def views() -> Program:
    def f(x: T) -> Any:
        y, z = copy.deepcopy(x[1:]), copy.deepcopy(x.t())
        return y * 2, y.storage_offset(), z.stride(), z

    return f, lambda k: (torch.arange(12.0).reshape(3, 4) + k,)


def with_attributes() -> Program:
    def f(x: T) -> Any:
        return copy.deepcopy(x), x * 2

    def arguments(k: int) -> tuple[T]:
        x = given(k)
        if k in (2, 5):
            x.label = k  # type: ignore[attr-defined]
        if k in (3, 6):
            x.requires_grad_().grad = torch.ones(4)
            x.requires_grad_(False)
        return (x,)

    return f, arguments


def that_need_gradients() -> Program:
    weight = torch.nn.Parameter(torch.ones(4))

    def f(x: T) -> Any:
        copied = copy.deepcopy(weight)
        try:
            copy.deepcopy(weight * x)
        except RuntimeError:
            return (copied * x).sum().item(), type(copied), copied.requires_grad
        return None

    return f, lambda k: (given(k),)


IN_ONE_GRAPH = [outside, made, twice, of_an_object, channels_last]
PROGRAMS = [*IN_ONE_GRAPH, snapshot, shared, tied, views, with_attributes, that_need_gradients]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[[], Program]) -> None:
    (eager, arguments), (function, others) = program(), program()
    compiled = quickfuse.compile(function)
    for k in range(8):
        torch.manual_seed(k)
        expected, found = eager(*arguments(k)), compiled(*others(k))
        assert str(found) == str(expected)
        first = (found[0], expected[0]) if isinstance(found, tuple) else (found, expected)
        if isinstance(first[0], T):
            assert vars(first[0]) == vars(first[1]) and str(first[0].grad) == str(first[1].grad)
            assert first[0].stride() == first[1].stride()
    if program in IN_ONE_GRAPH or program is snapshot:
        assert not compiled.breaks and compiled.graph_count <= 1 + (program is snapshot)
