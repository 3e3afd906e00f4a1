"""Activations that calls compute together with products on a GPU, where nothing else reads the products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import quickfuse
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace

HALVES = (torch.bfloat16, torch.float16)


def parts_of(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[list[str], int]:
    """The calls of a function on a GPU, and how many kernels it has."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)))
    schedule = fused(lower(gm.graph))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    made = Interpreter(schedule, names)(*flatten(copy_inputs(inputs)))
    close = {"rtol": 2e-2, "atol": 0.1} if inputs[0].ndim == 4 else {}  # eager rounds a convolution without its bias, too
    for one, two in zip(made, flatten(function(*copy_inputs(inputs))), strict=True):
        torch.testing.assert_close(one, two, **close)
    calls = [step for step in schedule.steps if isinstance(step, Extern)]
    return [c.target.__name__ for c in calls], sum(isinstance(s, KernelCall) for s in schedule.steps)


def layer(rows: tuple[int, ...], depth: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    x, w, b = torch.randn(*rows, depth), torch.randn(columns, depth) / math.sqrt(depth), torch.randn(columns)
    return x.to(dtype), w.to(dtype), b.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("rows", [(8,), (2, 4), (2, 2, 3)])
def test_relu_and_what_is_written_so(rows: tuple[int, ...], dtype: torch.dtype) -> None:
    operands = layer(rows, 16, 24, dtype)
    for relu in (F.relu, torch.relu_, lambda y: y.clamp_min(0)):
        assert parts_of(lambda x, w, b, relu=relu: relu(F.linear(x, w, b)), *operands) == (["addmm_relu"], 0)
    assert parts_of(lambda x, w, b: torch.addmm(b, x.flatten(0, -2), w.t()).relu(), *operands) == (["addmm_relu"], 0)


@pytest.mark.parametrize("dtype", HALVES)
def test_gelu_by_tanh_of_16_bits(dtype: torch.dtype) -> None:
    operands = layer((4, 8), 16, 24, dtype)
    assert parts_of(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), *operands) == (["addmm_gelu"], 0)
    assert parts_of(lambda x, w, b: F.gelu(F.linear(x, w, b)), *operands) == (["linear"], 1)


def test_gelu_of_single_precision_is_a_kernel() -> None:
    calls, kernels = parts_of(lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), *layer((4, 8), 16, 24))
    assert (calls, kernels) == (["linear"], 1)


def test_layers_in_a_row() -> None:
    (x, w, b), (_, v, c) = layer((8,), 16, 24), layer((8,), 24, 4)
    calls, kernels = parts_of(lambda x, w, b, v, c: F.linear(F.relu(F.linear(x, w, b)), v, c).relu().sum(0), x, w, b, v, c)
    assert (calls, kernels) == (["addmm_relu", "linear"], 1)  # the second is taken by the kernel that sums up


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: ((y := F.linear(x, w, b)).relu(), y),
        lambda x, w, b: (y := F.linear(x, w, b)).relu() @ y.t(),
        lambda x, w, b: F.linear(x, w, b).relu().t().contiguous(),
        lambda x, w, b: F.linear(x, w, b)[1:].relu(),
        lambda x, w, b: F.linear(x, w, b).clamp_min(0.5),
        lambda x, w, b: F.linear(x, w[::2], b[::2]).relu(),
        lambda x, w, b: F.linear(x[:1], w, b).relu(),
        lambda x, w, b: F.linear(x, w).relu(),
        lambda x, w, b: F.linear(x, w, b).double().relu(),
    ],
)
def test_what_is_more_than_that_or_less(function: Callable[..., Any]) -> None:
    assert "addmm_relu" not in parts_of(function, *layer((8,), 16, 24))[0]


def test_deep_products_of_single_precision_leave_the_bias_to_the_loop() -> None:
    deep, wide = layer((2048,), 256, 128), layer((2048,), 128, 256)
    assert parts_of(lambda x, w, b: F.linear(x, w, b).relu(), *deep) == (["linear"], 1)
    assert parts_of(lambda x, w, b: F.linear(x, w, b).relu(), *wide) == (["addmm_relu"], 0)


def test_a_bias_that_changes_afterwards() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w, b)
        b.mul_(2)
        return y.relu()

    assert parts_of(function, *layer((8,), 16, 24))[0] == ["addmm_relu"]


# --- convolutions ---

def images(dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    x, w, b = torch.randn(2, 16, 8, 8), torch.randn(16, 16, 3, 3) / 12, torch.randn(16)
    return x.to(dtype), w.to(dtype), b.to(dtype)


@pytest.mark.parametrize("dtype", HALVES)
def test_convolutions(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w, b, 2, 1, 2).relu(), w)

    x, w, b = images(dtype)
    assert parts_of(lambda *args: function(*args).float(), x, w, b)[0] == ["convolution_relu", "convolution"]
    calls, kernels = parts_of(lambda x, w, b: function(x, w, b.to(dtype)).float(), x, w, b.float())
    assert calls == ["convolution_relu", "convolution"]  # whose bias has to be converted
    assert parts_of(lambda x, w, b: function(x, w, b[::2]).float(), x, w, torch.cat([b, b]))[0][0] == "convolution_relu"


def test_convolutions_of_single_precision_and_those_that_are_read_twice() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y = F.conv2d(x, w, b, padding=1)
        return F.conv2d(y.relu(), w), y

    def once(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, w, b, padding=1).relu(), w)

    assert "convolution_relu" not in parts_of(twice, *images())[0]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert "convolution_relu" not in parts_of(once, *images(torch.float32))[0]
    with torch.backends.cudnn.flags(enabled=True, deterministic=True):
        assert "convolution_relu" not in parts_of(once, *images())[0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
def test_convolutions_on_a_gpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1)
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(inplace=True), nn.Conv2d(64, 8, 1)).cuda()
    compiled = quickfuse.compile(model)
    x = torch.randn(4, 3, 32, 32, device="cuda")
    made = []
    for one in (model, compiled):
        model.zero_grad()
        with torch.autocast("cuda", dtype):
            result = one(x)
        result.float().square().mean().backward()
        made.append([result.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]])
    for eager, ours in zip(*made, strict=True):
        torch.testing.assert_close(ours, eager, rtol=3e-2, atol=3e-2 * float(eager.abs().max()))
    x[0, 0, 0, 0], x[1, 1, 1, 1], x[2, 2, 2, 2] = math.nan, math.inf, -math.inf
    with torch.no_grad(), torch.autocast("cuda", dtype):
        eager, ours = model(x), compiled(x)
        assert torch.equal(eager.isnan(), ours.isnan()) and eager.isnan().any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_on_a_gpu(activation: str, dtype: torch.dtype) -> None:
    """Values as eager gives them, those that are no number, infinite or zero among them, and gradients of what reads it."""
    act = nn.ReLU() if activation == "relu" else nn.GELU(approximate="tanh")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), act, nn.Linear(128, 128), act, nn.Linear(128, 32)).to("cuda", dtype)
    compiled = quickfuse.compile(model)
    x = torch.randn(4, 32, 64, device="cuda", dtype=dtype)
    x[0, 0], x[1, 1], x[2, 2] = math.nan, math.inf, 0
    with torch.no_grad():
        close = {"equal_nan": True} | ({"rtol": 2e-2, "atol": 2e-2} if dtype in HALVES else {})
        torch.testing.assert_close(compiled(x), model(x), **close)
        torch.testing.assert_close(quickfuse.compile(model[:2])(x), model[:2](x), **close)
    x = torch.randn(4, 32, 64, device="cuda", dtype=dtype)
    made = []
    for one in (model, compiled):
        model.zero_grad()
        loss = one(x).square().mean()
        loss.backward()
        made.append([loss.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]])
    for eager, ours in zip(*made, strict=True):
        torch.testing.assert_close(ours, eager, **({"rtol": 3e-2, "atol": 1e-3} if dtype in HALVES else {}))
