"""What a mask selects, computed with and assigned to the same places: kernels for all places, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse
from differential import same

T = torch.Tensor


def two_masks(x: T) -> T:
    y = x * 1
    mask = x > 0
    y[mask] = y[mask] * 1.1
    y[~mask] *= 0.5
    return y * x


def by_condition(x: T) -> T:
    y = x * 2
    y[y > 0] *= 0.5
    y[y < -1] = y[y < -1].exp() - 1
    return y


def functions(x: T) -> T:
    y, mask = x * 2, x.isfinite() & (x > 0.2)
    y[mask] = torch.log(y[mask]).clamp(-1, 1).sqrt()
    y[mask] = -y[mask] ** 2
    return y


def several(x: T) -> T:
    y, z, mask = x * 1, x.cos(), x > 0
    y[mask] = y[mask] * z[mask] + x.sum()
    return y * z


def whole_rows(x: T) -> T:
    y, mask = x * 1, x[:, 0] > 0
    y[mask] *= 3
    y[mask] = y[mask].tanh()
    return y


def kept_in_a_variable(x: T) -> T:
    y, mask = x * 1, x > 0
    part = y[mask]
    part.mul_(2).add_(1)
    part += part
    y[mask] = part
    return y


def infinite_elsewhere(x: T) -> T:
    """Elements at other places are computed, and have no say."""
    y, mask = x * 1, x > 0
    y[mask] = y[mask].sqrt() / (y[mask] * 3)
    y[mask] = y[mask].log()
    return y


def handed_out(x: T) -> T:
    return (x * 2)[x > 0] * 3


def in_a_step(x: T) -> T:
    y, mask = x * 2, x > 0
    y[mask] *= 0.5
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    grad[grad > 1] = 1
    grad[~mask] += grad[~mask]
    return grad


def of_whole_numbers(x: T) -> T:
    ids = (x.detach() * 3).long()
    ids[ids < 0] += 7
    ids[ids > 5] //= 2
    return ids


ONE_GRAPH = [
    two_masks, by_condition, functions, several, whole_rows, kept_in_a_variable, infinite_elsewhere, handed_out, in_a_step,
    of_whole_numbers,
]  # fmt: skip


def summed(x: T) -> T:
    part = (x * 2)[x > 0] * 3
    return part.sum() + part.max()


def mask_changed_between(x: T) -> T:
    y, mask = x * 1, x > 0
    part = y[mask]
    mask.logical_not_()
    y[~mask] = part * 2
    return y


def condition_changed_between(x: T) -> T:
    y = x * 1
    part = y[y > 0]
    y += 0.5
    try:
        y[y > 0] = part
    except (RuntimeError, IndexError) as error:
        return torch.tensor(len(type(error).__name__))
    return y


def other_type(x: T) -> Any:
    y, mask = x * 1, x > 0
    try:
        y[mask] = y[mask].float()
    except RuntimeError as error:
        return torch.tensor(len(str(error)))
    return y


def with_others(x: T) -> T:
    y, mask = x * 1, x > 0
    y[mask] = y[mask] + torch.arange(int(mask.sum()))
    return y


def looked_at(x: T) -> T:
    part = x[x > 0]
    return x * len(part) + part.shape[0] + (part if part.numel() else x).sum()


OTHERS = [summed, mask_changed_between, condition_changed_between, other_type, with_others, looked_at]


def outcomes(called: Callable[[T], Any]) -> list[Any]:
    torch.manual_seed(0)
    found: list[Any] = []
    for k in range(5):
        x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
        with torch.set_grad_enabled(k != 2 or called.__name__ == "in_a_step"):
            made = called(x)
        if made.requires_grad:
            try:
                made.sum().backward()
            except RuntimeError as error:
                found.append(str(error)[:80])
        found.append((made, x.grad))
    return found


@pytest.mark.parametrize("program", [*ONE_GRAPH, *OTHERS], ids=lambda program: program.__name__)
def test_as_eager(program: Callable[[T], Any]) -> None:
    compiled = quickfuse.compile(program)
    expected, got = outcomes(program), outcomes(compiled)
    assert same(got, expected, rtol=1e-9, atol=1e-9), f"{expected}\n{got}"
    if program in ONE_GRAPH:
        assert not compiled.breaks
        assert not any(s.without_kernels for s in compiled.specialisations)
