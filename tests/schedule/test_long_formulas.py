"""Chains of pointwise operators that are too long for one kernel."""

from __future__ import annotations

import pytest
import torch

import quickfuse
from quickfuse.ir.cost_model import COSTS, GPU_COSTS
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import check, compile_for_test
from triton_runner import gpu_schedule


def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for _ in range(COSTS.longest_formula // 2):
        x = torch.sin(x) * 1.001 + y
        y = y * 0.999
    return x, y


X, Y = torch.rand(5, 7, dtype=torch.double), torch.rand(7, dtype=torch.double)


def test_long_chains_are_cut() -> None:
    calls = [step for step in compile_for_test(chain, X, Y)[0].steps if isinstance(step, KernelCall)]
    assert 2 <= len(calls) <= 4
    for ours, eager in zip(quickfuse.compile(chain)(X, Y), chain(X, Y), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)


def test_gradients_of_long_chains() -> None:
    x = X.clone().requires_grad_()
    ours, eager = (
        torch.autograd.grad(f(x, x)[0].sum(), x)[0] for f in (quickfuse.compile(chain), chain)
    )  # fmt: skip
    torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)


def test_long_sums_are_cut_on_a_gpu() -> None:
    """As the gradients of an unrolled network's weight are: Triton would take minutes."""

    def total(*tensors: torch.Tensor) -> torch.Tensor:
        return sum(tensors[1:], tensors[0].t())

    schedule, _ = gpu_schedule(total, *(torch.randn(8, 8) for _ in range(200)))
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    assert max(len(call.body.slots) for call in calls) <= GPU_COSTS.longest_formula // GPU_COSTS.of_load + 2
    assert len(calls) <= 8
    assert len({id(call.body) for call in calls}) <= 4


def test_sums_of_many_reductions_are_cut_sooner() -> None:
    """A kernel has a loop for each of its reductions, for which LLVM takes longer than for a thousand additions."""
    tensors = [torch.randn(8, 4) for _ in range(100)]
    schedule = check(lambda *each: sum(x.sum(0) for x in each), *tensors, emitted=True, ulps=64)
    stores = [len(step.body.stores) for step in schedule.steps if isinstance(step, KernelCall)]
    assert max(stores) < 50 and len(stores) <= 5


def test_recurrences_have_few_operands_on_a_gpu() -> None:
    """Each step's result is kept and normalised: with all of them in one kernel, Triton chooses layouts for minutes."""

    def steps(x: torch.Tensor, gates: torch.Tensor, gain: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, out = x, []
        for k in range(gates.shape[0]):
            h = (1 - gates[k]) * h + gates[k] * torch.tanh(gates[k] * gain)
            out.append((h - h.mean(-1, keepdim=True)) * h.square().mean(-1, keepdim=True))
        return (*out, torch.stack(out).sum((0, 1)))

    schedule, _ = gpu_schedule(steps, torch.randn(4, 8), torch.rand(40, 4, 8), torch.randn(8))
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    assert max(len(call.body.slots) for call in calls) <= GPU_COSTS.most_fused_operands


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16), ids=str)
def test_zeros_of_padded_sums_are_dropped(dtype: torch.dtype) -> None:
    """The gradient of rows that are used one by one is a sum of padded terms, of which each row has one. Otherwise kernels
    of a recurrence grow with the square of its steps."""

    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = sum((x[k] * w[k]).sin().sum() for k in range(12))
        return torch.autograd.grad(total, x)[0]

    def padded(*rows: torch.Tensor) -> torch.Tensor:
        return sum(torch.nn.functional.pad(row[None], (0, 0, k, len(rows) - 1 - k)) for k, row in enumerate(rows))

    rows = [torch.tensor([0.0, -0.0, float("nan"), -1.0, -1e-45, -1e-7], dtype=dtype) for _ in range(12)]
    schedule = compile_for_test(padded, *rows)[0]
    bodies = [step.body for step in schedule.steps if isinstance(step, KernelCall)]
    assert sum(str(body).count("add") for body in bodies) <= 2 * len(bodies)
    for name, ours, eager in (
        ("padded", quickfuse.compile(padded)(*rows), padded(*rows)),
        ("one", quickfuse.compile(padded)(-0.0 * rows[0].abs()), padded(-0.0 * rows[0].abs())),
    ):
        bits = torch.int32 if dtype is torch.float32 else torch.int16
        assert ours.nan_to_num(7).view(bits).tolist() == eager.nan_to_num(7).view(bits).tolist(), name
    x = torch.randn(12, 5, dtype=dtype, requires_grad=True)
    torch.testing.assert_close(quickfuse.compile(gradient)(x, x.detach()), gradient(x, x.detach()))
