"""`mode="max-autotune"`: launch shapes by measuring, with a clock that tells what a test says."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import quickfuse
from quickfuse.ir.kernel import KernelCall, row_template
from quickfuse.launch import tuning
from quickfuse.launch.cuda_compile import LaunchShape
from quickfuse.launch.cuda_shapes import choose
from quickfuse.launch.scratch import fill_rows
from quickfuse.launch.tuning import candidates, tuned_shapes
from schedule_interpreter import assert_same
from trace_helper import copy_inputs, flatten
from triton_runner import Emitted, gpu_schedule, kernels

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _column_sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def _calls(function: Callable[..., Any], *size: int) -> list[KernelCall]:
    return kernels(gpu_schedule(function, torch.empty(size))[0])


class _Clock:
    """Tells times by a rule, and what was asked and compiled."""

    def __init__(self, seconds: Callable[[LaunchShape], float]) -> None:
        self.seconds = seconds
        self.asked: list[LaunchShape] = []
        self.compiled: list[LaunchShape] = []

    def tune(self, calls: list[KernelCall]) -> list[LaunchShape]:
        shapes = [choose(call.body, call.members, 132) for call in calls]
        return tuned_shapes(calls, shapes, lambda call, shape: f"{call.body} {shape}", self._compile, self._time)

    def _compile(self, pairs: list[tuple[KernelCall, LaunchShape]]) -> None:
        self.compiled += [shape for _, shape in pairs]

    def _time(self, call: KernelCall, shape: LaunchShape) -> float:
        self.asked.append(shape)
        return self.seconds(shape)


def test_the_quickest_is_kept() -> None:
    calls = _calls(_double, 1 << 22)
    clock = _Clock(lambda shape: 1.0 / shape.block)
    (found,) = clock.tune(calls)
    assert found.block == max(shape.block for shape in clock.asked) > choose(calls[0].body, calls[0].members, 132).block
    assert clock.compiled == clock.asked
    again = _Clock(lambda shape: 1.0)
    assert again.tune(calls) == [found]
    assert not again.asked
    assert not again.compiled


def test_what_is_hardly_better_is_left() -> None:
    calls = _calls(_double, 1 << 22)
    shape = choose(calls[0].body, calls[0].members, 132)
    assert _Clock(lambda tried: 1.0 if tried == shape else 0.99).tune(calls) == [shape]


def test_what_cannot_be_launched_is_not_taken() -> None:
    calls = _calls(_double, 1 << 22)
    shape = choose(calls[0].body, calls[0].members, 132)

    def seconds(tried: LaunchShape) -> float:
        if tried != shape:
            raise RuntimeError("too many resources requested for launch")
        return 1.0

    assert _Clock(seconds).tune(calls) == [shape]


def test_small_kernels_are_not_measured() -> None:
    clock = _Clock(lambda shape: 1.0)
    clock.tune([*_calls(_double, 1000), *_calls(lambda x: x + 1)])
    assert not clock.asked


def test_calls_of_one_kernel_are_measured_once() -> None:
    calls = [*_calls(_double, 1 << 22), *_calls(_double, 1 << 23)]
    clock = _Clock(lambda shape: shape.num_warps)
    one, other = clock.tune(calls)
    assert one == other
    assert len(clock.asked) == len({*clock.asked})


_WRONG = '{"block": "x", "warps": 1, "columns": 0, "form": "whole", "aligned": true}'


@pytest.mark.parametrize("text", ["", "{", "[]", _WRONG])
def test_a_file_that_is_damaged(text: str, tmp_path: Path) -> None:
    calls = _calls(_double, 1 << 22)
    (found,) = _Clock(lambda shape: shape.num_warps).tune(calls)
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text(text)
    assert _Clock(lambda shape: shape.num_warps).tune(calls) == [found]


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert tuning._read(tuning._folder() / "x.json") is None
    assert len(_Clock(lambda shape: 1.0).tune(_calls(_double, 1 << 22))) == 1


@pytest.mark.parametrize(
    ("function", "size"), [(_double, (3, 700)), (_softmax, (5, 40)), (_column_sums, (3, 70, 9)), (torch.cumsum, (4, 100))]
)
def test_all_candidates_compute_the_same(function: Callable[..., Any], size: tuple[int, ...]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return function(x, -1) if function is torch.cumsum else function(x)

    x = torch.randn(size)
    schedule, names = gpu_schedule(run, x)
    (call,) = kernels(schedule)
    for shape in candidates(call, choose(call.body, call.members, 4)):
        made = Emitted(schedule, names, lambda _, shape=shape: shape)(*flatten(copy_inputs((x,))))  # type: ignore[misc]
        for found, wanted in zip(made, flatten(run(x)), strict=True):
            assert_same(found, wanted, ulps=16)


def test_memory_to_measure_with() -> None:
    (call,) = _calls(lambda x: x.t() * 2, 6, 5)
    for buffer in {b: None for member in call.members for b in member.buffers}:
        object.__setattr__(buffer, "meta", type(buffer.meta)(torch.float32, (5, 6), (6, 1), torch.device("cpu")))
    rows = np.array([row_template(call.body, member) for member in call.members], dtype=np.int64)
    kernel = types.SimpleNamespace(rows=rows, rows_changed=lambda: None)
    memory = fill_rows(kernel, call)
    placed = [rows[0, call.body.slot_word(k)] for k in range(len(call.body.slots))]
    assert sorted(placed) == sorted(t.data_ptr() for t in memory.values())
    assert all(t.numel() == 120 for t in memory.values())


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_on_a_gpu(mode: str, tmp_path: Path) -> None:
    x, w = torch.randn(4096, 1024, device="cuda"), torch.randn(1024, device="cuda")

    def normalise(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.nn.functional.layer_norm(x, (1024,), w), 1)

    compiled = quickfuse.compile(normalise, mode=mode, options={"raise_internal_errors": True})
    for _ in range(3):
        torch.testing.assert_close(compiled(x), normalise(x))
    assert [*(tmp_path / "cache").rglob("quickfuse-launch-shapes/*.json")]
