"""Kernels for a GPU draw the random numbers of PyTorch's dropout: against its threads, one after the other, in NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from quickfuse.differentiate.expand import expand
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Draw
from quickfuse.ir.philox import Stream, uniform, vector_width, words
from quickfuse.lower import lower
from quickfuse.lower.layout import is_dense
from schedule_interpreter import Interpreter, assert_same, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace
from triton_runner import Emitted, compiled, kernels, looped

SEED, OFFSET = (1 << 62) + 0xDEADBEEF12345, (1 << 34) - 8
#: A GPU with few threads, so that small tensors take them several turns.
MOST = 256


class Reserve:
    """A generator's numbers, reserved from the same offset on in each call of a schedule."""

    device = 0
    generators: list[Reserve] = []

    def __init__(self, advance: int, numbers: tuple[int, ...]) -> None:
        self.advance = advance
        self.numbers = numbers
        self.before = Reserve.generators[-1] if Reserve.generators else None
        Reserve.generators.append(self)

    def __call__(self, *aligned: torch.Tensor) -> tuple[int, ...]:
        return SEED, self.begin, *self.numbers

    @property
    def begin(self) -> int:
        return OFFSET if self.before is None else self.before.begin + self.before.advance


STREAM = Stream(MOST, Reserve)


def philox(counter: int, threads: np.ndarray, seed: int) -> list[np.ndarray]:
    """The four words of some threads, by the definition of Philox-4x32-10."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [np.uint64(counter & 0xFFFFFFFF) + 0 * threads, np.uint64(counter >> 32) + 0 * threads, threads, 0 * threads]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> half) ^ c[1] ^ np.uint64(k[0]), b & low, (a >> half) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@functools.cache
def numbers(count: int, width: int, offset: int) -> np.ndarray:
    """What PyTorch's threads draw for each element, one turn after the other."""
    most = min(-(-count // 256) * 256, MOST)
    threads = np.arange(most, dtype=np.uint64)
    found = np.zeros(count + 8 * 4 * most, dtype=np.float32)
    places, turn = np.arange(most), 0
    for first in range(0, count, most * width * (4 if width == 1 else 1)):
        for begin in range(0, width, 4):
            for k, word in enumerate(philox(offset // 4 + turn, threads, SEED)[: 4 if width == 1 else min(width, 4)]):
                uniform = word.astype(np.uint32).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
                at = places + k * most if width == 1 else places * width + begin + k
                found[first + at] = uniform
            turn += 1
    return found[:count]


def dropped(x: torch.Tensor, p: float, offset: int = OFFSET) -> tuple[torch.Tensor, torch.Tensor]:
    """A dropout's result, and its mask."""
    width = vector_width(x.numel(), 0, x.dtype) if is_dense(x.shape, x.stride()) else 1
    drawn = torch.from_numpy(numbers(x.numel(), width, offset))
    in_memory = drawn.as_strided(x.shape, x.stride()) if width > 1 else drawn.view(x.shape)
    work = torch.float64 if x.dtype is torch.float64 else torch.float32
    keep = torch.tensor(1 - p, dtype=work)
    mask = in_memory.to(work) < keep
    return (x.to(work) * mask.to(work) * (1 / keep.double()).to(work)).to(x.dtype), mask


def schedule_of(function: Callable[..., Any], *inputs: Any) -> tuple[Schedule, list[str]]:
    Reserve.generators = []
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    return fused(lower(gm.graph, (), expand, lambda device: STREAM)), names


def check(function: Callable[..., Any], expected: Any, *inputs: torch.Tensor, launches: int = 1) -> Schedule:
    """Assert that a function's kernels, and their formulas, give what is expected."""
    schedule, names = schedule_of(function, *inputs)
    assert all(isinstance(step, Draw) for step in schedule.steps if step not in kernels(schedule)), schedule
    assert len(kernels(schedule)) == launches, schedule
    runs: list[Interpreter] = [Interpreter(schedule, names)]
    runs += [Emitted(schedule, names, change, tables=change is looped) for change in (lambda shape: shape, looped)]
    for run in runs:
        for made, wanted in zip(run(*inputs), flatten(expected), strict=True):
            assert_same(made, wanted)
    return schedule


def test_words() -> None:
    for count, width in ((1001, 1), (1002, 2), (4096, 4), (5000, 8), (2056, 8), (3, 1)):
        threads = min(-(-count // 256) * 256, MOST)
        ours = uniform(words(SEED, OFFSET, torch.arange(count), threads, width))
        assert np.array_equal(ours.numpy(), numbers(count, width, OFFSET))
    # Of Random123's own tests: a counter and a key of zeros.
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert [int(word[0]) for word in philox(0, np.zeros(1, np.uint64), 0)] == known


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1,), (2,), (501,), (502,), (3, 5, 24), (35, 35), (2, 520)], ids=str)
def test_widths(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape).to(dtype)
    check(lambda x: F.dropout(x.neg(), 0.3), [dropped(-x, 0.3)[0]], x)


def test_turns_of_wide_vectors() -> None:
    x = torch.randn(2, 1032).bfloat16()
    check(lambda x: F.dropout(x, 0.3) * 2, [dropped(x, 0.3)[0] * 2], x)


def test_layouts() -> None:
    x = torch.randn(48, 24)
    for view in (x.t(), x[:, :16], x[1:].t(), x[:, ::2], x[:3, :9].t().clone(memory_format=torch.preserve_format)):
        check(lambda x: F.dropout(x, 0.3) + 1, [dropped(view, 0.3)[0] + 1], view)
    images = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    check(lambda x: F.dropout(x, 0.3) + 1, [dropped(images, 0.3)[0] + 1], images)


def test_part_of_a_result() -> None:
    """What PyTorch's kernel does depends on where the memory of a result begins."""
    x = torch.randn(40, 24)
    for first, width in ((0, 4), (1, 1), (2, 2), (4, 4)):
        def function(x: torch.Tensor, first: int = first) -> torch.Tensor:
            return F.dropout((x * 2).view(-1)[first : first + 512], 0.3)

        y = (x * 2).view(-1)[first : first + 512]
        keep = torch.from_numpy(numbers(512, width, OFFSET)) < torch.tensor(0.7)
        check(function, [y * keep * (1 / torch.tensor(0.7).double()).float()], x)


def test_norm_of_a_sum() -> None:
    x, y, w = torch.randn(6, 136), torch.randn(6, 136), torch.randn(136)
    expected = F.layer_norm(dropped(x, 0.1)[0] + y, (136,), w)
    check(lambda x, y, w: F.layer_norm(F.dropout(x, 0.1) + y, (136,), w), [expected], x, y, w)
    rows = torch.randn(5, 131)
    check(lambda x: F.softmax(F.dropout(x, 0.1), -1), [F.softmax(dropped(rows, 0.1)[0], -1)], rows)


def test_lengths_share_a_kernel() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.dropout(x, 0.1) + y, (8,))

    bodies = set()
    for shape in ((2, 20, 8), (3, 24, 8), (2, 30, 8)):
        x, y = torch.randn(shape), torch.randn(shape)
        schedule, _ = schedule_of(function, x, y)
        bodies.update(call.body for call in kernels(schedule))
    assert len(bodies) == 1
    check(function, [F.layer_norm(dropped(x, 0.1)[0] + y, (8,))], x, y)


def test_order() -> None:
    """Each draws after what was drawn before it, also where nobody reads that."""
    x = torch.randn(4, 264)
    first = dropped(x, 0.3)[0]
    third = dropped(first * 2, 0.4, OFFSET + 8 + 4)[0]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.dropout(x, 0.3)
        F.dropout(x[0], 0.5)
        return F.dropout(y * 2, 0.4)

    schedule = check(function, [third], x)
    assert [step.target.advance for step in schedule.steps if isinstance(step, Draw)] == [8, 4, 8]


def test_native_dropout_returns_the_mask() -> None:
    x = torch.randn(4, 264)
    out, mask = dropped(x, 0.3)
    check(lambda x: torch.native_dropout(x, 0.3, True), [out, mask], x)


def test_inputs_that_change_come_after() -> None:
    """What reserves numbers may ask for plain Python, before anything has changed."""
    x, y = torch.randn(4, 264), torch.randn(4, 264)

    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        y.add_(1)
        y.mul_(F.dropout(x, 0.3))

    schedule, _ = schedule_of(function, x, y)
    draw = next(step for step in schedule.steps if isinstance(step, Draw))
    assert draw.may_fail and schedule.steps.index(draw) == 0
    assert [buffer.name for buffer in draw.args] == ["a0"], "the input is to begin at a multiple of 16 bytes"


@pytest.mark.parametrize("function", [
    lambda x: F.dropout(x, 0.0) + 1, lambda x: F.dropout(x, 1.0) + 1, lambda x: F.dropout(x, 0.3, False) + 1,
    lambda x: F.dropout2d(x[None, None], 0.3) + 1, lambda x: torch.native_dropout(x, 0.3, False)[0],
])  # fmt: skip
def test_other_calls_stay(function: Callable[..., Any]) -> None:
    try:
        schedule, _ = schedule_of(function, torch.randn(4, 8))
    except Unsupported:  # capture, which says what these calls do, did not see them
        return
    assert not any(isinstance(step, Draw) for step in schedule.steps)


def test_compiled() -> None:
    """For a GPU that need not be there."""
    for dtype in (torch.float32, torch.bfloat16):
        x, y = torch.randn(64, 1024).to(dtype), torch.randn(64, 1024).to(dtype)
        schedule, _ = schedule_of(lambda x, y: F.layer_norm(F.dropout(x, 0.1) + y, (1024,)), x, y)
        assert len(compiled(schedule)) == 1
        assert len(compiled(schedule_of(lambda x, y: F.dropout(x, 0.1) * y, x.view(-1), y.view(-1))[0])) == 1
        assert len(compiled(schedule_of(lambda x, y: F.dropout(x, 0.1) * y, x[:, 1:], y[:, 1:])[0])) == 1
