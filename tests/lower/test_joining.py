"""Operators that put tensors together, pad, shift and repeat them, and assignments to parts, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import check

X = torch.Tensor


def values(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> X:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) * 7 - 2).abs().to(dtype)


def launches(schedule: Any) -> int:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)
    return len(schedule.steps)


TWO, THREE = (values(3, 5), values(4, 5, seed=1)), (values(3, 5), values(3, 7, seed=1), values(3, 1, seed=2))
IMAGE = (values(2, 3, 9, 11),)

CASES: dict[str, tuple[Callable[..., Any], tuple[X, ...]]] = {
    "cat0": (lambda a, b: torch.cat([a, b]), TWO),
    "cat1": (lambda a, b, c: torch.cat([a, b, c], -1), THREE),
    "cat_computed": (lambda a, b, c: torch.cat([a * 2, b.sin(), c], 1) + 1, THREE),
    "cat_same": (lambda a: torch.cat([a, a, a * 2], 1), (values(3, 5),)),
    "cat_mixed": (lambda a, b: torch.cat([a, b]), (values(3, 5), values(2, 5, dtype=torch.int64))),
    "cat_empty": (lambda a, b: torch.cat([torch.zeros(0), a, b, a[:0]]) * 2, TWO),
    "cat_transposed": (lambda a, b: torch.cat([a.t(), b.t()], 1).relu(), TWO),
    "cat_read_twice": (lambda a, b: (lambda c: (c * 2, c.sum(1), c[1:], c.t()))(torch.cat([a, b])), TWO),
    "cat_reduced": (lambda a, b, c: torch.cat([a, b, c], 1).softmax(1), THREE),
    "cat_multiplied": (lambda a, b: torch.cat([a, b]) @ a.t() + 1, TWO),
    "cat_many": (lambda a: torch.cat([a * k for k in range(70)], 1) + 1, (values(3, 2),)),
    "cat_sliced": (lambda a, b, c: torch.cat([a, b, c], 1)[:, 2:9] * 2, THREE),
    "cat_of_cats": (lambda a, b, c: torch.cat([torch.cat([a, b], 1).exp(), torch.cat([c, a], 1)], 1).abs(), THREE),
    "cat_broadcast": (lambda a, b: torch.cat([a, b]) * torch.arange(7.0)[:, None], TWO),
    "cat_gathered": (lambda a, b, i: torch.cat([a, b])[i], (*TWO, torch.tensor([6, 0, 3]))),
    "rotary": (lambda a: torch.cat([-a[..., 3:], a[..., :3]], -1) * a.sin() + a, (values(4, 6),)),
    "stack": (lambda a: torch.stack([a, a * 2, a + 1], 1), (values(3, 5),)),
    "stack_last": (lambda a: torch.stack([a, a * 2], -1).flatten(-2), (values(3, 5),)),
    "stack_numbers": (lambda a: torch.stack([a.sum(), a.mean(), a[0, 0]]) * 2, (values(3, 5),)),
    "stack_expanded": (lambda a: torch.stack([(a - a.mean()).double().expand(5, 5).diagonal(1)] * 2, -1), (values().sum(),)),
    "cat_infinite": (lambda a, b: torch.cat([b, a + float("inf")], -1), (values(2, 4, 1), values(2, 4, 1))),
    "hstack": (lambda a: (torch.hstack([a, a * 2]), torch.hstack([a[0], a[1] + 1])), (values(3, 5),)),
    "vstack": (lambda a: (torch.vstack([a, a * 2]), torch.vstack([a[0], a[1] + 1])), (values(3, 5),)),
    "dstack": (lambda a: (torch.dstack([a, a * 2]), torch.dstack([a[0], a[1] + 1])), (values(3, 5),)),
    "pad": (lambda x: F.pad(x, (1, 2)) * 2, IMAGE),
    "pad_two": (lambda x: F.pad(x * 3, (1, 2, 3, 0), value=-1.5), IMAGE),
    "pad_negative": (lambda x: F.pad(x, (-1, 2, -3, -2)).exp(), IMAGE),
    "pad_reduced": (lambda x: F.pad(x, (1, 2, 3, 0)).sum(-1), IMAGE),
    "pad_reflect": (lambda x: F.pad(x, (3, 2, 1, 8), mode="reflect") + 1, IMAGE),
    "pad_replicate": (lambda x: F.pad(x, (3, 12, 1, 0), mode="replicate"), IMAGE),
    "pad_circular": (lambda x: F.pad(x, (3, 11, 0, 9), mode="circular"), IMAGE),
    "roll": (lambda x: x.roll(2, 3) + x, IMAGE),
    "roll_two": (lambda x: torch.roll(x.sin(), (-1, 30), (1, -1)), IMAGE),
    "roll_all": (lambda x: x.roll(5) + torch.roll(x, -3), (values(4, 5),)),
    "roll_vector": (lambda x: x.roll(5), (values(7),)),
    "rot90": (lambda x: [x.rot90(k) * 2 for k in range(4)] + [torch.rot90(x, 1, (1, 0))], (values(4, 5),)),
    "column_stack": (lambda x: torch.column_stack([x, x[:, 0], x * 2]), (values(4, 5),)),
    "flip": (lambda x: x.flip(2) * 2 + x.flip([0, 3]) - torch.flip(x, (1,)), IMAGE),
    "fliplr": (lambda x: torch.fliplr(x.exp()), (values(4, 5),)),
    "repeat": (lambda x: x.repeat(2, 3) + 1, (values(3, 4),)),
    "repeat_more": (lambda x: (x * 2).repeat(2, 1, 3), (values(3, 4),)),
    "tile": (lambda x: x.tile((2, 1, 3)) * x.tile(3), (values(1, 4),)),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1) + 1, (values(3, 4),)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x * 2, 2) + 1, (values(2, 12, 5, 7),)),
    "pixel_unshuffle": (lambda x: F.pixel_unshuffle(x, 3) + 1, (values(2, 2, 6, 9),)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    function, inputs = CASES[name]
    schedule = check(function, *inputs, emitted=True, ulps=16)
    if "multiplied" not in name and "numbers" not in name:
        launches(schedule)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_types(dtype: torch.dtype) -> None:
    x = values(4, 37, dtype=dtype)

    def function(x: X) -> list[X]:
        return [torch.cat([x, x.flip(1)], 1), F.pad(x, (1, 3)), x.roll(5, 1), x.repeat(1, 3), torch.stack([x, x.roll(1, 0)])]

    check(function, x, emitted=True, exact=True)


def test_pieces_are_stored_in_place() -> None:
    def function(a: X, b: X, c: X) -> X:
        return torch.cat([a * 2, b * 2, c * 2], 1).relu() * 3

    schedule = check(function, values(2, 40, 9), values(2, 30, 9), values(2, 20, 9), emitted=True)
    assert launches(schedule) == 1
    assert not schedule.temps
    call = schedule.steps[0]
    assert isinstance(call, KernelCall)
    assert len(call.members) == 3
    assert "where" not in str(call)
    assert "pick" not in str(call)
    padded = check(lambda x: F.pad(x, (1, 1, 1, 1)) + 1, values(2, 3, 30, 40), emitted=True)
    assert "pick" not in str(padded)


def in_place(*changes: Callable[[X], Any]) -> Callable[[X], X]:
    def function(x: X) -> X:
        for change in changes:
            change(x)
        return x.sum(0)

    return function


PARTS: dict[str, Callable[[X], Any]] = {
    "row": lambda x: x[0].zero_(),
    "rows": lambda x: x[2:5].mul_(2),
    "column": lambda x: x[:, 1].add_(x[:, 3]),
    "step": lambda x: x[1::2].fill_(3),
    "block": lambda x: x[1:3, 2:-1].copy_(x[3:5, 2:-1] * 2),
    "setitem": lambda x: x.__setitem__((slice(1, 3), 2), 5.0),
    "setitem_tensor": lambda x: x.__setitem__((slice(None), slice(1, 3)), x[:, 3:5].exp()),
    "transposed": lambda x: x.t()[1:3].neg_(),
    "shifted": lambda x: x[1:].copy_(x[:-1] + 1),
    "last": lambda x: x[-1, -1].sub_(1),
    "negative_step": lambda x: x[:4].copy_(x.flip(0)[:4]),
}


@pytest.mark.parametrize("name", PARTS)
def test_assignment_to_a_part(name: str) -> None:
    x = values(7, 6)
    check(in_place(PARTS[name]), x, emitted=True)
    check(lambda x: in_place(PARTS[name])(x * 2), x, emitted=True)
    check(lambda x: in_place(PARTS[name], PARTS["row"], PARTS["column"])(x), x, emitted=True)


def test_a_part_of_an_input_is_all_that_is_stored() -> None:
    schedule = check(lambda x: x[2:5].mul_(2), values(7, 6), emitted=True)
    assert launches(schedule) == 1
    call = schedule.steps[0]
    assert isinstance(call, KernelCall)
    assert [member.sizes for member in call.members] == [(18,)]
    two = check(lambda x: (x[:, :3].mul_(2), x[:, 3:].add_(1)), values(7, 6), emitted=True)
    assert launches(two) <= 2
    assert not two.temps


def test_a_recurrence_over_parts() -> None:
    def function(x: X) -> X:
        out = torch.zeros_like(x)
        out[0] = x[0]
        for t in range(1, 40):
            out[t] = out[t - 1] * 0.5 + x[t]
        return out

    check(function, values(40, 6), emitted=True, ulps=32)


PLACED: dict[str, Callable[..., Any]] = {
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:, 1:3] * 2, 1, 3, 5) + 1,
    "slice_scatter_step": lambda x, y: torch.slice_scatter(x, y[:2], 0, 1, 6, 3),
    "slice_scatter_negative": lambda x, y: torch.slice_scatter(x, y[:3], 0, -3),
    "select_scatter": lambda x, y: torch.select_scatter(x * 3, y[1], 0, -2).relu(),
    "diagonal_scatter": lambda x, y: torch.diagonal_scatter(x, y[0, :5], 1),
    "diagonal_scatter_below": lambda x, y: torch.diagonal_scatter(x, y[0, :5], -2) * 2,
    "diag_embed": lambda x, y: torch.diag_embed(x, 1) + 1,
    "diag_embed_axes": lambda x, y: torch.diag_embed(x * y, 0, 0, 2),
    "diag": lambda x, y: torch.diag_embed(x[0]) @ y.t(),
    "tril": lambda x, y: (x * 2).tril(-1) + y.triu(2),
    "triu": lambda x, y: torch.triu(x[None] + y).sum(-1),
    "tril_": lambda x, y: x.tril_(1),
    "causal": lambda x, y: (x @ y.t()).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), float("-inf")).softmax(-1),
    "eye": lambda x, y: x @ torch.eye(6) + torch.eye(7, 6),
    "one_hot": lambda x, y: F.one_hot((x * 2).long().clamp(0, 9), 12) * 2,
}


@pytest.mark.parametrize("name", PLACED)
def test_placed(name: str) -> None:
    check(PLACED[name], values(7, 6), values(7, 6, seed=3), emitted=True, ulps=32)


INTO_EXPANDED: dict[str, Callable[..., Any]] = {
    "slice_scatter": lambda x: torch.slice_scatter(x.expand(7, 6), torch.arange(12).reshape(2, 6), 0, 1, 3),
    "select_scatter": lambda x: torch.select_scatter(x.expand(7, 6), torch.arange(7), 1, 2),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x.expand(7, 6), torch.arange(5), 1),
}


@pytest.mark.parametrize("name", INTO_EXPANDED)
def test_placed_into_expanded(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        placed = INTO_EXPANDED[name](x * 2)
        return placed, placed.sin()

    expected, found = function(values(6)), quickfuse.compile(function)(values(6))
    assert [t.stride() for t in expected] == [t.stride() for t in found]
    torch.testing.assert_close(found, expected)
