"""Which values are stored and which are computed again, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.differentiate.expand import expand
from quickfuse.emit.plan import Plan
from quickfuse.ir.expr import Load, walk
from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.loop import Loop
from quickfuse.lower import lower
from schedule_interpreter import check, schedules_made
from trace_helper import trace

X = torch.Tensor


def residual(depth: int) -> Callable[[X, X], X]:
    """A sum that runs through all layers, as in a transformer that normalises first."""

    def run(x: X, w: X) -> X:
        for _ in range(depth):
            x = x + F.layer_norm(x, x.shape[-1:]) @ w
        return x

    return run


def dense(depth: int) -> Callable[[X, X], X]:
    """Layers that read what all layers before them made."""

    def run(x: X, w: X) -> X:
        made = [x]
        for _ in range(depth):
            total = made[0]
            for value in made[1:]:
                total = total + value.tanh()
            made.append(total @ w)
        return made[-1]

    return run


@pytest.mark.parametrize("model", [residual, dense])
def test_formulas_do_not_grow_with_depth(model: Callable[[int], Callable[[X, X], X]]) -> None:
    inputs = (torch.randn(6, 8), torch.randn(8, 8) / 8)
    check(model(30), *inputs, ulps=1e4)
    loops = [step for step in lower(trace(model(30), *inputs).graph, expand=expand).steps if isinstance(step, Loop)]
    read = [{node for node in walk(store.value) if isinstance(node, Load)} for loop in loops for store in loop.stores]
    assert max(map(len, read)) <= 16


def test_what_many_tensors_make_before_a_call_is_stored_before_it() -> None:
    def run(a: X, b: X, c: X, w: X) -> tuple[X, X]:
        t = a * b + c
        return t[:, :64] + c[:, :64] @ w, t[:, 64:] @ w

    def without_call(a: X, b: X, c: X, w: X) -> tuple[X, X]:
        t = a * b + c
        return t[:, :64] + w[0], t[:, 64:] * 2

    inputs = (*[torch.randn(256, 128) for _ in range(3)], torch.randn(64, 64))
    stored = [buffer for buffer in check(run, *inputs, ulps=1e4).temps if buffer.meta.numel == 256 * 128]
    assert len(stored) == 1
    assert not check(without_call, *inputs).temps


def test_a_norm_stores_the_sum_that_it_normalises() -> None:
    """The sum that runs through all layers is stored once for each, where it is summed up, and all kernels are alike."""
    schedule = check(residual(6), torch.randn(60, 80), torch.randn(80, 80) / 80, ulps=1e4)
    calls = [step for step in schedule.steps if isinstance(step, KernelCall)]
    whole = [{b for b in call.buffers if b.meta.numel == 60 * 80} for call in calls]
    assert len({call.body for call in calls}) == 3  # the first norm, the others, and the last sum
    assert [len(buffers) for buffers in whole] == [2, *[4] * 5, 3]


def test_passes_load_what_an_earlier_one_stores() -> None:
    def run(a: X, b: X) -> tuple[X, X]:
        total = a + b
        return total, F.layer_norm(total, total.shape[-1:])

    schedule = check(run, torch.randn(60, 80), torch.randn(60, 80), emitted=True, ulps=1e4)
    (body,) = {step.body for step in schedule.steps if isinstance(step, KernelCall)}
    assert len(Plan(body).kept) == 1


@pytest.mark.parametrize(("others", "stored"), [(0, 0), (1, 1), (2, 1)])
def test_what_several_kernels_need_is_stored_if_that_is_less_traffic(others: int, stored: int) -> None:
    """With one operand, a formula is a load after the call, too."""

    def run(x: X, w: X, *more: X) -> tuple[X, X]:
        value = x + 1
        for other in more:
            value = value + other
        product = value.cos() @ w
        return product + value, product * 2

    inputs = (torch.randn(300, 300), torch.randn(300, 300), *[torch.randn(300, 300) for _ in range(others)])
    temps = [buffer for buffer in check(run, *inputs, ulps=1e4).temps if buffer.meta.numel == 300 * 300]
    assert len(temps) == 1 + stored  # what is multiplied is one


def test_layers_share_kernels() -> None:
    schedule = check(residual(30), torch.randn(6, 8), torch.randn(8, 8) / 8, ulps=1e4)
    assert len({step.body for step in schedule.steps if isinstance(step, KernelCall)}) <= 8


def test_small_operands_do_not_count() -> None:
    def scaled(x: X, *numbers: X) -> tuple[X, X]:
        for number in numbers:
            x = x * number
        return x.sum(), x.exp().sum()

    schedule = check(scaled, torch.rand(50, 8), *[torch.rand(8) for _ in range(10)], ulps=100)
    assert not any(buffer.meta.numel == 400 for buffer in schedule.temps)


def test_changed_inputs_are_stored_once() -> None:
    def update(x: X, *others: X) -> X:
        for other in others:
            x.add_(other)
        return x.sum()

    schedule = check(update, torch.randn(50, 8), *[torch.rand(50, 8) for _ in range(6)], ulps=1e4)
    assert not schedule.temps


def test_choices_by_index_are_made_once() -> None:
    def normalised(a: X, b: X) -> tuple[X, X]:
        x = torch.cat([a, b], 1)
        return F.layer_norm(x, x.shape[-1:]), x.cos().sum(1)

    inputs: Any = (torch.randn(5, 3), torch.randn(5, 8))
    check(normalised, *inputs)
    reduced = [step for step in lower(trace(normalised, *inputs).graph, expand=expand).steps
               if isinstance(step, Loop) and any(store.combine for store in step.stores)]  # fmt: skip
    assert len(reduced) == 3 and not any("where" in str(step) for step in reduced)


def test_a_convolutions_operand_is_computed_again_by_what_reads_its_origin_anyway() -> None:
    """The gradients of activation and norm need the images that the norm got. What the weight's gradient needs in memory,
    computed from these, they do not load besides."""
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3)
    )
    with schedules_made() as schedules:
        quickfuse.compile(layers)(torch.randn(4, 16, 32, 32)).sum().backward()
    slots = [(slot, member.buffers[k]) for step in schedules[1].steps if isinstance(step, KernelCall)
             for member in step.members for k, slot in enumerate(step.body.slots)]  # fmt: skip
    operands = {buffer for slot, buffer in slots if slot.access == "w" and buffer.meta.numel == 4 * 16 * 32 * 32}
    assert operands and not any("r" in slot.access and buffer in operands for slot, buffer in slots)
