"""Tensors that are drawn from a pool, as transitions are from a replay memory: at which places of a batch there is one and
the same tensor changes with each call. That compiles nothing again once it has changed a few times, and counts where it
matters."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

import quickfuse
from whole_programs import difference


class Transition(NamedTuple):
    state: torch.Tensor
    following: torch.Tensor


def stacked(batch):
    return torch.cat([t.state for t in batch]) - torch.cat([t.following for t in batch]) * 0.9


def handed_on(batch):
    y = sum(t.state * (k + 1) for k, t in enumerate(batch))
    return y, [t.following for t in batch], batch[0].state


def trained(batch):
    loss = (WEIGHT * torch.cat([t.state for t in batch])).sum() + torch.cat([t.following for t in batch]).sin().sum()
    loss.backward()
    OPTIMIZER.step()
    OPTIMIZER.zero_grad()
    return loss.detach()


SETTLES = [stacked, handed_on, trained]


def changed(batch):
    for k, t in enumerate(batch):
        t.state.mul_(1 + k / 10)
    return sum(t.following for t in batch)


def changed_later(batch):
    total = sum(t.state for t in batch) + batch[-1].following
    batch[0].state.add_(total * 0.01)
    return total, batch[1].following * 2


def compared(batch):
    same = [a.state is b.following for a, b in zip(batch, batch[1:], strict=False)]
    return sum(t.state for t in batch), same


def as_keys(batch):
    counts: dict[Any, int] = {}
    for t in batch:
        counts[t.state] = counts.get(t.state, 0) + 1
        counts[t.following] = counts.get(t.following, 0) + 1
    return sum(t.state for t in batch) * len(counts), list(counts.values())


def with_attributes(batch):
    for k, t in enumerate(batch):
        t.state.tag = k
    return [getattr(t.following, "tag", None) for t in batch], batch[0].state * 2


def differentiated(batch):
    leaves = [t.state for t in batch]
    for leaf in leaves:
        leaf.grad = None
    loss = sum((leaf * (k + 1)).sum() for k, leaf in enumerate(leaves))
    loss.backward()
    return [leaf.grad for leaf in leaves]


WHERE_IT_MATTERS = [changed, changed_later, compared, as_keys, with_attributes, differentiated]
WEIGHT = torch.nn.Parameter(torch.ones(3))
OPTIMIZER = torch.optim.Adam([WEIGHT], 0.1)


def run(function: Callable[..., Any], count: int, leaves: bool) -> list[Any]:
    torch.manual_seed(0)
    generator = random.Random(0)
    pool = [torch.randn(1, 3, requires_grad=leaves) for _ in range(7)]
    memory = [Transition(a, b) for a, b in zip(pool, pool[1:], strict=False)]
    with torch.no_grad():
        WEIGHT.fill_(1.0)
    OPTIMIZER.state.clear()
    out = []
    for _ in range(count):
        batch = generator.sample(memory, 4)
        out.append((function(batch), [t.detach().clone() for t in pool], WEIGHT.detach().clone()))
    return out


def all_compiled(function: Callable[..., Any]) -> Any:
    return quickfuse.compile(function, options={"raise_internal_errors": True})


@pytest.mark.parametrize("function", [*SETTLES, *WHERE_IT_MATTERS])
def test_same_as_eager(function, monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    leaves = function is differentiated
    assert difference(run(function, 30, leaves), run(all_compiled(function), 30, leaves)) is None


@pytest.mark.parametrize("function", SETTLES)
def test_settles(function, monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    compiled = all_compiled(function)
    run(compiled, 40, False)
    assert len(compiled.entry.specialisations) <= 7
    made = len(compiled.entry.specialisations)
    run(compiled, 40, False)
    assert len(compiled.entry.specialisations) <= made + (function is trained)  # an optimizer's first step is another one


def test_settles_behind_a_break(monkeypatch):
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", False)
    pool = [torch.randn(3) for _ in range(5)]

    def drawn():
        return torch.stack(random.choices(pool, k=4)).sum(0)

    compiled = all_compiled(drawn)
    for k in range(30):
        random.seed(k)
        expected = drawn()
        random.seed(k)
        torch.testing.assert_close(compiled(), expected)
    assert all(len(point.specialisations) <= 5 for point in compiled.points.values())
