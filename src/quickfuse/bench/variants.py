"""A workload as each peer runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import quickfuse
from quickfuse.bench import jax_peer, models
from quickfuse.bench.step import Missing, Step
from quickfuse.bench.workloads import DTYPES, OptimizerWorkload, PointwiseWorkload, Shape, Workload

OURS = "quickfuse"
PEERS = ("eager", "fused", "torch.compile", "jax")

#: A chain of linear layers deeper than this has gradients that underflow, and arithmetic on denormals is what a
#: benchmark would measure then.
_DEEPEST_CHAIN = 16


def prepare(workload: Workload, variant: str) -> Step:
    """The workload for one variant, with tensors of its own. The same workload always gets the same numbers.

    Raises:
        Missing: if the variant does not exist here.
    """
    if variant == "jax":
        return jax_peer.prepare(workload)
    if isinstance(workload, OptimizerWorkload):
        return _optimizer_step(workload, variant)
    if isinstance(workload, PointwiseWorkload):
        return _pointwise_call(workload, variant)
    if variant == "fused":
        raise Missing("PyTorch has no fused version of it")
    return models.prepare(workload, wrapper(variant), synchronizer(workload.device))


def synchronizer(device: str) -> Callable[[], None]:
    """Waits until the device has done all that was asked of it."""
    return torch.cuda.synchronize if device == "cuda" else _nothing_to_wait_for


def make_parameters(workload: OptimizerWorkload) -> list[torch.nn.Parameter]:
    """Parameters with gradients: those of a chain of linear layers after one backward pass, or random ones."""
    torch.manual_seed(0)
    shapes = workload.shapes
    rows, *columns = shapes[0]
    if columns == [rows] and len(set(shapes)) == 1 and len(shapes) <= _DEEPEST_CHAIN:
        return _linear_chain(len(shapes), rows, DTYPES[workload.dtype], workload.device)
    return [_random_parameter(shape, DTYPES[workload.dtype], workload.device) for shape in shapes]


def _linear_chain(count: int, width: int, dtype: torch.dtype, device: str) -> list[torch.nn.Parameter]:
    layers = [torch.nn.Linear(width, width, False, device=device, dtype=dtype) for _ in range(count)]
    model = torch.nn.Sequential(*layers)
    model(torch.rand(width, device=device, dtype=dtype)).sum().backward()
    return list(model.parameters())


def _random_parameter(shape: Shape, dtype: torch.dtype, device: str) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.randn(shape, device=device, dtype=dtype))
    parameter.grad = torch.randn(shape, device=device, dtype=dtype)
    return parameter


def _optimizer_step(workload: OptimizerWorkload, variant: str) -> Step:
    parameters = make_parameters(workload)
    state: list[torch.Tensor] = [parameter.detach() for parameter in parameters]
    synchronize = synchronizer(workload.device)
    if variant == "fused":
        fused = _fused_optimizer(workload, parameters)
        return Step(lambda: fused.step, (), synchronize, state)
    opt = workload.spec.torch_optimizer(parameters)

    def fn() -> None:
        opt.step()

    if variant == "eager":
        return Step(lambda: opt.step, (), synchronize, state)
    return Step(_compiler(variant, fn), (), synchronize, state)


def _fused_optimizer(workload: OptimizerWorkload, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    try:
        return workload.spec.torch_optimizer(parameters, fused=True)
    except (TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise Missing(f"no fused {workload.spec.torch_name} for this device and dtype ({reason})") from error


def _pointwise_call(workload: PointwiseWorkload, variant: str) -> Step:
    torch.manual_seed(0)
    dtype, device = DTYPES[workload.dtype], workload.device
    args = tuple(torch.randn(workload.shape, dtype=dtype, device=device) for _ in range(2))

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.cos(y)

    if variant == "fused":
        raise Missing("PyTorch has no fused kernel for a pointwise function")
    make = (lambda: fn) if variant == "eager" else _compiler(variant, fn)
    return Step(make, args, synchronizer(device))


def _compiler(variant: str, fn: Callable[..., Any]) -> Callable[[], Callable[..., Any]]:
    wrap = wrapper(variant)
    return lambda: wrap(fn)


def wrapper(variant: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What a variant makes of a function."""
    if variant == "eager":
        return lambda fn: fn
    if variant == OURS:
        return lambda fn: quickfuse.compile(fn, fullgraph=False)
    if variant == "torch.compile":
        return lambda fn: torch.compile(fn, fullgraph=False)
    raise ValueError(f"unknown variant {variant!r}; known are {', '.join((*PEERS, OURS))}")


def _nothing_to_wait_for() -> None:
    """CPU operators have finished when they return."""
