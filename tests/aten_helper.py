"""Graphs of ATen operators for tests: a function and its gradients, traced by PyTorch, lowered, fused and run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from quickfuse.differentiate.expand import expand
from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Extern
from quickfuse.lower import lower
from schedule_interpreter import Compiled, Interpreter, fused
from trace_helper import copy_inputs, flatten, meta_of


def with_gradients(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
    """A function that returns the results of another one, and their gradients with respect to all float inputs."""

    def joint(*tensors: torch.Tensor) -> list[torch.Tensor]:
        wanted = [t for t in tensors if t.is_floating_point()]
        for t in wanted:
            t.requires_grad_(True)
        results = flatten(function(*tensors))
        smooth = [r for r in results if r.requires_grad]
        factors = [torch.ones_like(r) if r.dim() == 0 else _factors(r) for r in smooth]
        gradients = torch.autograd.grad(smooth, wanted, factors, allow_unused=True)
        return [r.detach() for r in results] + [g for g in gradients if g is not None]

    return joint


def _factors(result: torch.Tensor) -> torch.Tensor:
    """Numbers between -1 and 1 that do not depend on a result's contents."""
    return torch.arange(result.numel(), dtype=torch.float64).cos().view(result.shape).to(result.dtype)


def aten_graph(function: Callable[..., Any], *inputs: torch.Tensor) -> GraphModule:
    """The graph of ATen operators that a function runs, none of them in place, with metadata at its nodes."""
    gm = make_fx(dispatch_functionalize(function), tracing_mode="fake")(*copy_inputs(inputs))
    for node in gm.graph.nodes:
        node.meta["val"] = _metas(node.meta.get("val"))
    return gm


def _metas(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_metas, value))
    return meta_of(value) if isinstance(value, torch.Tensor) else value


def externs(schedule: Schedule) -> list[str]:
    """The names of the operators that a schedule calls."""
    return [getattr(step.target, "__name__", str(step.target)) for step in schedule.steps if isinstance(step, Extern)]


def kernels(schedule: Schedule) -> int:
    return sum(isinstance(step, KernelCall) for step in schedule.steps)


def check_gradients(function: Callable[..., Any], *inputs: torch.Tensor, ulps: float = 32) -> Schedule:
    """Assert that a function and its gradients, compiled, give what they give in eager mode."""
    return check_aten(with_gradients(function, inputs), *inputs, ulps=ulps)


def check_aten(function: Callable[..., Any], *inputs: torch.Tensor, ulps: float = 32) -> Schedule:
    """Assert that the operators of a function, compiled, give what they give in eager mode."""
    gm = aten_graph(function, *inputs)
    schedule = fused(lower(gm.graph, (), expand))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    expected = flatten(function(*copy_inputs(inputs)))
    for run in (Interpreter, Compiled):
        actual = [a for a in run(schedule, names)(*copy_inputs(inputs)) if a is not None]
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            _assert_close(a.detach(), e.detach(), ulps)
    return schedule


def _assert_close(actual: torch.Tensor, expected: torch.Tensor, ulps: float) -> None:
    """Strides are not compared: those that PyTorch traces are not always those of its kernels for the CPU."""
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    tolerance = ulps * torch.finfo(expected.dtype).eps if expected.is_floating_point() else 0
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=False)
