"""Hooks of modules and optimizers that a compiled function registers: removed again, they are part of its graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import quickfuse
from optim.step_twins import CLOSE, difference

T = torch.Tensor
Program = Callable[[Callable[..., Any]], Any]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batches() -> list[T]:
    torch.manual_seed(1)
    return [torch.randn(2, 4) for _ in range(4)]


def of_one(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        seen: list[T] = []
        handle = m[1].register_forward_hook(lambda module, given, y: seen.append(y.mean()))
        y = m(x)
        handle.remove()
        return y, seen

    return [f(x) for x in batches()], len(m[1]._forward_hooks)


def of_all(compiled: Callable[..., Any]) -> Any:
    """They are removed where the function ends, however it does."""
    m = model()

    def save(name: str, features: dict[str, T]) -> Any:
        def hook(module: Any, given: Any, y: T) -> None:
            features[name] = y.detach()

        return hook

    @compiled
    def f(x: T) -> Any:
        features: dict[str, T] = {}
        handles = [part.register_forward_hook(save(name, features)) for name, part in m.named_modules() if name]
        try:
            y = m(x)
        finally:
            for handle in handles:
                handle.remove()
        return y, features

    return [f(x) for x in batches()], [len(part._forward_hooks) for part in m]


def in_a_block(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        with m[0].register_forward_hook(lambda module, given, y: y * 2):
            return m(x)

    return [f(x) for x in batches()]


def before_others(compiled: Callable[..., Any]) -> Any:
    """One that is there stays there, and is called in its turn."""
    m = model()
    m[0].register_forward_hook(lambda module, given, y: y + 1)

    @compiled
    def f(x: T) -> Any:
        first = m[0].register_forward_hook(lambda module, given, y: y * 3, prepend=True)
        last = m[0].register_forward_pre_hook(lambda module, given: (given[0] * 2,))
        a = m(x)
        first.remove()
        b = m(x)
        last.remove()
        last.remove()
        return a, b, m(x)

    return [f(x) for x in batches()], len(m[0]._forward_hooks), len(m[0]._forward_pre_hooks)


def of_every_module(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        names = []
        handle = register_module_forward_hook(lambda module, given, y: names.append(type(module).__name__))
        y = m(x)
        handle.remove()
        return y, names

    return [f(x) for x in batches()]


def of_an_optimizer(compiled: Callable[..., Any]) -> Any:
    m = model()
    optimizer = torch.optim.SGD(m.parameters(), 0.1)
    counted: list[int] = []

    @compiled
    def f(x: T) -> Any:
        handle = optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: counted.append(len(args)))
        optimizer.zero_grad()
        loss = m(x).sum()
        loss.backward()
        optimizer.step()
        handle.remove()
        return loss

    return [f(x) for x in batches()], counted, m.state_dict()


def gradients_of_features(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        held: dict[str, T] = {}
        handle = m[1].register_forward_hook(lambda module, given, y: held.update(y=y))
        scores = m(x)
        handle.remove()
        (gradient,) = torch.autograd.grad(scores[:, 0].sum(), held["y"])
        return (gradient.mean(0) * held["y"]).relu()

    return [f(x) for x in batches()]


IN_ONE_GRAPH: tuple[Program, ...] = (
    of_one, of_all, in_a_block, before_others, of_every_module, of_an_optimizer, gradients_of_features,
)  # fmt: skip


@pytest.mark.parametrize("program", IN_ONE_GRAPH)
def test_removed_inside(program: Program) -> None:
    made: list[Any] = []

    def compiled(function: Callable[..., Any]) -> Any:
        made.append(quickfuse.compile(function, fullgraph=True))
        return made[0]

    found = program(compiled)
    assert not (differing := difference(found, program(lambda function: function), CLOSE)), differing
    assert made[0].graph_count == 1


# What outlives its graph is registered by Python -------------------------------------------------------------------


def left(compiled: Callable[..., Any]) -> Any:
    m = model()
    counted: list[int] = []

    @compiled
    def f(x: T) -> Any:
        m[0].register_forward_hook(lambda module, given, y: counted.append(1))
        return m(x)

    return [(f(x), len(counted), len(m[0]._forward_hooks)) for x in batches()]


def kept_at_times(compiled: Callable[..., Any]) -> Any:
    m = model()
    kept: list[Any] = []
    counted: list[int] = []

    @compiled
    def f(x: T, keeps: bool) -> Any:
        handle = m[0].register_forward_hook(lambda module, given, y: counted.append(1))
        y = m(x)
        if keeps:
            kept.append(handle)
        else:
            handle.remove()
        return y

    found = [(f(x, k % 2 == 1), len(counted), len(m[0]._forward_hooks)) for k, x in enumerate(batches())]
    for handle in kept:
        handle.remove()
    return found, len(m[0]._forward_hooks), [type(handle).__name__ for handle in kept]


def removed_and_returned(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        handle = m[0].register_forward_hook(lambda module, given, y: y * 2)
        y = m(x)
        handle.remove()
        return y, handle

    found = [f(x) for x in batches()]
    return [(y, type(handle), handle.id in m[0]._forward_hooks, handle.remove()) for y, handle in found]


def around_a_break(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T) -> Any:
        seen: list[T] = []
        handle = m[0].register_forward_hook(lambda module, given, y: seen.append(y.sum()))
        y = m(x)
        several = y.tolist()
        handle.remove()
        return y * seen[0], several

    return [f(x) for x in batches()], len(m[0]._forward_hooks)


def where_the_program_raises(compiled: Callable[..., Any]) -> Any:
    m = model()

    @compiled
    def f(x: T, bad: bool) -> Any:
        handle = m[0].register_forward_hook(lambda module, given, y: y * 2)
        y = m(x)
        if bad:
            raise ValueError("bad")
        handle.remove()
        return y

    found: list[Any] = []
    for k, x in enumerate(batches()):
        try:
            found.append(f(x, k % 2 == 1))
        except ValueError as error:
            found.append(str(error))
        found.append(len(m[0]._forward_hooks))
    return found


@pytest.mark.parametrize("program", [left, kept_at_times, removed_and_returned, around_a_break, where_the_program_raises])
def test_outlives_the_graph(program: Program) -> None:
    found = program(quickfuse.compile)
    assert not (differing := difference(found, program(lambda function: function), CLOSE)), differing
