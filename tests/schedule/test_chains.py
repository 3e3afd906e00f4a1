"""Chains of reductions, which are cut so that no pass begins at the first value again, against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import quickfuse
from quickfuse.differentiate.expand import expand
from quickfuse.ir.expr import Op, walk
from quickfuse.ir.kernel import KernelBody, KernelCall, Schedule
from quickfuse.ir.loop import Buffer
from quickfuse.lower import lower
from quickfuse.schedule.materialize import materialize
from schedule_interpreter import check
from trace_helper import trace

X = torch.Tensor


def rms_norm(x: X) -> X:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


STEPS: dict[str, Callable[[X], X]] = {
    "softmax": lambda x: torch.softmax(x, 1),
    "softmax and sum": lambda x: torch.softmax(x, 1) + x,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer norm and sum": lambda x: F.layer_norm(x, x.shape[-1:]) + x,
    "activation": lambda x: F.gelu(F.layer_norm(x, x.shape[-1:])) + x,
    "root mean square": lambda x: rms_norm(x) + x,
    "mean": lambda x: x - x.mean(1, keepdim=True),
    "logsumexp": lambda x: x - torch.logsumexp(x, 1, keepdim=True),
    "quotient": lambda x: x / x.norm(dim=1, keepdim=True),
    "columns": lambda x: torch.softmax(x, 0) + x,
    "both axes": lambda x: torch.softmax(torch.softmax(x, 0) + x, 1) + x,
    "16 bits": lambda x: (torch.softmax(x.bfloat16(), 1) + x).float(),
}


def chain(step: Callable[[X], X], length: int) -> Callable[[X], X]:
    def run(x: X) -> X:
        for _ in range(length):
            x = step(x)
        return x

    return run


def kernels(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def work(body: KernelBody) -> int:
    """The operations of all passes of a body together."""
    count = 0
    for numbers in body.passes:
        roots = [root for k in numbers for root in body.stores[k].roots]
        count += sum(isinstance(node, Op) for node in walk(*roots))
    return count


def stored(schedule: Schedule) -> list[Buffer]:
    """The tensors that kernels store to, element by element: one for each store."""
    return [
        member.buffers[slot] for call in kernels(schedule) for member in call.members
        for slot, operand in enumerate(call.body.slots) if "w" in operand.access and not call.body.once_a_row(slot)
    ]  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_chains(name: str) -> None:
    for length in (2, 3, 7):
        check(chain(STEPS[name], length), torch.randn(20, 70), emitted=True, ulps=1e4)
    check(chain(STEPS[name], 3), torch.randn(70, 20).t(), emitted=True, ulps=1e4)


@pytest.mark.parametrize("name", STEPS)
def test_the_work_of_a_chain_grows_with_its_length(name: str) -> None:
    of_length = {n: kernels(check(chain(STEPS[name], n), torch.randn(20, 70), ulps=1e5)) for n in (1, 20, 40)}
    total = {n: sum(work(call.body) for call in calls) for n, calls in of_length.items()}
    passes = [len(call.body.passes) for call in of_length[40]]
    assert total[20] < 20 * 4 * total[1] and total[40] < 2.2 * total[20]
    assert max(passes) <= 16
    assert len({call.body for call in of_length[40]}) <= 6  # what repeats itself is compiled once


@pytest.mark.parametrize(("name", "three", "twenty"), [("softmax and sum", 2, 19), ("activation", 2, 19), ("mean", 1, 3)])
def test_numbers_of_kernels(name: str, three: int, twenty: int) -> None:
    for length, expected in ((3, three), (20, twenty)):
        schedule = check(chain(STEPS[name], length), torch.randn(20, 70), ulps=1e5)
        assert len(kernels(schedule)) == expected
        assert len(stored(schedule)) == len(set(stored(schedule))) == expected  # one value each, stored once
        read = [sum(slot.access == "r" for slot in call.body.slots) for call in kernels(schedule)]
        assert read == [1] * expected


ONE_KERNEL: dict[str, Callable[[X], object]] = {
    "softmax twice": chain(STEPS["softmax and sum"], 2),
    "layer norm of a softmax": lambda x: F.layer_norm(torch.softmax(x, 1), x.shape[-1:]),
    "16 bits": lambda x: F.layer_norm(torch.softmax(x.bfloat16(), 1), x.shape[-1:]),
    "layer norm of an activation": lambda x: F.layer_norm(F.mish(x), x.shape[-1:]),
    "activation of a layer norm": lambda x: F.gelu(F.layer_norm(x, x.shape[-1:])),
    "a mask": lambda x: torch.softmax((x * 0.125).masked_fill(x < 0, float("-inf")), -1) * (x > -1) * 1.25,
    "root mean square": STEPS["root mean square"],
    "losses": lambda x: -(F.log_softmax(x, 1) * F.log_softmax(x * 2, 1)).sum(1),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_short_chains_are_one_kernel(name: str) -> None:
    schedule = check(ONE_KERNEL[name], torch.randn(20, 70), emitted=True, ulps=1e4)
    assert len(kernels(schedule)) == 1 and not schedule.temps


def test_what_is_stored_anyway_is_not_stored_again() -> None:
    def run(x: X) -> list[X]:
        made = []
        for _ in range(6):
            x = torch.softmax(x, 1) + x
            made.append(x)
        return made

    schedule = check(run, torch.randn(20, 70), emitted=True, ulps=1e4)
    assert not schedule.temps and len(kernels(schedule)) > 2
    assert len(stored(schedule)) == 6


def test_two_values_that_go_on() -> None:
    def run(x: X, y: X) -> tuple[X, X]:
        for _ in range(8):
            x, y = torch.softmax(x, 1) + y, F.layer_norm(y, y.shape[-1:]) * x
        return x, y

    calls = kernels(check(run, torch.randn(20, 70), torch.randn(20, 70), emitted=True, ulps=1e6))
    assert max(len(call.body.passes) for call in calls) <= 8


def test_chains_that_end_in_an_input() -> None:
    def run(x: X, y: X) -> X:
        for _ in range(6):
            x.add_(torch.softmax(x, 1))
        y.copy_(x * 2)
        return x.sum(1)

    check(run, torch.randn(20, 70), torch.randn(20, 70), emitted=True, ulps=1e4)


def test_gradients_of_chains() -> None:
    def run(x: X) -> X:
        leaf = x.detach().requires_grad_()
        chain(STEPS["softmax and sum"], 6)(leaf).square().sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    x = torch.randn(20, 70)
    torch.testing.assert_close(quickfuse.compile(run)(x), run(x), rtol=1e-4, atol=1e-4)


def test_every_expression_is_rewritten_once() -> None:
    """The nodes of a chain are shared before, and what takes their place is shared, too."""
    program = lower(trace(chain(STEPS["softmax and sum"], 40), torch.randn(20, 70)).graph, expand=expand)
    assert materialize(program)
    roots = [[root for store in step.stores for root in store.roots] for step in program.steps]  # type: ignore[union-attr]
    assert max(len(walk(*one)) for one in roots) < 20
    assert len(walk(*[root for one in roots for root in one])) < 40 * 20


def test_long_rows_in_parts() -> None:
    """A reduction in parts is a loop of another shape than what comes after, and they use what one of them stores."""
    of_length = {n: kernels(check(chain(STEPS["columns"], n), torch.randn(4096, 64), ulps=1e5)) for n in (4, 8)}
    total = {n: sum(work(call.body) for call in calls) for n, calls in of_length.items()}
    assert len({member.sizes for call in of_length[4] for member in call.members}) > 2
    assert total[8] <= 2 * total[4]
    assert max(sum(isinstance(node, Op) for node in walk(*call.body.roots)) for call in of_length[8]) < 20
