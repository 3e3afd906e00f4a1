"""Launch shapes that calls of one kernel share: fewer kernels to compile, and the same results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from quickfuse.ir.kernel import Form, KernelCall
from quickfuse.launch import shared_shapes as shared
from quickfuse.launch.cuda_compile import LaunchShape
from quickfuse.launch.cuda_shapes import choose, covered_elements, program_count, program_table
from quickfuse.launch.shared_shapes import shared_shapes
from schedule_interpreter import assert_same
from trace_helper import copy_inputs, flatten
from triton_runner import Emitted, gpu_schedule, kernels

pytest.importorskip("triton")

_MULTIPROCESSORS = 132


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(shared, "_compiled", {})
    yield


def _calls(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[KernelCall]:
    found = [kernels(gpu_schedule(function, torch.empty(shape))[0]) for shape in shapes]
    return [call for calls in found for call in calls]


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * x.new_ones(x.shape[-1]).cumsum(0)


def _column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(
    ("function", "sizes"),
    [(_softmax, ((32, 40), (32, 100), (32, 256))), (_column_sums, ((4, 6, 20), (4, 20, 20))), (_double, ((99,), (4097,)))],
    ids=["rows", "columns", "elements"],
)
def test_small_calls_share(function: Callable[..., Any], sizes: tuple[tuple[int, ...], ...]) -> None:
    calls = _calls(function, *sizes)
    assert len({call.body for call in calls}) < len(calls)
    shapes = shared_shapes(calls, _MULTIPROCESSORS)
    pairs = {*zip((call.body for call in calls), shapes, strict=True)}
    assert len(pairs) == len({call.body for call in calls})
    assert not any(shape.access for shape in shapes)
    for size in sizes:
        _check(function, size, shapes[0])


def _check(function: Callable[..., Any], size: tuple[int, ...], shape: LaunchShape) -> None:
    """A function gives eager's results, launched so."""
    inputs = (torch.randn(size),)
    schedule, names = gpu_schedule(function, *inputs)
    made = Emitted(schedule, names, lambda _: shape)(*flatten(copy_inputs(inputs)))
    for found, wanted in zip(made, flatten(function(*inputs)), strict=True):
        assert_same(found, wanted, ulps=16)


def test_large_calls_keep_what_is_faster() -> None:
    """Rows of 8 elements in tiles of 64 would leave most threads idle."""
    calls = _calls(_softmax, (1 << 18, 8), (1 << 15, 64))
    narrow, wide = shared_shapes(calls, _MULTIPROCESSORS)
    assert narrow.columns == 8
    assert wide.columns == 64


def test_narrow_tiles_do_for_longer_rows() -> None:
    def fused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * y)

    found = []
    for width in (64, 128, 256, 1024):
        schedule, _ = gpu_schedule(fused, torch.empty(1 << 13, width), torch.empty(width))
        found += kernels(schedule)
    assert len({choose(call.body, call.members, _MULTIPROCESSORS) for call in found}) > 1
    assert len({call.body for call in found}) == len({*shared_shapes(found, _MULTIPROCESSORS)}) == 1


def test_what_is_compiled_is_used_again() -> None:
    first = shared_shapes(_calls(_softmax, (32, 256)), _MULTIPROCESSORS)
    assert shared_shapes(_calls(_softmax, (32, 40)), _MULTIPROCESSORS) == first


def test_members_without_rows_are_left_alone() -> None:
    calls = _calls(lambda x: x + 1, ())
    assert shared_shapes(calls, _MULTIPROCESSORS) == [choose(c.body, c.members, _MULTIPROCESSORS) for c in calls]


@pytest.mark.parametrize("function", [_softmax, _scaled, _column_sums, _double])
@pytest.mark.parametrize("size", [(33, 70, 5), (2000, 9, 300)])
def test_counts(function: Callable[..., Any], size: tuple[int, ...]) -> None:
    """How many programs and elements a launch has is what the table of programs says."""
    for call in _calls(function, size):
        shape = choose(call.body, call.members, _MULTIPROCESSORS)
        assert program_count(call.body, call.members, shape) == len(program_table(call.body, call.members, shape))
        covered = covered_elements(call.body, call.members, shape)
        assert covered >= sum(member.numel for member in call.members)
        if shape.form is not Form.LOOPED:
            assert covered == program_count(call.body, call.members, shape) * shape.block * max(shape.columns, 1)
