"""Biases of products on a GPU: added by the loops that read the products, where nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.ir import target
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace


@pytest.fixture(autouse=True)
def small_products_count(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    costs = replace(target.GPU_COSTS, least_product_without_bias=1)
    monkeypatch.setattr(target, "CUDA", replace(target.CUDA, costs=costs))
    yield


def parts_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[str], int]:
    """The calls of a function on a GPU, with the number of their operands, and how many kernels it has."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    schedule = fused(lower(gm.graph))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    made = Interpreter(schedule, names)(*flatten(copy_inputs(inputs)))
    for one, two in zip(made, flatten(function(*copy_inputs(inputs))), strict=True):
        torch.testing.assert_close(one, two)
    calls = [step for step in schedule.steps if isinstance(step, Extern)]
    return [f"{c.target.__name__} {len(c.args)}" for c in calls], sum(isinstance(s, KernelCall) for s in schedule.steps)


X, W, B, V = torch.randn(3, 8, 16), torch.randn(24, 16), torch.randn(24), torch.randn(24, 5)


def test_read_by_loops() -> None:
    assert parts_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), X, W, B) == (["linear 2"], 1)
    assert parts_of(lambda x, w, b: torch.addmm(b, x[0], w.t()).sum(1), X, W, B) == (["mm 2"], 1)
    assert parts_of(lambda x, w, b: F.linear(x, w, b[::2]).cos().sum(-1), X, W, torch.randn(48)) == (["linear 2"], 1)


def test_several_readers_and_views_of_it() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        a, c = F.linear(x, w, b).view(24, 24).transpose(0, 1).chunk(2, 1)
        return a.sigmoid() * c, (a - c).amax(0)

    calls, _ = parts_of(function, X, W, B)
    assert calls == ["linear 2"]


def test_read_by_calls_and_callers() -> None:
    assert parts_of(lambda x, w, b: F.linear(x, w, b), X, W, B) == (["linear 3"], 0)
    assert parts_of(lambda x, w, b, v: F.linear(x, w, b) @ v, X, W, B, V)[0] == ["linear 3", "matmul 2"]
    assert parts_of(lambda x, w, b: (F.linear(x, w, b).relu(), F.linear(x, w, b)[0]), X, W, B)[0].count("linear 3") >= 1


def test_a_bias_that_changes_afterwards() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b)
        b.mul_(2)
        return (y * b).tanh()

    assert parts_of(function, X, W, B)[0] == ["linear 2"]


def test_other_types_and_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [t.double() for t in (X, W, B)]
    assert parts_of(lambda x, w, b: F.linear(x, w, b).relu(), *wide)[0] == ["linear 3"]
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert parts_of(lambda x, w, b: F.linear(x, w, b).relu(), X, W, B)[0] == ["addmm_relu 3"]
