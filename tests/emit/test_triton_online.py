"""Softmax and its like over long rows: the maximum and the sum in one pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from quickfuse.emit.triton import emit
from quickfuse.ir.kernel import Form
from triton_runner import Emitted, compiled, gpu_schedule, kernels, looped

pytest.importorskip("triton")

_INF, _NAN = math.inf, math.nan


def _passes(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[int]:
    """How often the kernels that use the one pass go over their rows, by loops in the code."""
    found = []
    for call in kernels(gpu_schedule(function, *inputs)[0]):
        source = emit(call.body, "kernel", Form.LOOPED) if call.body.tiled else ""
        if "scaled_sum" in source:
            found.append(source.count("for begin in range(0, length, COLUMNS)"))
    return found


def _run(function: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    schedule, names = gpu_schedule(function, x)
    assert any("scaled_sum" in emit(call.body, "k", Form.LOOPED) for call in kernels(schedule) if call.body.tiled)
    (made,) = Emitted(schedule, names, looped)(x.clone())
    return made


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x.float(), -1)


def _logits(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x).softmax(-1)


def test_two_passes_in_place_of_three() -> None:
    assert _passes(_softmax, torch.empty(500, 300)) == [2]
    assert _passes(_log_softmax, torch.empty(500, 300)) == [2]


def test_other_sums_stay() -> None:
    """Of other values than those whose maximum is subtracted."""
    assert not _passes(lambda x: torch.exp(2 * x - x.amax(-1, True)).sum(-1), torch.empty(500, 300))
    assert not _passes(lambda x: torch.exp(x - x.amin(-1, True)).sum(-1), torch.empty(500, 300))


@pytest.mark.parametrize("function", [_softmax, _log_softmax, _logits])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.cat([torch.randn(40, 37), 30 * torch.randn(40, 37), torch.arange(40 * 37.0).view(40, 37)]).to(dtype)
    truth, eager = function(x.double()), function(x)
    found = _run(function, x)
    assert found.dtype == eager.dtype
    # Not further from the truth than eager, but for a few last bits of a sum.
    allowed = 1.5 * (eager.double() - truth).abs().max() + 4 * torch.finfo(dtype).eps * truth.abs().max()
    assert (found.double() - truth).abs().max() <= allowed


@pytest.mark.parametrize("function", [_softmax, _log_softmax])
def test_special_values(function: Callable[..., torch.Tensor]) -> None:
    rows = torch.randn(9, 13)
    rows[0] = -_INF
    rows[1, :11] = -_INF
    rows[2, 3:] = -_INF
    rows[3, 5] = _INF
    rows[4, ::2] = _INF
    rows[5, 12] = _NAN
    rows[6, 0] = _NAN
    rows[7] = 3e38
    rows[8, :6], rows[8, 6:] = -3e38, 3e38
    x = rows.repeat(30, 1)
    torch.testing.assert_close(_run(function, x), function(x), equal_nan=True)


def test_compiles_for_a_gpu() -> None:
    schedule, _ = gpu_schedule(_log_softmax, torch.empty(300, 16385, dtype=torch.bfloat16))
    assert all(cubin.cubin for cubin in compiled(schedule))
