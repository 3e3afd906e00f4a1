"""Large temporaries that a training step computes twice, so that they are not in memory where most is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lower.test_gpu_convolutions import calls, schedule_of
from quickfuse.ir import target
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Buffer, Extern, buffers_in

#: What takes fewer bytes than such a tensor does not matter to the order of kernels.
ROWS, LAYERS = 1024, 4


def set_least(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    costs = replace(target.GPU_COSTS, least_rematerialised=least, much_memory=1 << 10, least_chunked=0, aligned_bytes=0)
    monkeypatch.setattr(target, "CUDA", replace(target.CUDA, costs=costs))


def step(x: torch.Tensor, grad: torch.Tensor, ws: list[torch.Tensor]) -> Any:
    """Layers with GELU, and the gradients of their weights."""
    kept = []
    for w in ws:
        before = torch.mm(x, w)
        kept.append((before, x))
        x = F.gelu(before)
    gradients = []
    for (before, operand), w in zip(reversed(kept), reversed(ws), strict=True):
        grad = torch.ops.aten.gelu_backward(grad, before)
        gradients.append(torch.mm(operand.t(), grad))
        grad = torch.mm(grad, w.t())
    return x, grad, gradients


def operands() -> tuple[Any, ...]:
    torch.manual_seed(0)
    return torch.randn(ROWS, 16), torch.randn(ROWS, 16), [torch.randn(16, 16) / 4 for _ in range(LAYERS)]


def most_memory(schedule: Schedule) -> int:
    """The most bytes of temporaries that are in use at a time."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, one in enumerate(schedule.steps):
        used = one.buffers if isinstance(one, KernelCall) else [*one.outputs, *buffers_in((one.args, one.kwargs))]
        for buffer in used:
            if buffer.kind == "temp":
                first.setdefault(buffer, number)
                last[buffer] = number
    return max(sum(b.meta.nbytes for b in first if first[b] <= k <= last[b]) for k in range(len(schedule.steps)))


def test_activations_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    set_least(monkeypatch, 0)
    kept = schedule_of(step, *operands())
    set_least(monkeypatch, 1 << 8)
    again = schedule_of(step, *operands())
    assert len(calls(again)) == len(calls(kept))
    assert most_memory(again) <= most_memory(kept) - ROWS * 16 * 4  # one of them is there beside its gradient
    assert any(buffer.name.endswith("_again") for call in calls(again) for buffer in buffers_in(call.args))


def test_what_is_computed_from_what_is_gone_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    set_least(monkeypatch, 1 << 8)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first = torch.sigmoid(torch.mm(x, w))  # the product is not used again
        y = first
        for _ in range(4):
            y = torch.mm(torch.tanh(y), w)
        return torch.mm(first.t(), y)

    schedule = schedule_of(function, torch.randn(32, 16), torch.randn(16, 16) / 4)
    made = [buffer for one in schedule.steps if isinstance(one, Extern) for buffer in buffers_in(one.args)]
    assert not any(buffer.name.endswith("_again") for buffer in made)
