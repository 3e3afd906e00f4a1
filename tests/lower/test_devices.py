"""Operators across devices, with graphs that say so; what they compute is checked on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.bench import traffic
from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, assert_same, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace
from triton_runner import compiled


def check_on_gpu(function: Any, *inputs: Any, on_cpu: tuple[str, ...] = ()) -> Schedule:
    gm = on_gpu(trace(function, *copy_inputs(inputs)), on_cpu)
    schedule = fused(lower(gm.graph))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    expected, actual = copy_inputs(inputs), copy_inputs(inputs)
    results = flatten(function(*expected))
    made = Interpreter(schedule, names)(*flatten(actual))
    for a, e in zip([*flatten(actual), *made], [*flatten(expected), *results], strict=True):
        if isinstance(e, torch.Tensor):
            assert_same(a, e, ulps=8)
    return schedule


def kernels(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def test_cpu_numbers_go_to_gpu_kernels_by_value() -> None:
    def function(xs: list[torch.Tensor], steps: list[torch.Tensor], lr: float) -> None:
        for x, step in zip(xs, steps, strict=True):
            step += 1
            x.mul_(lr * step.item()).add_(step)

    xs, steps = [torch.randn(n) for n in (3, 4, 5)], [torch.tensor(float(n)) for n in (1, 2, 3)]
    schedule = check_on_gpu(function, xs, steps, 0.1, on_cpu=("a1_0", "a1_1", "a1_2"))
    on_host, on_device = kernels(schedule)
    assert (on_host.device.type, on_device.device.type) == ("cpu", "cuda")
    assert len(on_host.members) == len(on_device.members) == 3
    assert [slot.dtype for slot in on_device.body.slots if slot.by_value] == [torch.float64] * 2
    assert on_device.body.value_words == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.float64], ids=str)
def test_types_of_cpu_operands(dtype: torch.dtype) -> None:
    value = torch.tensor(3.0).to(dtype)
    schedule = check_on_gpu(lambda x, y: (x * y, torch.where(x > y, x, y)), torch.randn(4), value, on_cpu=("a1",))
    (slot,) = [s for call in kernels(schedule) for s in call.body.slots if s.by_value]
    assert slot.dtype is (torch.float64 if dtype.is_floating_point else torch.int64)


def test_cpu_numbers_are_stored_at_indices() -> None:
    def function(x: torch.Tensor, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[index] = value * 2
        return y + 1

    index = torch.tensor([0, 2])
    schedule = check_on_gpu(function, torch.randn(3, 4), index, torch.tensor(3.0), on_cpu=("a2",))
    (slot,) = [s for call in kernels(schedule) for s in call.body.slots if s.by_value]
    assert slot.dtype is torch.float64


def test_cpu_numbers_are_read_at_computed_indices() -> None:
    def function(x: torch.Tensor, row: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[..., -1] = value
        found = (row[:, None] >= y).sum(-1, keepdim=True) - 1
        return y.gather(-1, found.clamp(0, 4))

    inputs = torch.rand(8, 5).sort().values, torch.rand(8), torch.tensor(2.0)
    compiled(check_on_gpu(function, *inputs, on_cpu=("a2",)))


def test_tensors_of_the_cpu_are_no_operands_on_a_gpu() -> None:
    with pytest.raises(Unsupported, match="an operand on cpu"):
        check_on_gpu(lambda x, index: x[index] * 2, torch.randn(3, 4), torch.tensor([0, 2]), on_cpu=("a1",))


def test_a_constant_made_on_the_cpu_is_a_constant_on_the_gpu() -> None:
    def function(xs: list[torch.Tensor]) -> None:
        torch._foreach_add_(xs, torch.tensor(1.0), alpha=1.0)

    (call,) = kernels(check_on_gpu(function, [torch.randn(3), torch.randn(4)]))
    assert len(call.members) == 2 and len(call.body.slots) == 1


def test_numbers_of_the_gpu_stay_there() -> None:
    def function(x: torch.Tensor, step: torch.Tensor) -> None:
        step += 1
        x.div_(step.sqrt())

    assert [call.device.type for call in kernels(check_on_gpu(function, torch.randn(4), torch.tensor(3.0)))] == ["cuda"] * 2


@pytest.mark.parametrize("shape", [(0, 0), (3, 0)], ids=str)
def test_indices_into_nothing_are_not_checked(shape: tuple[int, ...]) -> None:
    """Where there are no elements, eager's kernels don't run, and so find no index out of range. What a kernel of ours finds
    would be the end of the process's work on the GPU."""
    gm = on_gpu(trace(lambda x, k: x.index_fill_(0, k, 2.0), torch.zeros(shape), torch.tensor([0])))
    assert not fused(lower(gm.graph)).steps


def test_division_by_a_number_on_the_gpu() -> None:
    """Eager multiplies by the reciprocal there, but not in `_foreach_div`."""
    (call,) = kernels(check_on_gpu(lambda x, s: x / s, torch.randn(4), 3.0))
    assert "mul(" in str(call.body)
    (call,) = kernels(check_on_gpu(lambda x, s: torch._foreach_div([x], s), torch.randn(4), 3.0))
    assert "mul(" not in str(call.body)


def test_copies_between_devices_are_calls() -> None:
    gm = on_gpu(trace(lambda x, y: x.copy_(y + 1), torch.randn(4), torch.randn(4)), ("a1",))
    before, transfer, after = fused(lower(gm.graph)).steps
    assert isinstance(before, KernelCall) and isinstance(transfer, Extern) and isinstance(after, KernelCall)
    assert transfer.target is torch.Tensor.to
    assert transfer.outputs[0].meta.device.type == "cuda"


def test_operands_on_two_devices_are_left_to_pytorch() -> None:
    gm = on_gpu(trace(lambda x, y: x + y, torch.randn(4), torch.randn(4)), ("a1",))
    (step,) = lower(gm.graph).steps
    assert isinstance(step, Extern), "PyTorch raises the error"


def test_the_logarithm_of_a_sigmoid_keeps_what_backward_reads_on_a_gpu() -> None:
    """PyTorch's own operator returns an empty tensor there for what its rule for shapes says is as large as the operand."""
    schedules = traffic.on_gpu(lambda x: F.logsigmoid(x).sum(), torch.randn(16, 64, requires_grad=True))
    assert len(schedules) == 2 and not any(isinstance(step, Extern) for schedule in schedules for step in schedule.steps)


def test_maxima_of_whole_numbers_on_the_gpu_are_left_to_pytorch() -> None:
    """Which refuses them there."""
    traced = trace(lambda x: F.max_pool2d(x, 2) + 1, torch.ones(1, 1, 4, 4, dtype=torch.int64))
    assert not any(isinstance(step, Extern) for step in lower(traced.graph).steps)
    assert any(isinstance(step, Extern) for step in lower(on_gpu(traced).graph).steps)
