"""What programs of `chains` call: how their inputs are made and how an operand is made to fit, in plain PyTorch."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch

Tensor = torch.Tensor

#: How an input lies in memory. All but the last have the shape that was asked for.
LAYOUTS = ("plain", "transposed", "strided", "inside", "offset", "channels last", "expanded", "overlapping", "computed")


# inputs ---------------------------------------------------------------------------------------------------------


def drawn(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, layout: str = "plain", grad: bool = False, device: str = "cpu"
) -> Tensor:
    """An input with random numbers. One that needs gradients and is "computed" is no leaf."""
    generator = torch.Generator().manual_seed(seed)
    made = _laid(lambda sizes: _numbers(sizes, dtype, generator).to(device), shape, layout)
    if grad:
        made = made.detach().requires_grad_()  # no leaf is a view
        return made * 1 if layout == "computed" else made
    return made


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return (1.5 * torch.randn(shape, generator=generator, dtype=wide)).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -4, 9, shape, generator=generator).to(dtype)


def _laid(numbers: Any, shape: tuple[int, ...], layout: str) -> Tensor:
    count = math.prod(shape)
    if layout == "transposed":
        return numbers(shape[::-1]).permute(*range(len(shape))[::-1])
    if layout == "strided":
        return numbers((*shape, 2))[..., 1]
    if layout == "inside" and shape:
        return numbers(tuple(n + 2 for n in shape))[tuple(slice(1, n + 1) for n in shape)]
    if layout == "offset":
        return numbers((count + 3,))[3:].view(shape)
    if layout == "channels last" and len(shape) in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return numbers(shape).contiguous(memory_format=formats[len(shape)])
    if layout == "expanded" and shape:
        return numbers((1, *shape[1:])).expand(shape)
    if layout == "overlapping" and shape:
        return numbers((count + 1,)).as_strided(shape, (1,) * len(shape))
    return numbers(shape)


# operands -------------------------------------------------------------------------------------------------------


def fit(value: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """A tensor as one of this shape and type: a view of it where there is one."""
    if dtype is not None and value.dtype != dtype:
        value = tidy(value).to(dtype)
    count, wanted = value.numel(), math.prod(shape)
    if value.shape == shape:
        return value
    if count == wanted:
        return value.reshape(shape)
    if count == 0:
        return value.new_ones(shape)
    if value.dim() == len(shape) and all(n >= m for n, m in zip(value.shape, shape, strict=True)):
        return value[tuple([slice(m) for m in shape])]
    if value.dim() <= len(shape) and all(n in (1, m) for n, m in zip(value.shape[::-1], shape[::-1], strict=False)):
        return value.expand(shape)
    if count > wanted:
        return value.reshape(-1)[:wanted].reshape(shape)
    return value.reshape(-1).repeat(wanted // count + 1)[:wanted].reshape(shape)


def tidy(value: Tensor) -> Tensor:
    """Numbers that each type has: what an infinite or large one becomes as a whole number depends on the processor."""
    if value.dtype.is_complex:
        value = value.real
    if value.dtype is torch.bool:
        return value
    return value.nan_to_num(0.5, 9, 0).clamp(0, 100) if value.dtype.is_floating_point else value.clamp(0, 100)


# results --------------------------------------------------------------------------------------------------------


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)


def backward(value: Any) -> None:
    """Backward from the sum of all results with gradients."""
    found = [(t.abs() if t.is_complex() else t).double().sum() for t in tensors(value) if t.requires_grad]
    if found:
        sum(found).backward()  # type: ignore[union-attr]


def same(results: Any, inputs: list[Tensor]) -> list[int | None]:
    """For each tensor of the results, the first input or earlier result that it is."""
    seen, found = [*inputs], []
    for tensor in tensors(results):
        found.append(next((k for k, t in enumerate(seen) if t is tensor), None))
        seen.append(tensor)
    return found


@contextlib.contextmanager
def warned(into: list[Any]) -> Iterator[None]:
    """Note the warnings that are given within."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            into[:] = sorted({f"{w.category.__name__}: {str(w.message)[:80]}" for w in caught})


class Doubled(torch.autograd.Function):
    """Twice its operand, with three times the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
