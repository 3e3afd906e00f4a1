"""Elements of lists from outside at an index that changes from call to call, `buffer[step % 10]`: read by their path."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import quickfuse
from differential import same


class Counted:
    def __init__(self, k: int) -> None:
        self.rate, self.uses, self.seen = 0.5 * k, 0, []


class State:
    """What a program keeps."""

    def __init__(self) -> None:
        self.step = 0
        self.rates = [0.1 * k for k in range(10)]
        self.fixed = [*range(3, 13)]
        self.cache: list[Any] = [[None, None] for _ in range(10)]
        self.bank = [torch.full((3,), float(k)) for k in range(10)]
        self.logs: list[dict[str, Any]] = [{"loss": 0.0, "n": 0} for _ in range(10)]
        self.objects = [Counted(k) for k in range(10)]
        self.layers = [nn.Linear(3, 3) for _ in range(10)]
        self.table = [[k * j for j in range(10)] for k in range(10)]


PROGRAMS: dict[Callable[..., Any], int] = {}


def program(graphs: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How many graphs there are in the end, without a break; zero: any number, and breaks."""
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function] = graphs
        return function

    return register


@program(1)
def numbers(s: State, x: Any, k: int) -> Any:
    return x * s.rates[k] + s.fixed[k]


@program(1)
def of_a_counter(s: State, x: Any, k: int) -> Any:
    s.step += 1
    return x * s.rates[s.step % 10] + s.fixed[(s.step + 1) % 10]


@program(2)
def tensors(s: State, x: Any, k: int) -> Any:
    s.bank[k].mul_(0.5).add_(x)
    return s.bank[k] + 1


@program(2)
def parameters(s: State, x: Any, k: int) -> Any:
    layer = s.layers[k]
    return layer(x).square().sum().detach()


@program(2)
def objects(s: State, x: Any, k: int) -> Any:
    found = s.objects[k]
    found.uses += 1
    found.seen.append(k)
    return x * found.rate + found.uses


@program(2)
def dictionaries(s: State, x: Any, k: int) -> Any:
    log = s.logs[k]
    log["n"] += 1
    log["loss"] = (x.sum() + log["n"]).item()
    return x * log["n"]


@program(2)
def two_indices(s: State, x: Any, k: int) -> Any:
    return x * s.table[k][(k + 1) % 10] + s.table[k][k]


@program(1)
def negative(s: State, x: Any, k: int) -> Any:
    return x * s.rates[-1 - k]


@program(0)
def cached(s: State, x: Any, k: int) -> Any:
    """As in RAdam."""
    s.step += 1
    for _ in range(3):
        entry = s.cache[s.step % 10]
        if entry[0] == s.step:
            rate = entry[1]
        else:
            entry[0] = s.step
            rate = math.sqrt(1 - 0.9**s.step)
            entry[1] = rate
        x = x * rate
    return x


@program(0)
def path_changed_since(s: State, x: Any, k: int) -> Any:
    entry = s.cache[s.step % 10]
    s.step += 1
    entry[0] = s.step
    s.cache[s.step % 10][1] = x.sum()
    return x + s.step


@program(0)
def out_of_range(s: State, x: Any, k: int) -> Any:
    return x * s.rates[k + 3]


@program(0)
def changed_before(s: State, x: Any, k: int) -> Any:
    s.rates[k] = 2.0
    s.cache.append([1, x])
    return x * s.rates[k] + s.rates[(k + 1) % 10], s.cache[k][0], s.cache[-1][1]


@program(0)
def changed_after(s: State, x: Any, k: int) -> Any:
    entry, rate = s.cache[k], s.rates[k]
    s.rates[k] = rate + 1
    s.cache[k] = [k, None]
    entry[1] = "old"
    return x * rate + s.rates[k], entry[1], s.cache[k][0]


@program(0)
def looked_at_whole(s: State, x: Any, k: int) -> Any:
    entry = s.cache[k]
    entry[0] = len(s.cache) + k
    return x * entry[0], [e[0] for e in s.cache], s.cache.index(entry) == k


@program(0)
def same_or_not(s: State, x: Any, k: int) -> Any:
    one, two = s.cache[k], s.cache[(k * k) % 10]
    one[0] = 1
    two[0] = 2
    return x + one[0], one is two, s.cache[3] is one


@program(0)
def handed_on(s: State, x: Any, k: int) -> Any:
    entry = s.cache[k]
    s.objects[0].seen.append(entry)
    return x * 2, entry


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("changes", [False, True])
def test_as_eager(function: Callable[..., Any], changes: bool) -> None:
    torch.manual_seed(0)
    states = [State()]
    states.append(copy.deepcopy(states[0]))
    called = function, quickfuse.compile(function)
    order = [0, 1, 2, 5, 7, 3, 9, 8, 4, 6, 1, 7]
    for turn, k in enumerate(order):
        x, found = torch.randn(3), []
        for state, call in zip(states, called, strict=True):
            if changes:
                _change(state, turn)
            try:
                result = call(state, x.clone(), k)
            except IndexError as error:
                result = str(error)
            found.append(copy.deepcopy((result, vars(state))))
        assert _flat(found[0]) == _flat(found[1]), turn
    if (graphs := PROGRAMS[function]) and not changes:
        assert called[1].graph_count == graphs and not called[1].breaks


def _change(state: State, turn: int) -> None:
    """What may become of the lists between two calls."""
    if turn == 3:
        state.cache[2] = state.cache[5] = state.cache[7]
        state.objects[7] = state.objects[3]
        state.bank[7] = state.bank[3]
    elif turn == 4:
        state.rates[7], state.bank[7], state.logs[7]["n"] = 3, torch.ones(3, dtype=torch.float64), 0.5
    elif turn == 5:
        state.rates, state.cache = state.rates[:4], state.cache[:4] + state.cache[:6]
    elif turn == 6:
        state.rates = [0.5] * 12
        state.fixed = tuple(state.fixed)  # type: ignore[assignment]
    elif turn == 7:
        state.cache.reverse()
        state.rates[8] = True


def _flat(value: Any, seen: list[int] | None = None) -> Any:
    """What is in objects, in terms that compare, and which of them are one."""
    seen = [] if seen is None else seen
    if isinstance(value, (list, dict, Counted)):
        if id(value) in seen:
            return "again", seen.index(id(value))
        seen.append(id(value))
    if isinstance(value, torch.Tensor):
        return value.dtype, value.requires_grad, [round(v, 4) for v in value.detach().flatten().tolist()]
    if isinstance(value, (list, tuple)):
        return type(value), [_flat(v, seen) for v in value]
    if isinstance(value, dict):
        return {k: _flat(v, seen) for k, v in value.items()}
    if isinstance(value, Counted):
        return _flat(vars(value), seen)
    if isinstance(value, nn.Module):
        return _flat(dict(value.named_parameters()), seen)
    return type(value), round(value, 6) if type(value) is float else value


def test_numbers_are_not_none() -> None:
    """Whatever their value is."""
    def f(x: Any, k: int, y: float) -> Any:
        return x * (k == None) + (y != None) + (k == "a") + (y != "b")  # noqa: E711

    compiled = quickfuse.compile(f)
    for k in range(8):
        assert same(compiled(torch.ones(2), k, k * 0.5), f(torch.ones(2), k, k * 0.5))
    assert compiled.graph_count == 1 and not compiled.breaks
