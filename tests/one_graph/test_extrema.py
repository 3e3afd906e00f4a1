"""`max(1e-3, x.norm())` and `min(...)`: which of the two it is matters to arithmetic alone, and ends no graph there."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Any]


def adafactor(p: Tensor, grad: Tensor) -> Any:
    """As in several libraries: the rate is relative to the size of the parameter."""
    scale = max(1e-3, p.norm(2) / p.numel() ** 0.5)
    update = grad / grad.square().mean().sqrt()
    update.mul_(scale * 0.05)
    p.add_(-update)
    return p


def clipped(p: Tensor, grad: Tensor) -> Any:
    factor = min(1.0 / (grad.norm() + 1e-6), 1.0)
    grad.mul_(factor)
    return grad * 2, p - grad


def of_two_tensors(p: Tensor, grad: Tensor) -> Any:
    larger, smaller = max(p.max(), grad.max()), min(p.min(), grad.min(), key=None)
    return p * larger, grad / larger, smaller + p


def arithmetic(p: Tensor, grad: Tensor) -> Any:
    size = max(grad.norm(), 0.5)
    rate = -(1 - size * 0.1) / 4 + 2.5
    return p * rate, rate * p, p - rate, rate - p, p / rate, rate / p, p**rate, torch.mul(p, rate), p < rate


def methods(p: Tensor, grad: Tensor) -> Any:
    size = min(2.0, grad.abs().max())
    return p.mul(size), p.add(grad, alpha=2).div(size), p.clamp(max=size), torch.maximum(p, p.mul(size)), p.sub(size)


def in_place(p: Tensor, grad: Tensor) -> Any:
    size = max(grad.mean(), 0.25)
    p *= size
    grad.div_(size).add_(size)
    p -= size
    return p, grad


def whole_numbers(p: Tensor, grad: Tensor) -> Any:
    """Of which a number and a tensor make results of several types."""
    k = torch.arange(4)
    return k * max(grad.norm(), 0.1), k + max(1, grad.norm()), k.double() * max(grad.norm(), 0.1)


def changed_later(p: Tensor, grad: Tensor) -> Any:
    """What changes the tensor that it may be changes it, too."""
    norm = grad.norm()
    size = max(norm, 0.5)
    norm.mul_(3)
    return p * size, norm


def in_a_list(p: Tensor, grad: Tensor) -> Any:
    sizes = [max(g.norm(), 0.5) for g in (p, grad)]
    held = {"first": sizes[0]}
    return [p * size for size in sizes], grad * held["first"]


IN_ONE_GRAPH = (
    adafactor, clipped, of_two_tensors, arithmetic, methods, in_place, changed_later, in_a_list,
)  # fmt: skip


def handed_out(p: Tensor, grad: Tensor) -> Any:
    return max(grad.norm(), 0.5), p * 2


def asked(p: Tensor, grad: Tensor) -> Any:
    size = max(0.5, grad.norm())
    return p * 2 if isinstance(size, float) else p * 3


def compared(p: Tensor, grad: Tensor) -> Any:
    norm = grad.norm()
    size = max(0.5, norm)
    return p * (2 if size is norm else 3), size == 0.5, size in [0.5]


def branched(p: Tensor, grad: Tensor) -> Any:
    size = min(1.0, grad.norm())
    return p * size if size < 1 else p


def changed_in_place(p: Tensor, grad: Tensor) -> Any:
    norm = grad.norm()
    size = max(0.5, norm)
    size *= 2
    return p * size, norm


def other_uses(p: Tensor, grad: Tensor) -> Any:
    size = max(grad.norm(), 0.5)
    return p * 2, f"{float(size):.3f}", math.sqrt(size), round(float(size), 2), type(size).__name__, str(size)[:3]


def operands_in_lists(p: Tensor, grad: Tensor) -> Any:
    size = max(grad.norm(), 0.5)
    torch._foreach_mul_([p, grad], size)
    return p, grad, torch.full((2,), float(size))


def nested(p: Tensor, grad: Tensor) -> Any:
    return p * min(max(grad.norm(), 0.5), 2.0), grad * max(grad.norm(), p.norm(), 0.1)


def kept(p: Tensor, grad: Tensor) -> Any:
    held = {"size": max(grad.norm(), 0.5)}
    quickfuse.graph_break()
    return p * held["size"]


def with_gradients(p: Tensor, grad: Tensor) -> Any:
    w = p.clone().requires_grad_()
    (w * max(grad.norm(), 0.5)).sum().backward()
    size = max(w.norm(), 0.5)
    (w * size).sum().backward()
    return w.grad


def as_a_key(p: Tensor, grad: Tensor) -> Any:
    size = max(grad.norm(), 0.5)
    table = {0.5: 1.0}
    return p * 2 if type(size) is not float else p * table[size]


LEFT = (
    handed_out, asked, compared, branched, changed_in_place, other_uses, operands_in_lists, nested, kept, with_gradients,
    as_a_key, whole_numbers,
)  # fmt: skip


def runs(compiled: Program, dtype: torch.dtype) -> list[Any]:
    results = []
    for size in (1.0, 1e-5, 100.0, 0.0, float("nan"), 0.5, float("inf")):
        p, grad = torch.linspace(-1, 1, 4, dtype=dtype), torch.linspace(0.5, 2, 4, dtype=dtype) * size
        if compiled.__name__ == "adafactor":
            p *= size
        results.append((compiled(p, grad), p, grad))
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("program", [*IN_ONE_GRAPH, *LEFT], ids=lambda p: p.__name__)
def test_extrema(program: Program, dtype: torch.dtype) -> None:
    exact = quickfuse.compile(program, backend="eager")
    assert same(runs(program, dtype), runs(exact, dtype), rtol=0, atol=0)
    compiled = quickfuse.compile(program)
    assert same(runs(program, dtype), runs(compiled, dtype), rtol=1e-6, atol=1e-6)
    if program in IN_ONE_GRAPH:
        assert not compiled.breaks and compiled.graph_count == 1
