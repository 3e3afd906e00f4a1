"""Settings are as they were before a call once an exception has left it, also where no frame is left to see to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quickfuse

T = torch.Tensor


def after_autocast(x: T, w: T) -> T:
    z = w * 2
    with torch.autocast("cpu", torch.bfloat16):
        if x.sum() < -1000:
            x = x + 1
    z.neg_()
    return z.sum() + torch.linalg.cholesky(w @ w.T - 9 * torch.eye(3)).sum()


def after_no_grad(x: T, w: T) -> T:
    z = w * 2
    with torch.no_grad():
        if x.sum() < -1000:
            x = x + 1
        v = z.view(-1)
        if x.sum() < -1000:
            x = x + 1
    z.neg_()
    q = z * x
    return z.sum() + q.sum() + v.sum()


def after_nested_blocks(x: T, w: T) -> T:
    z = w * 2
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        if x.sum() < -1000:
            x = x + 1
    z.neg_()
    return z.sum() + torch.linalg.cholesky(w @ w.T - 9 * torch.eye(3)).sum()


def settings() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), nesting


@pytest.mark.parametrize("program", [after_autocast, after_no_grad, after_nested_blocks])
def test_settings_are_left(program: Callable[[T, T], T]) -> None:
    before = settings()
    errors = []
    for called in (program, *[quickfuse.compile(program)] * 3):
        w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
        with pytest.raises(RuntimeError) as raised:
            called(torch.ones(3, 3), w)
        errors.append((type(raised.value), str(raised.value)))
        assert settings() == before
    assert len(set(errors)) == 1
