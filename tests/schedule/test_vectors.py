"""How loops use vectors where neighbours in memory do not lie along one axis for all operands, or must be taken in order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.ir.expr import Op, walk
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.target import CPU
from schedule_interpreter import check

ROWS, INDEX = torch.randn(32, 96), torch.randint(96, (32, 96))


def kernels(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def one_by_one(schedule: Schedule) -> set[str]:
    """The operations of kernels that handle one element at a time."""
    bodies = [call.body for call in kernels(schedule) if call.body.vector < 0]
    return {node.name for body in bodies for node in walk(*body.roots) if isinstance(node, Op)}


IN_ORDER: dict[str, tuple[Callable[..., Any], int]] = {
    "scanned": (lambda x, k: F.silu(x).cumsum(1), 2),
    "after a scan": (lambda x, k: F.silu(x.cumsum(1)), 2),
    "both": (lambda x, k: F.silu(F.silu(x).cumsum(1)), 3),
    "of 16 bits": (lambda x, k: F.silu(x.bfloat16()).cumsum(1), 2),
    "scattered": (lambda x, k: torch.zeros_like(x).scatter_add(1, k, F.silu(x)), 2),
    "scattered, and its result": (lambda x, k: F.silu(torch.zeros_like(x).scatter_add(1, k, x)), 2),
    "added to slices": (lambda x, k: torch.zeros_like(x).index_add(1, k[0], F.silu(x)), 2),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_is_costly_is_not_computed_one_by_one(name: str) -> None:
    function, count = IN_ORDER[name]
    schedule = check(function, ROWS, INDEX, emitted=True, ulps=8)
    assert len(kernels(schedule)) <= count + 1  # zeros are stored first
    assert not one_by_one(schedule) & {"exp", "div"}


def test_where_it_is_stored_it_takes_no_more_bytes_than_it_must() -> None:
    """A sum is computed in float64; what is summed is stored before as it is."""
    schedule = check(lambda x: F.silu(x).cumsum(1), ROWS, emitted=True, ulps=8)
    assert {buffer.meta.dtype for call in kernels(schedule) for m in call.members for buffer in m.buffers} == {torch.float32}


FUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "cheap": (lambda x: (x * 2 + 1).cumsum(1) - 1, ROWS),
    "few elements": (lambda x: F.silu(x.cumsum(1)), ROWS[:2]),
    "across rows": (lambda x: F.silu(F.silu(x).cumsum(0)), ROWS),
    "rows that lie across": (lambda x: F.silu(F.silu(x).cumsum(1)), torch.randn(96, 32).t()),
}


@pytest.mark.parametrize("name", FUSED)
def test_scans_that_stay_one_kernel(name: str) -> None:
    function, x = FUSED[name]
    assert len(kernels(check(function, x, emitted=True, ulps=8))) == 1


IMAGES = torch.randn(2, 32, 16, 18)
CHANNELS_LAST = torch.randn(2, 32, 16, 18).to(memory_format=torch.channels_last)
#: What is computed, and how many elements are gone through along the other operands' axis; 0: no blocks.
TURNED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], int]] = {
    "transposed": (lambda x: (x + 1).t().contiguous(), (torch.randn(40, 50),), 50),
    "a part of a long axis": (lambda x: (x + 1).t().contiguous(), (torch.randn(40, 130),), 26),
    "of prime length": (lambda x: (x + 1).t().contiguous(), (torch.randn(40, 131),), 131),
    "to channels last": (lambda x: (x + 1).contiguous(memory_format=torch.channels_last), (IMAGES,), 48),
    "from channels last": (lambda x: (x + 1).contiguous(), (CHANNELS_LAST,), 32),
    "both layouts": (lambda x, y: x + y, (IMAGES, CHANNELS_LAST), 32),
    "in place": (lambda x, y: x.mul_(2).add_(y), (IMAGES.clone(), CHANNELS_LAST), 32),
    "with its index": (lambda x: x.t().contiguous() + torch.arange(128)[:, None], (torch.randn(40, 128),), 128),
    "of 16 bits": (lambda x: (x + 1).mT.contiguous(), (torch.randn(3, 40, 48).bfloat16(),), 48),
    "one layout": (lambda x, y: x + y, (CHANNELS_LAST, CHANNELS_LAST), 0),
    "short": (lambda x: (x + 1).t().contiguous(), (torch.randn(8, 300),), 0),
    "backwards": (lambda x: x.flip(1).t() + 1, (torch.randn(40, 48),), 0),
}


@pytest.mark.parametrize("name", TURNED)
def test_blocks_where_operands_lie_along_different_axes(name: str) -> None:
    """So that a line of memory of which each vector takes one element is in the cache until all of it is used."""
    function, inputs, length = TURNED[name]
    (call,) = kernels(check(function, *inputs, emitted=True))
    assert call.body.ordered == bool(length)
    if length:
        assert (call.members[0].sizes[-1], call.body.vector) == (length, call.body.ndim - 2)


def every_second(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, ::2] = x[:, 1::2].sin()
    return y * 2


def waves(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[:, 0::2] = x[:, ::2].sin()
    y[:, 1::2] = x[:, ::2].sin()
    return y


def pixels(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[::2, ::2] = x[1::2, 1::2].sin()
    return y


@pytest.mark.parametrize(("function", "share"), [(every_second, 2), (waves, 2), (pixels, 4)])
def test_what_becomes_every_second_element_is_computed_for_these_alone(function: Callable[..., Any], share: int) -> None:
    schedule = check(function, ROWS, emitted=True, ulps=8)
    found = [
        math.prod(member.sizes) * sum(node.name == "sin" for node in walk(*call.body.roots) if isinstance(node, Op))
        for call in kernels(schedule) for member in call.members
    ]  # fmt: skip
    assert sum(found) == ROWS.numel() // share


REDUCED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "to channels last": (lambda x: F.softmax(x, 1).contiguous(memory_format=torch.channels_last), IMAGES),
    "from channels last": (lambda x: F.softmax(x, 1).contiguous(), CHANNELS_LAST),
}


@pytest.mark.parametrize("name", REDUCED)
def test_rows_that_lie_otherwise_where_they_are_stored(name: str) -> None:
    """Vectors lie across rows, and blocks of these are small enough for the cache to hold all lines that they touch."""
    (call,) = kernels(check(*REDUCED[name], emitted=True, ulps=8))
    assert call.body.across
    assert CPU.together(call.body) == 1
    (call,) = kernels(check(lambda x: F.softmax(x, 0), ROWS, emitted=True, ulps=8))
    assert CPU.together(call.body) == CPU.blocks_together
