"""Shapes of launches that were found by measuring on an H200: the kernel of a call that moves most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from quickfuse.bench.traffic import moved_by, on_gpu
from quickfuse.ir.kernel import Access, KernelCall
from quickfuse.launch.cuda_compile import LaunchShape, most_registers
from quickfuse.launch.cuda_shapes import choose

Function = Callable[..., Any]
_BF16, _F32 = torch.bfloat16, torch.float32


def _largest(function: Callable[..., Any], *inputs: torch.Tensor, which: int = 0) -> tuple[KernelCall, LaunchShape]:
    calls = [step for step in on_gpu(function, *inputs)[which].steps if isinstance(step, KernelCall)]
    call = max(calls, key=lambda call: sum(moved_by(call)))
    return call, choose(call.body, call.members, 132)


def test_two_rows_for_norms_of_16_bits() -> None:
    x, w = torch.empty(16384, 4096, dtype=_BF16), torch.empty(4096, dtype=_BF16)
    functions = [lambda x, w: F.layer_norm(x, w.shape, w, w + 1), lambda x, w: F.rms_norm(x, w.shape, w)]
    for function in functions:
        call, shape = _largest(function, x, w)
        assert (shape.block, shape.columns, shape.num_warps, shape.access) == (2, 4096, 8, Access.FULL)
        assert most_registers(call.body, shape) == 64
    _, shape = _largest(lambda x, w: F.layer_norm(x, w.shape, w), x.float(), w.float())
    assert (shape.block, shape.num_warps) == (1, 8)


def _norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, w.shape, w)


def _softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def _deviation(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.std(-1)


@pytest.mark.parametrize("function, dtype, length, expected", [
    (_norm, _BF16, 768, (2, 2, 1024)), (_norm, _BF16, 8192, (2, 16, 8192)), (_norm, _BF16, 5120, (1, 4, 1024)),
    (_norm, _BF16, 3072, (2, 8, 4096)),
    (_norm, _F32, 768, (2, 4, 1024)), (_norm, _F32, 5120, (2, 16, 8192)), (_norm, _F32, 8192, (2, 16, 8192)),
    (_softmax, _BF16, 2048, (2, 4, 2048)), (_softmax, _BF16, 8192, (1, 8, 8192)),
    (_softmax, _F32, 8192, (1, 8, 8192)), (_deviation, _F32, 4096, (1, 4, 4096)),
])  # fmt: skip
def test_elements_a_thread(function: Function, dtype: torch.dtype, length: int, expected: tuple[int, int, int]) -> None:
    """Rows of one operand have 32 elements a thread; those that fill little of a tile are gone through in small ones."""
    _, shape = _largest(function, torch.empty((1 << 26) // length, length, dtype=dtype), torch.empty(length, dtype=dtype))
    assert (shape.block, shape.num_warps, shape.columns) == expected


@pytest.mark.parametrize("dtype, rows, length, columns, warps", [
    (_BF16, 16380, 4097, 512, 2), (_F32, 16380, 4097, 512, 4), (_F32, 3354, 20001, 4096, 32),
])  # fmt: skip
def test_softmax_of_rows_that_begin_anywhere(dtype: torch.dtype, rows: int, length: int, columns: int, warps: int) -> None:
    _, shape = _largest(lambda x: F.softmax(x, -1), torch.empty(rows, length, dtype=dtype))
    assert (shape.block, shape.columns, shape.num_warps, shape.access) == (1, columns, warps, Access.SHIFTED)


def test_rows_that_are_copied_as_they_are_read() -> None:
    x = torch.empty(4096, 50257, dtype=_BF16, requires_grad=True)
    _, shape = _largest(lambda x, t: F.cross_entropy(x, t), x, torch.zeros(4096, dtype=torch.int64))
    assert (shape.columns, shape.num_warps, shape.access) == (1024, 4, Access.SHIFTED)


def test_gradient_of_max_pooling() -> None:
    x = torch.empty(32, 64, 112, 112, dtype=_BF16).contiguous(memory_format=torch.channels_last).requires_grad_()
    _, shape = _largest(lambda x: F.max_pool2d(x.relu(), 3, 2, 1), x, which=1)
    assert (shape.block, shape.columns, shape.num_warps) == (16, 64, 4)
