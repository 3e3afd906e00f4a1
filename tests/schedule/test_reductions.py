"""How reductions, and what is computed before and after them, become kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from quickfuse.ir.kernel import Axis, KernelCall, Schedule
from quickfuse.schedule.collapse import collapse_rows
from quickfuse.schedule.index_space import embedding
from schedule_interpreter import check, compile_for_test

X = torch.Tensor


def calls(schedule: Schedule) -> list[KernelCall]:
    assert all(isinstance(step, KernelCall) for step in schedule.steps), str(schedule)
    return schedule.steps  # type: ignore[return-value]


def hand_written(x: X) -> X:
    e = (x - x.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def hand_written_norm(x: X, w: X) -> X:
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt() * w


ONE_KERNEL: dict[str, Callable[..., Any]] = {
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "softmax by hand": hand_written,
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "layer norm by hand": lambda x: hand_written_norm(x, x[0]),
    "a producer": lambda x: F.gelu(x).sum(),
    "a producer that is stored": lambda x: (F.gelu(x), F.gelu(x).sum(-1)),
    "a view before": lambda x: x.t().sum(0),
    "consumers of elements": lambda x: x.softmax(-1) * 2 + x,
    "consumers of rows": lambda x: (x.sum(-1) + 1).sqrt(),
    "rows that are stored and used": lambda x: (x.mean(-1), x - x.mean(-1, keepdim=True)),
    "two reductions of the same data": lambda x: (x.sum(1), x.amax(1), x.var(1)),
    "a reduction and elements": lambda x: (x * 2, x.sum(1)),
    "with indices": lambda x: tuple(x.max(1)),
    "chained": lambda x: F.layer_norm(x.softmax(-1), x.shape[-1:]),
    "in place": lambda x: x.sub_(x.mean(-1, keepdim=True)),
    "in place twice": lambda x: x.copy_(x.softmax(-1)).mul_(2),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str) -> None:
    for shape in ((4, 6), (20, 70)):
        schedule = check(ONE_KERNEL[name], torch.rand(shape) + 0.5, emitted=True, ulps=32)
        assert len(calls(schedule)) == 1, str(schedule)
        assert not schedule.temps


def test_reductions_of_different_axes_are_kernels_of_their_own() -> None:
    schedule = check(lambda x: (x.sum(0), x.sum(1), x.sum()), torch.rand(20, 30), emitted=True, ulps=16)
    assert len(calls(schedule)) == 3
    schedule = check(lambda x: x.softmax(0).softmax(1), torch.randn(20, 30), emitted=True, ulps=16)
    assert len(calls(schedule)) == 2
    check(lambda x: x.sum(1).softmax(0), torch.rand(20, 30), emitted=True, ulps=64)


def test_sizes_are_no_part_of_a_body() -> None:
    def norm(x: X) -> X:
        return F.layer_norm(x, x.shape[-1:])

    (one,), (two,) = (calls(compile_for_test(norm, torch.randn(s))[0]) for s in ((3, 50), (30, 1000)))
    assert one.body == two.body and hash(one.body) == hash(two.body)
    assert one.body != calls(compile_for_test(lambda x: norm(x) * 2, torch.randn(3, 50))[0])[0].body


def test_counts_of_other_axes_are_not_taken_for_the_length_of_rows() -> None:
    for shape in ((20, 20), (20, 30), (30, 20)):
        check(lambda x: x.mean(1).sum(0), torch.rand(shape), emitted=True, ulps=16)
        check(lambda x: (x - x.mean(1, keepdim=True)).var(0), torch.rand(shape), emitted=True, ulps=64)
    check(lambda xs: [x.mean(1).mean(0) for x in xs], [torch.rand(20, 20), torch.rand(30, 20), torch.rand(20, 30)],
          emitted=True, ulps=16)  # fmt: skip


def test_equal_reductions_are_members_of_one_kernel() -> None:
    xs = [torch.rand(s) for s in ((5,), (3, 4), (700,), (2, 3, 4))]
    (call,) = calls(check(lambda xs: [x.sum() for x in xs], xs, emitted=True, ulps=16))
    assert len(call.members) == 4
    (call,) = calls(check(lambda xs: torch._foreach_norm(xs), xs, emitted=True, ulps=16))
    assert len(call.members) == 4


def test_clipping_of_gradients() -> None:
    def clip(gradients: list[X]) -> X:
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, (1 / (total + 1e-6)).clamp(max=1.0))
        return total

    schedule = check(clip, [torch.randn(s) for s in ((5,), (3, 4), (700,), (2, 3, 4))], emitted=True, ulps=16)
    kernels = [step for step in schedule.steps if isinstance(step, KernelCall)]
    assert [len(call.members) for call in kernels] == [4, 1, 4]


def test_loops_print_as_they_run() -> None:
    (call,) = calls(compile_for_test(lambda x: x.softmax(-1), torch.randn(3, 4))[0])
    assert str(call.body).splitlines()[-3:] == [
        "r0 maximum= s0", "r1 sum= f64(exp(sub(s0, r0)))", "s1 = div(exp(sub(s0, r0)), f32(r1))",
    ]  # fmt: skip
    program = compile_for_test(lambda x: x.sum(1), torch.randn(3, 4))[0].program
    assert "    t1[i0] sum= f64(a0[4*i0 + i1])" in str(program)


def test_a_running_statistic_is_updated_in_the_kernel_that_computes_it() -> None:
    def function(x: X, running: X) -> X:
        mean = x.mean(0)
        running.lerp_(mean, 0.1)
        return x - mean

    assert len(calls(check(function, torch.randn(30, 20), torch.randn(20), emitted=True, ulps=16))) == 1


def test_updates_in_place_wait_for_all_passes() -> None:
    def function(x: X) -> tuple[X, X]:
        x.mul_(2)
        return x.softmax(-1), x.sum(0)

    check(function, torch.randn(20, 70), emitted=True, ulps=64)

    def swap(x: X, y: X) -> None:
        a, b = x.mean(1, keepdim=True), y.mean(1, keepdim=True)
        s, t = x - b, y - a
        x.copy_(t)
        y.copy_(s)

    check(swap, torch.randn(20, 70), torch.randn(20, 70), emitted=True, ulps=16)


def test_scatters_that_wait_for_each_other_read_copies() -> None:
    """Each stores to rows of an input that the other one reads."""

    def add(x: X, y: X, k: X) -> None:
        a, b = x.index_add(0, k, y), y.index_add(0, k, x)
        x.copy_(a)
        y.copy_(b)

    def exchange(x: X, y: X, k: X) -> None:
        a, b = x[k], y[k]
        x[k], y[k] = b + 1, a * 2

    def one_is_plain(x: X, y: X, k: X) -> None:
        old = x * 1
        x.index_add_(0, k, y)
        y.copy_(old.flip(0))

    for function in (add, exchange, one_is_plain):
        for k in (torch.tensor([4, 1, 0, 2, 3]), torch.tensor([1, 1, 0, 0, 3])):
            schedule = check(function, torch.randn(5, 7), torch.randn(5, 7), k, emitted=True)
            assert sum(buffer.name.startswith("old") for buffer in schedule.temps) == 2 - (function is one_is_plain)


def test_embedding_of_rows() -> None:
    assert embedding((6,), (2, 3, 5), (2,)).coefficients == ((3, 1, 0),)
    assert embedding((2, 1, 3), (2, 3, 5), (2,)).coefficients == ((1, 0, 0), (0, 0, 0), (0, 1, 0))
    assert embedding((2, 15), (2, 3, 5), (2,)).coefficients == ((1, 0, 0), (0, 5, 1))
    assert embedding((3, 2), (2, 3, 5), (2,)) is None and embedding((5,), (2, 3, 5), (2,)) is None


def test_where_vectors_lie() -> None:
    rows = collapse_rows((4, 5, 6), ((30, 6, 1), (1, 0, 0)), (), (1, 2), Axis.REDUCE)
    assert rows.sizes == (4, 30) and rows.axes == (Axis.PARALLEL, Axis.REDUCE) and rows.vector == 1
    across = collapse_rows((4, 5, 6), ((30, 6, 1), (0, 6, 1)), (), (0,), Axis.REDUCE)
    assert across.sizes == (30, 4) and across.axes == (Axis.PARALLEL, Axis.REDUCE) and across.vector == 0
    short = collapse_rows((1000, 3), ((3, 1), (1, 0)), (), (1,), Axis.REDUCE)
    assert short.sizes == (1000, 3) and short.vector == 0
