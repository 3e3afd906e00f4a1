"""`torch.nn.attention.sdpa_kernel` within a compiled function: its block is in the graph, with the kernels it allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import quickfuse
from operator_cases import breaks
from quickfuse.ir.modes import ATTENTION

T = torch.Tensor
MATH, FLASH, EFFICIENT = SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION


def attend(q: T, k: T) -> T:
    return F.scaled_dot_product_attention(q, k, k)


def a_block(q: T, k: T) -> T:
    with sdpa_kernel(MATH):
        y = attend(q * 2, k)
    return y.sin()


def two_blocks(q: T, k: T) -> T:
    with sdpa_kernel([FLASH, MATH]):
        y = attend(q, k)
        with sdpa_kernel([MATH]):
            y = attend(y, k)
        y = attend(y, q)
    return attend(y, k).cos()


def a_step(q: T, k: T) -> T:
    q.grad = None
    with sdpa_kernel(MATH):
        loss = attend(q, k).square().mean()
    loss.backward()
    return loss.detach()


def asked_inside(q: T, k: T) -> Any:
    before = torch.backends.cuda.flash_sdp_enabled()
    with sdpa_kernel(MATH):
        inside = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()
        y = attend(q, k)
    return y, before, inside, torch.backends.cuda.flash_sdp_enabled(), MATH == FLASH, {MATH: 1}[MATH]


def a_break_inside(q: T, k: T) -> T:
    with sdpa_kernel(MATH):
        y = attend(q, k)
        if y.sum() > 1e9:
            y = y * 2
        y = attend(y, k)
    return y + 1


def none_is_there(q: T, k: T) -> T:
    with sdpa_kernel(EFFICIENT):
        return attend(q, k) + 1


def raises(q: T, k: T) -> T:
    with sdpa_kernel(MATH):
        y = attend(q, k)
        if (y == y).all():
            raise ValueError
    return y


def in_order(q: T, k: T) -> T:
    with sdpa_kernel([MATH, FLASH], set_priority=True):
        return attend(q, k) * 2


def in_order_with_a_break(q: T, k: T) -> Any:
    with sdpa_kernel([FLASH, MATH], set_priority=True):
        y = attend(q, k)
        orders = [torch._C._get_sdp_priority_order()]
        if y.sum() > 1e9:
            y = y * 2
        with sdpa_kernel([MATH, FLASH], set_priority=True):
            y = attend(y, k)
            orders += [torch._C._get_sdp_priority_order()]
    return y, orders, torch._C._get_sdp_priority_order()


IN_ONE_GRAPH = (a_block, two_blocks, a_step, asked_inside, in_order)


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.parametrize(
    "function",
    [a_block, two_blocks, a_step, asked_inside, a_break_inside, none_is_there, raises, in_order, in_order_with_a_break],
)
def test_as_in_eager(function: Callable[..., Any], needs_gradients: bool) -> None:
    compiled = quickfuse.compile(function, options={"raise_internal_errors": True})
    reasons: list[str] = []
    for call in range(4):
        runs = []
        for run in (function, compiled):
            torch.manual_seed(call)
            q = torch.randn(1, 2, 5, 8, requires_grad=needs_gradients or function is a_step)
            k = torch.randn(1, 2, 5, 8)
            with breaks(reasons):
                try:
                    result = run(q, k)
                    result = result if isinstance(result, tuple) else (result,)
                    if result[0].requires_grad:
                        result[0].sum().backward()
                except (RuntimeError, ValueError) as error:
                    result = (type(error),)
            allowed = [allowed() for allowed, _ in ATTENTION.values()]
            runs.append((result, q.grad, allowed, torch._C._get_sdp_priority_order()))
        expected, found = runs
        torch.testing.assert_close([r for r in found[0] if isinstance(r, T)], [r for r in expected[0] if isinstance(r, T)])
        assert [r for r in found[0] if not isinstance(r, T)] == [r for r in expected[0] if not isinstance(r, T)]
        torch.testing.assert_close(found[1], expected[1])
        assert found[2:] == expected[2:]
    if function in IN_ONE_GRAPH:
        assert not reasons and not compiled.breaks


def test_what_is_allowed_around_the_call() -> None:
    compiled = quickfuse.compile(a_block)
    q, k = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    for backend in (FLASH, MATH, FLASH):
        with sdpa_kernel(backend):
            torch.testing.assert_close(compiled(q, k), a_block(q, k))
            allowed = {name: allowed() for name, (allowed, _) in ATTENTION.items() if name != "order"}
            assert [*allowed.values()] == [name == {FLASH: "flash", MATH: "math"}[backend] for name in allowed]


def test_the_kernels_that_are_allowed_run() -> None:
    """Gradients of gradients, which flash attention has not."""

    def penalty(q: T, k: T) -> T:
        with sdpa_kernel(MATH):
            y = attend(q, k)
        (gradient,) = torch.autograd.grad(y.square().sum(), q, create_graph=True)
        return gradient.square().sum()

    q, k = torch.randn(1, 2, 5, 8, requires_grad=True), torch.randn(1, 2, 5, 8)
    found = torch.autograd.grad(quickfuse.compile(penalty)(q, k), q)
    torch.testing.assert_close(found, torch.autograd.grad(penalty(q, k), q))
