"""What becomes one loop, one body, one call, and in which order."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from quickfuse.ir.expr import Const, Index, Load, Op
from quickfuse.ir.kernel import KernelCall, Schedule, Slot
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store
from quickfuse.ir.values import TensorMeta, contiguous_stride
from quickfuse.schedule.collapse import collapse
from schedule_interpreter import check, compile_for_test, fused

CPU = torch.device("cpu")


def calls(schedule: Schedule) -> list[KernelCall]:
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def buffer(name: str, shape: tuple[int, ...], kind: str = "input", position: int = 0) -> Buffer:
    return Buffer(name, TensorMeta(torch.float32, shape, contiguous_stride(shape), CPU), kind, position)


def whole(b: Buffer) -> Access:
    return Access(b, 0, b.meta.stride)


# --- vertical ---


def test_a_chain_is_one_kernel_without_temporaries() -> None:
    schedule = check(lambda x, y: ((x.sin() + y).exp() * x).tanh(), torch.randn(3, 4), torch.randn(3, 4))
    (call,) = calls(schedule)
    assert call.body.slots == (
        Slot(torch.float32, (1,), "r"), Slot(torch.float32, (1,), "r"), Slot(torch.float32, (1,), "w")
    )  # fmt: skip
    assert call.members[0].sizes == (12,) and not schedule.temps


def test_outputs_with_common_inputs_are_one_kernel() -> None:
    schedule = check(lambda x, y: (x + y, x - y, x.exp()), torch.randn(3, 4), torch.randn(3, 4))
    (call,) = calls(schedule)
    assert len(call.body.stores) == 3 and len(call.body.slots) == 5


def test_unlike_loops_of_one_shape_share_a_launch() -> None:
    schedule = check(lambda x, y: (x.sin(), y.cos() + 1), torch.randn(5), torch.randn(5))
    assert len(calls(schedule)) == 1


def test_a_value_used_on_both_sides_of_a_call_is_kept() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        e = (x - 1).exp()
        return e / e.logcumsumexp(1)

    schedule = check(function, torch.randn(4, 5))
    assert [type(step) for step in schedule.steps] == [KernelCall, Extern, KernelCall]
    assert len(schedule.temps) == 1


def test_small_values_are_not_recomputed_for_each_element() -> None:
    for shape in ((), (1,), (1, 1), (64,)):
        schedule = check(lambda x, s: x * s.exp().sin().log1p().sqrt(), torch.rand(64, 64), torch.rand(shape))
        assert len(calls(schedule)) == 2
        main = calls(schedule)[1]
        assert "exp" not in str(main.body), str(schedule)


def test_a_0_dim_value_with_many_users_is_stored_once() -> None:
    def function(s: torch.Tensor, xs: list[torch.Tensor]) -> None:
        rate = s * 2 + 1
        for x in xs:
            x.mul_(rate)

    schedule = check(function, torch.tensor(3.0), [torch.randn(n) for n in range(1, 20)])
    assert [len(call.members) for call in calls(schedule)] == [1, 19]


# --- canonical bodies ---


def test_sizes_and_buffers_are_no_part_of_a_body() -> None:
    one = calls(check(lambda x, y: x * y + 1, torch.randn(3), torch.randn(3)))[0].body
    two = calls(check(lambda x, y: y * x + 1, torch.randn(5, 7), torch.randn(5, 7)))[0].body
    other = calls(check(lambda x, y: x * y + 2, torch.randn(3), torch.randn(3)))[0].body
    assert one == two and hash(one) == hash(two) and one != other
    square = calls(check(lambda x: x * x, torch.randn(3)))[0].body
    assert square != calls(check(lambda x, y: x * y, torch.randn(3), torch.randn(3)))[0].body


def test_signed_zeros_are_different_constants() -> None:
    schedule = check(lambda xs: (torch.copysign(xs[0], torch.tensor(0.0)), torch.copysign(xs[1], torch.tensor(-0.0))),
                     [torch.randn(3), torch.randn(4)])  # fmt: skip
    one, two = calls(schedule)
    assert one.body != two.body


def test_bodies_of_deep_and_shared_expressions() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = x * x + x  # 2 ** 40 paths
        for _ in range(900):
            x = x + 1
        return x

    (call,) = calls(check(function, torch.rand(3) * 0.01))
    assert hash(call.body) == hash(calls(compile_for_test(function, torch.rand(4))[0])[0].body)
    assert len(str(call.body)) < 100_000


def test_layouts_of_operands() -> None:
    def slots(*inputs: torch.Tensor) -> tuple[Any, ...]:
        (call,) = calls(check(lambda x, y: x + y, *inputs))
        return call.members[0].sizes, tuple(slot.strides for slot in call.body.slots)

    x, channels_last = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert slots(x, x) == ((120,), ((1,), (1,), (1,)))
    assert slots(channels_last, channels_last + 1) == ((120,), ((1,), (1,), (1,)))
    assert slots(torch.randn(4, 5).t(), torch.randn(4, 5).t()) == ((20,), ((1,), (1,), (1,)))
    assert slots(torch.randn(4, 5), torch.randn(5)) == ((4, 5), ((None, 1), (0, 1), (None, 1)))
    assert slots(torch.randn(4, 5), torch.randn(4, 1)) == ((4, 5), ((None, 1), (1, 0), (None, 1)))
    assert slots(torch.randn(4, 5), torch.randn(())) == ((20,), ((1,), (0,), (1,)))
    assert slots(torch.randn(4, 5), torch.randn(5, 4).t()) == ((4, 5), ((None, 1), (1, None), (None, 1)))
    assert slots(torch.randn(2, 3, 1, 5), torch.randn(2, 3, 1, 1)) == ((6, 5), ((None, 1), (1, 0), (None, 1)))
    assert slots(torch.randn(8, 8)[:4, :4], torch.randn(4, 4)) == ((4, 4), ((None, 1),) * 3)
    assert slots(torch.randn(8)[::2], torch.randn(4)) == ((4,), ((None,), (1,), (1,)))


def test_one_element_tensors_are_members_among_larger_ones() -> None:
    schedule = check(lambda xs: [x.mul_(2) for x in xs] and None, [torch.randn(s) for s in ((1,), (1, 1), (3, 4), (7,))])
    (call,) = calls(schedule)
    assert len(call.members) == 4 and call.body.ndim == 1


@pytest.mark.parametrize("seed", range(20))
def test_collapse_keeps_the_elements(seed: int) -> None:
    """Walking the collapsed loop touches the same tuples of elements as the original one."""
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 3]) for _ in range(rng.randint(1, 4)))
    operands = []
    for _ in range(3):
        order = list(range(len(shape)))
        if rng.random() < 0.5:
            rng.shuffle(order)
        strides, step = [0] * len(shape), 1
        for axis in order:
            strides[axis], step = step, step * shape[axis]
        if operands and rng.random() < 0.3:
            strides[rng.randrange(len(shape))] = 0
        operands.append(tuple(strides))
    collapsed = collapse(shape, tuple(operands), 0, ())
    assert _walk(collapsed.sizes, collapsed.strides) == _walk(shape, tuple(operands))


def _walk(sizes: tuple[int, ...], operands: tuple[tuple[int, ...], ...]) -> set[tuple[int, ...]]:
    indices = torch.cartesian_prod(*(torch.arange(n) for n in sizes)).reshape(-1, len(sizes)).tolist()
    return {tuple(sum(i * s for i, s in zip(index, strides, strict=True)) for strides in operands) for index in indices}


def test_loop_variables_survive_reordered_axes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * torch.arange(4).unsqueeze(1) + torch.arange(5)

    check(function, torch.randn(5, 4).t())
    check(function, torch.randn(4, 5))
    check(lambda x: x + torch.arange(1) * 2 + torch.arange(3).reshape(3, 1, 1), torch.randn(3, 1, 4))


# --- grouping and order ---


def test_equal_loops_of_different_sizes_are_one_call() -> None:
    schedule = check(lambda xs: [(x * 2).sin() for x in xs], [torch.randn(n, 3) for n in range(1, 6)])
    (call,) = calls(schedule)
    assert sorted(member.numel for member in call.members) == [3, 6, 9, 12, 15]


def test_different_numbers_and_types_are_different_calls() -> None:
    def function(xs: list[torch.Tensor], a: float, b: float) -> None:
        for k, x in enumerate(xs):
            x.mul_(a if k % 2 else b)

    schedule = check(function, [torch.randn(n) for n in range(2, 8)], 0.5, 2.0)
    assert sorted(len(call.members) for call in calls(schedule)) == [3, 3]
    xs = [torch.randn(n).to(t) for n in (3, 4) for t in (torch.float32, torch.bfloat16)]
    schedule = check(lambda xs: [x.mul_(2) for x in xs] and None, xs)
    assert sorted(len(call.members) for call in calls(schedule)) == [2, 2]


def test_members_do_not_depend_on_each_other() -> None:
    """Equal loops that use each other's results run one after the other."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.tanh(x @ w + 1)
        return x

    schedule = check(function, torch.randn(3, 3), torch.randn(3, 3), ulps=64)
    bodies = {call.body for call in calls(schedule)}
    assert len(calls(schedule)) == 3 and len(bodies) == 1


def test_an_input_is_stored_after_all_loops_that_read_it() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = (x.t() * 2).sum(0)
        x.add_(y)
        return rows, x @ y

    check(function, torch.randn(4, 4), torch.randn(4, 4))


def test_steps_of_a_program_given_by_hand() -> None:
    """A loop with several stores, and an input that is stored to before its reader in program order."""
    x, y, t = buffer("x", (4,)), buffer("y", (4,), position=1), buffer("t", (4,), "temp")
    double = Op("add", (Load(whole(x), torch.float32), Load(whole(x), torch.float32)), torch.float32)
    program = Program(
        inputs=[x, y],
        steps=[
            Loop((4,), [Store(whole(x), Const(1.0, torch.float32)), Store(whole(t), double)], CPU),
            Loop((4,), [Store(whole(y), Load(whole(t), torch.float32))], CPU),
        ],
    )
    (call,) = calls(fused(program))
    assert [slot.access for slot in call.body.slots] == ["rw", "w"]
    assert not fused(program).temps


def test_a_shifted_store_is_staged() -> None:
    """x[i] = x[3 - i] reads what it overwrites."""
    x = buffer("x", (4,))
    program = Program(inputs=[x], steps=[Loop((4,), [Store(whole(x), Load(Access(x, 3, (-1,)), torch.float32))], CPU)])
    schedule = fused(program)
    first, second = calls(schedule)
    assert [b.kind for b in first.members[0].buffers] == ["input", "temp"]
    assert [b.kind for b in second.members[0].buffers] == ["temp", "input"]
    assert len(schedule.temps) == 1


def test_index_expressions() -> None:
    out = buffer("out", (2, 3), "output")
    value = Op("cast", (Op("add", (Index(0), Index(1)), torch.int64),), torch.float32)
    program = Program(steps=[Loop((2, 3), [Store(whole(out), value)], CPU)], outputs=[out])
    (call,) = calls(fused(program))
    assert call.members[0].sizes == (2, 3) and str(call.body).endswith("s0 = f32(add(i0, i1))")


def test_many_unlike_loops_are_split_into_kernels_of_limited_size() -> None:
    def function(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return [x + float(k) for k, x in enumerate(xs)]

    schedule = check(function, [torch.randn(3) for _ in range(100)])
    assert 4 <= len(calls(schedule)) <= 12
    assert all(len(call.body.slots) <= 40 for call in calls(schedule))
