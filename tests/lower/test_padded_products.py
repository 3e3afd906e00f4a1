"""Products on a GPU whose rows are not aligned: with longer rows, where that pays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.ir import target
from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Extern, View
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace


@pytest.fixture(autouse=True)
def small_products_pay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if copies took no time: large products would take too long here."""
    costs = replace(target.GPU_COSTS, launch_time=0.0, copied_bytes=1e12)
    monkeypatch.setattr(target, "CUDA", replace(target.CUDA, costs=costs))
    yield


def bf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def on_device(function: Callable[..., Any], *inputs: Any, judge: Callable[..., Any] | None = None) -> Schedule:
    """The schedule of a function on a GPU, compared with the function on the CPU, or another one that gives the same."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    schedule = fused(lower(gm.graph))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    expected = flatten((judge or function)(*copy_inputs(inputs)))
    made = Interpreter(schedule, names)(*flatten(copy_inputs(inputs)))
    for one, two in zip(made, expected, strict=True):
        assert one.dtype is two.dtype and one.stride() == two.stride()
        torch.testing.assert_close(one.float(), two.float(), rtol=0.02, atol=0.05)
    return schedule


def products(schedule: Schedule) -> list[tuple[tuple[int, ...], ...]]:
    """The shapes of the operands of each product, all of whose rows are aligned."""
    found = []
    for step in schedule.steps:
        if isinstance(step, Extern) and getattr(step.target, "__name__", "") in ("mm", "addmm", "linear", "matmul"):
            operands = [a if isinstance(a, View) else View(a, a.meta.shape, a.meta.stride, 0) for a in step.args]
            assert all(max(v.stride) % 8 == 0 for v in operands if len(v.shape) == 2)
            found.append(tuple(v.shape for v in operands))
    return found


def test_columns() -> None:
    schedule = on_device(lambda x, w: torch.mm(x, w.t()).float() * 2, bf(16, 24), bf(13, 24))
    assert products(schedule) == [((16, 24), (24, 16))]


def test_a_layer_with_a_bias() -> None:
    assert products(on_device(F.linear, bf(2, 8, 24), bf(13, 24), bf(13))) == [((16,), (16, 24), (24, 16))]
    assert products(on_device(lambda x, w, b: torch.addmm(b, x, w), bf(5, 11), bf(11, 13), bf(13)))
    assert products(on_device(lambda x, w, b: F.gelu(F.linear(x, w, b)), bf(5, 11), bf(13, 11), bf(13)))


def test_what_is_summed_over() -> None:
    assert products(on_device(lambda x, w: x @ w, bf(16, 13), bf(13, 24))) == [((16, 16), (16, 24))]
    assert products(on_device(lambda x, w: x @ w.t(), bf(16, 13), bf(24, 13))) == [((16, 16), (16, 24))]


def test_rows_of_a_transposed_operand() -> None:
    assert products(on_device(lambda x, w: x.t() @ w, bf(16, 13), bf(16, 24))) == [((16, 16), (16, 24))]


def test_casts_write_to_the_padded_memory() -> None:
    """A layer and its gradients, under autocast: each operand is stored once, and nothing is copied."""

    def step(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        small, weight = x.bfloat16(), w.bfloat16()
        logits = torch.mm(small, weight.t())
        gradient = (logits.float().exp() * g).bfloat16()
        return torch.mm(gradient.t(), small), torch.mm(gradient, weight)

    schedule = on_device(step, torch.randn(16, 24), torch.randn(13, 24) / 9, torch.randn(16, 13))
    assert products(schedule) == [((16, 24), (24, 16)), ((16, 16), (16, 24)), ((16, 16), (16, 24))]
    stored = [slot for call in schedule.steps if hasattr(call, "members") for slot in call.body.slots if slot.access == "w"]
    assert len({step.args[1].buffer for step in schedule.steps if isinstance(step, Extern)}) == 2
    assert sum(slot.dtype is torch.bfloat16 for slot in stored) <= 8


def test_results_seen_as_more_axes() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.linear(x, w)
        return y.transpose(1, 2), y.float().sum(1), y.view(-1)[3:7] * 2

    assert products(on_device(function, bf(2, 8, 24), bf(13, 24)))


def test_results_of_results() -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> Any:
        return (x @ v) @ w

    assert products(on_device(function, bf(16, 24), bf(24, 13), bf(13, 11))) == [((16, 24), (24, 16)), ((16, 16), (16, 16))]


def test_infinite_elements_stay_where_they_are() -> None:
    x = bf(16, 13)
    x[3, 12] = torch.inf
    # In float32: with AMX, oneDNN's products of bfloat16 have NaN where an infinite element meets the zeros that it adds.
    on_device(lambda x, w: x.t() @ w, x, bf(16, 24).abs(), judge=lambda x, w: (x.float().t() @ w.float()).to(x.dtype))
    on_device(lambda x, w: (x + 0) @ w, x, bf(13, 24).abs(), judge=lambda x, w: (x.float() @ w.float()).to(x.dtype))


def test_aligned_products_stay_as_they_are() -> None:
    assert products(on_device(lambda x, w: x @ w, bf(13, 16), bf(16, 24))) == [((13, 16), (16, 24))]


def test_float32_by_precision() -> None:
    def shapes() -> Any:
        schedule = on_device(lambda x, w: x @ w, torch.randn(16, 13), torch.randn(13, 20))
        (call,) = [step for step in schedule.steps if isinstance(step, Extern)]
        return [getattr(a, "shape", None) or a.meta.shape for a in call.args]

    assert shapes() == [(16, 13), (13, 20)]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert shapes() == [(16, 16), (16, 20)]
    finally:
        torch.set_float32_matmul_precision(before)


def test_small_products_are_not_worth_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "CUDA", target.CudaTarget())
    gm = on_gpu(trace(lambda x, w: x @ w, bf(16, 13), bf(13, 24)))
    assert not any(isinstance(a, View) for step in lower(gm.graph).steps for a in getattr(step, "args", ()))
    assert target.GPU_COSTS.padding_pays(2 * 8192 * 768 * 50257, 4 * 768 * 50257, 2)
    assert not target.COSTS.aligned_bytes
