"""Rows that begin at any address: wide accesses from the first address in each that is a multiple of 128 bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from quickfuse.ir.kernel import Access, Form
from quickfuse.launch.cuda_compile import LaunchShape
from quickfuse.launch.cuda_shapes import choose
from schedule_interpreter import assert_same
from trace_helper import flatten

pytest.importorskip("triton")

from triton_runner import Emitted, compiled, gpu_schedule, kernels

_BF16, _F32 = torch.bfloat16, torch.float32


def _shifted(columns: int, block: int) -> Callable[[LaunchShape], LaunchShape]:
    """Small tiles, gone through in loops where rows are reduced."""

    def change(shape: LaunchShape) -> LaunchShape:
        if not shape.columns:
            return shape
        form = Form.LOOPED if shape.form is Form.WHOLE else shape.form
        return replace(shape, form=form, columns=columns, block=block, access=Access.SHIFTED)

    return change


def _same(function: Callable[..., Any], *inputs: torch.Tensor, columns: int = 16, block: int = 2) -> None:
    schedule, names = gpu_schedule(function, *inputs)
    assert any(call.body.shifted_slots for call in kernels(schedule))
    made = Emitted(schedule, names, _shifted(columns, block))(*flatten(inputs))
    for one, other in zip(made, flatten(function(*inputs)), strict=True):
        assert_same(one, other, ulps=32)


def _rows(dtype: torch.dtype, rows: int, length: int, start: int = 0) -> torch.Tensor:
    """Contiguous rows that begin at an element of a larger tensor."""
    return torch.randn(start + rows * length).to(dtype)[start:].view(rows, length)


@pytest.mark.parametrize("dtype", [_F32, _BF16], ids=str)
@pytest.mark.parametrize("length", [5, 16, 37, 64, 101])
def test_reductions(dtype: torch.dtype, length: int) -> None:
    x = _rows(dtype, 7, length, start=3)
    _same(lambda x: (x.softmax(-1), x.amax(-1)), x)
    _same(lambda x: x.float().sum(-1), x, block=1)
    _same(lambda x: (x.log_softmax(-1), x.argmax(-1)), x, columns=32)


@pytest.mark.parametrize("block", [1, 2, 4])
def test_several_operands(block: int) -> None:
    """Of one type or two, with other rows for weights, and with as many elements before an aligned address or not."""
    for one, other in ((0, 0), (3, 3), (1, 5), (2, 3)):
        x, y, w = _rows(_BF16, 6, 53, one), _rows(_F32, 6, 53, other), torch.randn(53)
        _same(lambda x, y, w: F.layer_norm(x + y, (53,), w), x, y, w, block=block)
        _same(lambda x, y: (x * y).sum(-1), x, y.bfloat16(), block=block)
        _same(lambda x, y: (x * y).sum(), x, y.bfloat16(), block=block)


@pytest.mark.parametrize("dtype", [_F32, _BF16], ids=str)
@pytest.mark.parametrize("length", [64, 101, 128])
def test_tiles_of_their_own(dtype: torch.dtype, length: int) -> None:
    x, s = _rows(dtype, 7, length, start=5), torch.randn(7, 1)
    _same(lambda x, s: (x.float() * s + 1).to(x.dtype), x, s)
    _same(lambda x, s: (x * s, x.exp()), x, s, columns=32, block=1)


def test_gradient_of_cross_entropy() -> None:
    x, target = _rows(_BF16, 6, 77), torch.tensor([3, 0, 76, 8, 9, 16])
    y = x.log_softmax(-1)

    def gradient(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        given = F.one_hot(target, 77).to(y.dtype) * -0.125
        return torch.ops.aten._log_softmax_backward_data(given, y, 1, y.dtype)

    _same(gradient, y, target)


@pytest.mark.parametrize("dtype", [_F32, _BF16], ids=str)
def test_wide_accesses(dtype: torch.dtype) -> None:
    x, y = torch.empty(300, 16387, dtype=dtype), torch.empty(300, 1)
    for function, inputs in ((lambda x: x.softmax(-1), [x]), (lambda x, y: (x * y).to(x.dtype), [x, y])):
        schedule, _ = gpu_schedule(function, *inputs)
        (call,) = kernels(schedule)
        assert choose(call.body, call.members, 132).access is Access.SHIFTED
        (cubin,) = compiled(schedule)
        assert re.search(r"ld\.global\S*\.v4\.b32", cubin.ptx) and re.search(r"st\.global\S*\.v4\.b32", cubin.ptx)
