"""The output layer of a language model with its loss, in chunks of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.differentiate.expand import expand
from quickfuse.ir import target
from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    costs = replace(target.GPU_COSTS, least_chunked=1 << 10, chunk=1 << 11, most_chunks=8)
    monkeypatch.setattr(target, "CUDA", replace(target.CUDA, costs=costs))
    yield


def schedule_of(function: Callable[..., Any], *inputs: Any) -> Schedule:
    """The verified schedule of a function on a GPU, whose results are compared with the function's own."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    schedule = fused(lower(gm.graph, (), expand))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    expected = flatten(function(*copy_inputs(inputs)))
    made = Interpreter(schedule, names)(*flatten(copy_inputs(inputs)))
    for one, two in zip(made, expected, strict=True):
        assert one.dtype is two.dtype and one.shape == two.shape and one.stride() == two.stride()
        torch.testing.assert_close(one.float(), two.float(), rtol=0.03, atol=0.01)
    return schedule


def calls(schedule: Schedule) -> list[Extern]:
    return [step for step in schedule.steps if isinstance(step, Extern)]


def largest(schedule: Schedule) -> int:
    """The elements of the largest buffer that is made."""
    buffers = [b for step in schedule.steps for b in (step.outputs if isinstance(step, Extern) else step.buffers)]
    return max(b.meta.numel for b in buffers if b.kind == "temp")


def layer(dtype: torch.dtype, reduction: int = 1, ignored: int = -100) -> Callable[..., Any]:
    """The loss of a layer, and its gradients, as autograd computes them."""

    def step(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor, grad: torch.Tensor) -> Any:
        x, w = x.to(dtype), w.to(dtype)
        scores = torch.mm(x, w.t()).float()
        logs = aten._log_softmax(scores, 1, False)
        loss, total = aten.nll_loss_forward(logs, target, None, reduction, ignored)
        of_logs = aten.nll_loss_backward(grad, logs, target, None, reduction, ignored, total)
        gradient = aten._log_softmax_backward_data(of_logs, logs, 1, torch.float32).to(dtype)
        return loss, torch.mm(gradient, w).float(), torch.mm(gradient.t(), x).float()

    return step


def operands(rows: int = 32, classes: int = 77, depth: int = 24) -> tuple[torch.Tensor, ...]:
    target = torch.randint(classes, (rows,))
    target[5] = -100
    return torch.randn(rows, depth), torch.randn(classes, depth) / 4, target, torch.tensor(1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", [1, 2])
def test_a_layer_with_its_loss(dtype: torch.dtype, reduction: int) -> None:
    schedule = schedule_of(layer(dtype, reduction), *operands())
    whole = 32 * 77
    assert largest(schedule) < whole and len(calls(schedule)) >= 6


def test_the_chunks_come_one_after_the_other() -> None:
    """No chunk begins before all that reads the one before is done."""
    schedule = schedule_of(layer(torch.float32), *operands())
    alive: set[Any] = set()
    most = 0
    for number, step in enumerate(schedule.steps):
        made = step.outputs if isinstance(step, Extern) else step.buffers
        alive.update(b for b in made if b.kind == "temp" and b.meta.numel >= 32 * 77 // 8)
        most = max(most, sum(b.meta.numel for b in alive if b.meta.shape[-1] >= 77))
        later = schedule.steps[number + 1 :]
        alive = {b for b in alive if any(b in step.buffers for step in later)}
    assert most <= 2 * 32 * 77 // 3 + 77


def test_scores_of_more_axes() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Any:
        scores = torch.mm(x.flatten(0, 1), w.t()).view(4, 8, 77).transpose(1, 2)
        logs = aten._log_softmax(scores, 1, False)
        loss, total = aten.nll_loss2d_forward(logs[:, :, None], target[:, None], None, 1, -100)
        one = torch.ones_like(loss)
        of_logs = aten.nll_loss2d_backward(one, logs[:, :, None], target[:, None], None, 1, -100, total)
        gradient = aten._log_softmax_backward_data(of_logs[:, :, 0], logs, 1, torch.float32)
        rows = gradient.transpose(1, 2).contiguous().view(32, 77)
        return loss, torch.mm(rows, w), torch.mm(rows.t(), x.flatten(0, 1))

    schedule = schedule_of(step, torch.randn(4, 8, 24), torch.randn(77, 24) / 4, torch.randint(77, (4, 8)))
    assert largest(schedule) < 32 * 77


def test_scores_that_are_wanted_as_a_whole_are() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Any:
        scores = torch.mm(x, w.t())
        return F.cross_entropy(scores, target), scores * 2

    assert len(calls(schedule_of(step, *operands()[:3]))) == 1


def test_chunks_that_need_all_of_each_other() -> None:
    """The largest score of all is known when all have been computed."""

    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        scores = torch.mm(x, w.t())
        gradient = (scores - scores.max()).exp()
        return torch.mm(gradient, w), torch.mm(gradient.t(), x)

    assert len(calls(schedule_of(step, *operands()[:2]))) == 3


def test_a_bias_and_its_gradient() -> None:
    """The gradient of a bias sums over all rows of the scores' gradient: the layer stays as it is."""

    def step(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        gradient = torch.addmm(b, x, w.t()).tanh()
        return torch.mm(gradient, w), gradient.sum(0)

    assert len(calls(schedule_of(step, *operands()[:2], torch.randn(77)))) == 2

    def without(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.mm(torch.addmm(b, x, w.t()).tanh(), w)

    assert len(calls(schedule_of(without, *operands()[:2], torch.randn(77)))) > 3


def test_rows_that_cannot_be_shared_out() -> None:
    assert len(calls(schedule_of(layer(torch.float32), *operands(rows=31)))) == 3


def test_none_on_the_cpu() -> None:
    gm = trace(layer(torch.float32), *operands())
    assert sum(isinstance(step, Extern) for step in lower(gm.graph, (), expand).steps) == 3
    assert not target.COSTS.least_chunked
