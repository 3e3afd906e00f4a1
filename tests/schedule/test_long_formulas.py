"""Chains of pointwise operators that are too long for one kernel."""

from __future__ import annotations

import torch

import quickfuse
from quickfuse.ir.cost_model import COSTS, GPU_COSTS
from quickfuse.ir.kernel import KernelCall
from schedule_interpreter import check, compile_for_test
from triton_runner import gpu_schedule


def chain(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for _ in range(COSTS.longest_formula):
        x = torch.sin(x) * 1.001 + y
        y = y * 0.999
    return x, y


X, Y = torch.rand(5, 7, dtype=torch.double), torch.rand(7, dtype=torch.double)


def test_long_chains_are_cut() -> None:
    calls = [step for step in compile_for_test(chain, X, Y)[0].steps if isinstance(step, KernelCall)]
    assert 3 <= len(calls) <= 6
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
