"""Numbers that a break reads out of tensors with gradients: the tensor is no result of the graph for that alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from quickfuse.launch.joined import JoinedCall

T = torch.Tensor


def to_a_tolerance(x: T) -> T:
    value = x
    for _ in range(8):
        before = value
        value = (value + x / value) / 2
        if (value - before).abs().max().item() < 1e-3:
            break
    return value


def kept(x: T) -> Any:
    loss = x.square().sum()
    if loss.item() > 1:
        loss = loss * 2
    return loss, loss.item()


def kept_in_a_list(x: T) -> Any:
    losses = []
    for k in range(3):
        losses.append((x * k).square().sum())
        if losses[-1].item() > 5:
            losses.append(losses[-1] + 1)
    return losses


def number_first(x: T) -> Any:
    loss = x.square().sum()
    number = loss.item()
    if number > 1:
        return number, loss
    return number, loss + 1


def two_numbers(x: T) -> Any:
    hidden = x.tanh()
    norm, largest = hidden.norm(), hidden.max()
    if norm.item() > largest.item():
        return hidden / norm
    return hidden * largest


def of_a_view(x: T) -> Any:
    hidden = x.exp()
    if hidden[0, 0].item() > 1:
        return hidden * 2
    return hidden


class Holder:
    loss: Any = None


def kept_in_an_object(x: T) -> Any:
    holder = Holder()
    holder.loss = x.square().sum()
    if holder.loss.item() > 1:
        return holder.loss * 3
    return holder.loss


@pytest.mark.parametrize(
    "program", [to_a_tolerance, kept, kept_in_a_list, number_first, two_numbers, of_a_view, kept_in_an_object]
)
def test_agrees(program: Callable[..., Any]) -> None:
    compiled = quickfuse.compile(program)
    for k in range(6):
        x = torch.rand(3, 4) + (0.01 if k % 2 else 1)
        found = []
        for run in (program, compiled):
            leaf = x.clone().requires_grad_()
            made = run(leaf)
            flat = [*made] if isinstance(made, (tuple, list)) else [made]
            total = sum(t.sum() for t in flat if isinstance(t, T))
            assert isinstance(total, T)
            total.backward()
            found.append([*flat, leaf.grad])
        torch.testing.assert_close(found[1], found[0])


def test_what_only_a_number_is_read_from_is_no_result() -> None:
    compiled = quickfuse.compile(to_a_tolerance)
    known = {id(o) for o in gc.get_objects() if issubclass(type(o), JoinedCall)}
    for _ in range(3):
        compiled((torch.rand(3, 4) + 1).requires_grad_()).sum().backward()
    calls = [o for o in gc.get_objects() if issubclass(type(o), JoinedCall) and id(o) not in known]
    assert calls and all(len(call.differentiable) == 1 for call in calls)
