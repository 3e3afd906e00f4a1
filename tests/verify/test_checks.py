"""What is checked besides values: what runs at a time, the order of calls and flags, and memory that is shared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernel_bodies import pointwise_body
from quickfuse.differentiate.expand import expand
from quickfuse.ir.expr import Const, Expr, Load, Op, Place, pick
from quickfuse.ir.kernel import KernelCall, Member, Schedule, Slot, SlotLoad, SlotPlace, StoreKind
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store
from quickfuse.ir.values import TensorMeta, contiguous_stride
from quickfuse.lower import lower
from quickfuse.schedule import schedule as make_schedule
from quickfuse.verify import Place as MemoryPlace
from quickfuse.verify import ScheduleError, check_placement, copied, verify
from trace_helper import copy_inputs, trace

CPU, F32 = torch.device("cpu"), torch.float32
X = torch.Tensor


def buffer(name: str, count: int, kind: str = "output") -> Buffer:
    return Buffer(name, TensorMeta(F32, (count,), contiguous_stride((count,)), CPU), kind, 0)


def element(of: Buffer, offset: int = 0) -> Access:
    return Access(of, offset, (1,))


def exp(x: Expr) -> Op:
    return Op("exp", (x,), F32)


def store(count: int, access: Access, value: Expr) -> Loop:
    return Loop((count,), [Store(access, value)], CPU)


def kernel(stores: list[tuple[int, Expr]], modes: str, *members: tuple[int, list[tuple[Buffer, int]]]) -> KernelCall:
    """A kernel over one axis; `modes` are the accesses of its slots, and members have a size and operands with offsets."""
    slots = tuple([Slot(F32, (1,), mode) for mode in modes.split()])
    body = pointwise_body("cpu", 1, slots, (), stores)
    return KernelCall(body, [
        Member((n,), tuple([b for b, _ in operands]), tuple([o for _, o in operands]), ((1,),) * len(operands))
        for n, operands in members
    ], [], CPU)  # fmt: skip


def kind_of(program: Program, steps: list[Any], temps: list[Buffer] | None = None) -> str:
    """The kind of what is wrong with a schedule; "" if nothing is."""
    try:
        verify(program, Schedule(program, steps, temps or []))
    except ScheduleError as error:
        return error.kind
    return ""


S0, S1 = SlotLoad(0, F32), SlotLoad(1, F32)


# --- what runs at a time ---


def test_members_must_not_need_each_other() -> None:
    """One after the other, in this order, they would do what the program says."""
    x, t, y = buffer("x", 8, "input"), buffer("t", 8, "temp"), buffer("y", 8)
    loops = [store(8, element(t), exp(Load(element(x), F32))), store(8, element(y), exp(Load(element(t), F32)))]
    program = Program([x], [], [*loops], [y])
    one, two = (8, [(x, 0), (t, 0)]), (8, [(t, 0), (y, 0)])
    stores: list[tuple[int, Expr]] = [(1, exp(S0))]
    assert kind_of(program, [kernel(stores, "r w", one), kernel(stores, "r w", two)], [t]) == ""
    assert kind_of(program, [kernel(stores, "r w", one, two)], [t]) == "race"
    assert kind_of(program, [kernel(stores, "r w", two), kernel(stores, "r w", one)], [t]) == "unwritten"


def test_elements_must_not_need_each_other() -> None:
    """As `x[:-1] = x[1:]` in a loop."""
    x = buffer("x", 8, "input")
    program = Program([x], [], [store(7, element(x), exp(Load(element(x, 1), F32)))], [x])
    stores: list[tuple[int, Expr]] = [(1, exp(S0))]
    assert kind_of(program, [kernel(stores, "r w", (7, [(x, 1), (x, 0)]))]) == "race"


def test_an_element_must_not_be_known_by_two_operands() -> None:
    x = buffer("x", 8, "input")
    program = Program([x], [], [store(8, element(x), exp(Load(element(x), F32)))], [x])
    assert kind_of(program, [kernel([(0, exp(S0))], "rw", (8, [(x, 0)]))]) == ""
    assert kind_of(program, [kernel([(1, exp(S0))], "r w", (8, [(x, 0), (x, 0)]))]) == "race"


def test_parts_of_a_buffer_may_be_stored_at_a_time() -> None:
    x, y = buffer("x", 8, "input"), buffer("y", 8)
    program = Program([x], [], [store(8, element(y), exp(Load(element(x), F32)))], [y])
    stores: list[tuple[int, Expr]] = [(1, exp(S0))]
    one, two = (5, [(x, 0), (y, 0)]), (3, [(x, 5), (y, 5)])
    assert kind_of(program, [kernel(stores, "r w", one, two)]) == ""
    assert kind_of(program, [kernel(stores, "r w", one, (4, [(x, 4), (y, 4)]))]) == "race"
    assert kind_of(program, [kernel(stores, "r w", one), kernel(stores, "r w", (4, [(x, 4), (y, 4)]))]) == "twice"
    assert kind_of(program, [kernel(stores, "r w", one)]) == "missing"


def test_computed_offsets_must_not_lead_to_what_is_stored() -> None:
    x = buffer("x", 8, "input")
    behind = Const(4, torch.int64), Const(True, torch.bool)
    for offset, wanted in ((behind[0], ""), (Const(1, torch.int64), "race")):
        value = pick(Place(element(x), F32), offset, behind[1])
        program = Program([x], [], [store(4, element(x), value)], [x])
        moved = Op("pick", (SlotPlace(0, F32), offset, behind[1]), F32)
        assert kind_of(program, [kernel([(1, moved)], "r w", (4, [(x, 0), (x, 0)]))]) == wanted


def test_computed_offsets_are_within_the_buffer() -> None:
    x, y = buffer("x", 8, "input"), buffer("y", 8)
    sure = Const(True, torch.bool)
    good, bad = (Op("pick", (SlotPlace(0, F32), Const(k, torch.int64), sure), F32) for k in (0, 1))
    program = Program([x], [], [store(8, element(y), Load(element(x), F32))], [y])
    assert kind_of(program, [kernel([(1, good)], "r w", (8, [(x, 0), (y, 0)]))]) == ""
    assert kind_of(program, [kernel([(1, bad)], "r w", (8, [(x, 0), (y, 0)]))]) == "bounds"
    assert kind_of(program, [kernel([(1, S0)], "r w", (8, [(x, 1), (y, 0)]))]) == "bounds"
    assert kind_of(program, [kernel([(1, S0)], "r w", (9, [(x, 0), (y, 0)]))]) == "bounds"


# --- the order of calls and flags ---


def scheduled(function: Callable[..., Any], *inputs: Any) -> tuple[Program, list[Any], list[Buffer]]:
    program = lower(trace(function, *copy_inputs(inputs)).graph, expand=expand)
    asked = copied(program)
    schedule = make_schedule(program)
    return asked, schedule.steps, schedule.temps


def moved(steps: list[Any], which: Callable[[Any], bool], before: Callable[[Any], bool]) -> list[Any]:
    """The first such step before the first one of another kind."""
    one = next(step for step in steps if which(step))
    rest = [step for step in steps if step is not one]
    at = next(k for k, step in enumerate(rest) if before(step))
    return [*rest[:at], one, *rest[at:]]


def changes_inputs(step: Any) -> bool:
    return isinstance(step, KernelCall) and any(
        m.buffers[k].kind == "input" for m in step.members for k, slot in enumerate(step.body.slots) if "w" in slot.access
    )


def sets_flags(step: Any) -> bool:
    return isinstance(step, KernelCall) and any(slot.access == "flag" for slot in step.body.slots)


def test_no_input_changes_before_a_call_that_may_fail() -> None:
    def function(x: X, y: X) -> X:
        x.mul_(2)
        return torch.cholesky_inverse(y)

    program, steps, temps = scheduled(function, torch.randn(3), torch.eye(3))
    assert any(step.may_fail for step in steps if isinstance(step, Extern))
    assert kind_of(program, steps, temps) == ""
    assert kind_of(program, moved(steps, changes_inputs, lambda step: isinstance(step, Extern)), temps) == "order"
    assert kind_of(program, [step for step in steps if not isinstance(step, Extern)], temps) == "missing"


def test_no_input_changes_before_a_flag() -> None:
    def function(x: X, y: X, k: X) -> X:
        x.mul_(2)
        return y[k] + 1

    program, steps, temps = scheduled(function, torch.randn(3), torch.randn(3, 5), torch.tensor([0, 2]))
    assert kind_of(program, steps, temps) == ""
    assert kind_of(program, moved(steps, changes_inputs, sets_flags), temps) == "order"


def test_flags_are_set_under_the_same_conditions() -> None:
    program, steps, temps = scheduled(lambda y, k: y[k] + 1, torch.randn(3, 5), torch.tensor([0, 2]))
    number = next(k for k, step in enumerate(steps) if sets_flags(step))
    call = steps[number]
    flag = next(store for store in call.body.stores if store.kind is StoreKind.FLAG)
    rest = tuple([store for store in call.body.stores if store is not flag])
    for wrong in (Op("not", (flag.value,), torch.bool), Const(False, torch.bool)):
        body = replace(call.body, stores=(replace(flag, value=wrong), *rest))
        assert kind_of(program, [*steps[:number], replace(call, body=body), *steps[number + 1 :]], temps) == "value"


def test_random_numbers_are_drawn_in_order() -> None:
    x, y = buffer("x", 4), buffer("y", 4)
    one = Extern(torch.rand, (4,), {}, [x], draws=True)
    two = Extern(torch.rand, (4,), {}, [y], after=one, draws=True)
    program = Program([], [], [one, two], [x, y])
    assert kind_of(program, [one, two]) == ""
    assert kind_of(program, [two, one]) == "order"
    assert kind_of(program, [one]) == "missing"
    assert kind_of(program, [one, two, two]) == "twice"
    unordered = Program([], [], [replace(one), other := Extern(torch.rand, (4,), {}, [y], draws=True)], [x, y])
    assert kind_of(unordered, [other, *unordered.steps[:1]]) == "value"


# --- reductions ---


def reduction(shape: tuple[int, ...], result: Access, value: Expr, combine: str) -> Loop:
    return Loop(shape, [Store(result, value, StoreKind.REDUCE, combine)], CPU)


def test_reductions_may_be_done_in_parts() -> None:
    x, part, y = buffer("x", 24, "input"), buffer("part", 6, "temp"), buffer("y", 1)
    whole = reduction((24,), Access(y, 0, (0,)), exp(Load(element(x), F32)), "add")
    parts = reduction((6, 4), Access(part, 0, (1, 0)), exp(Load(Access(x, 0, (1, 6)), F32)), "add")
    for combine, wanted in (("add", ""), ("maximum", "value")):
        rest = reduction((6,), Access(y, 0, (0,)), Load(element(part), F32), combine)
        schedule = make_schedule(Program([x], [], [parts, rest], [y]))
        assert kind_of(Program([x], [], [whole], [y]), schedule.steps, schedule.temps) == wanted
    rest = reduction((5,), Access(y, 0, (0,)), Load(element(part), F32), "add")
    schedule = make_schedule(Program([x], [], [parts, rest], [y]))
    assert kind_of(Program([x], [], [whole], [y]), schedule.steps, schedule.temps) == "value"


# --- programs ---


def test_programs_must_have_one_meaning() -> None:
    x, t, y = buffer("x", 8, "input"), buffer("t", 8, "temp"), buffer("y", 8)
    fill, use = store(8, element(t), Load(element(x), F32)), store(8, element(y), Load(element(t), F32))
    for steps in ([use, fill], [fill, fill, use], [store(9, element(t), Const(0.0, F32)), use]):
        assert kind_of(Program([x], [], list(steps), [y]), []) == "program"


# --- memory ---


@pytest.fixture
def chain() -> tuple[Schedule, list[Buffer]]:
    """x -> a -> b -> c -> y, a kernel each."""
    x, y = buffer("x", 8, "input"), buffer("y", 8)
    a, b, c = (buffer(name, 8, "temp") for name in "abc")
    chain = [x, a, b, c, y]
    steps: list[Any] = [
        kernel([(1, exp(S0))], "r w", (8, [(one, 0), (two, 0)])) for one, two in zip(chain, chain[1:], strict=False)
    ]
    loops: list[Any] = [
        store(8, element(two), exp(Load(element(one), F32))) for one, two in zip(chain, chain[1:], strict=False)
    ]
    schedule = Schedule(Program([x], [], loops, [y]), steps, [a, b, c])
    verify(schedule.program, schedule)
    return schedule, [a, b, c]


def test_memory_may_be_shared_one_after_the_other(chain: tuple[Schedule, list[Buffer]]) -> None:
    schedule, (a, b, c) = chain
    check_placement(schedule, {a: MemoryPlace("m", 0), b: MemoryPlace("m", 32), c: MemoryPlace("m", 0)})
    check_placement(schedule, {a: MemoryPlace("m", 0), b: MemoryPlace("n", 0), c: MemoryPlace("m", 0, size=32)})


@pytest.mark.parametrize("wrong", [
    {"b": MemoryPlace("m", 0)},  # what is read and written by one step
    {"b": MemoryPlace("m", 28)},  # a part
    {"c": MemoryPlace("m", 0, 0, 3)},  # given memory too early
    {"a": MemoryPlace("m", 0, 0, 0)},  # let go too early
    {"b": MemoryPlace("m", 32, size=60)},
    {"b": MemoryPlace("m", -4)},
])  # fmt: skip
def test_memory_is_not_shared_at_a_time(chain: tuple[Schedule, list[Buffer]], wrong: dict[str, MemoryPlace]) -> None:
    schedule, buffers = chain
    places = {"a": MemoryPlace("m", 0), "b": MemoryPlace("m", 32), "c": MemoryPlace("m", 0), **wrong}
    with pytest.raises(ScheduleError) as raised:
        check_placement(schedule, {one: places[one.name] for one in buffers})
    assert raised.value.kind == "memory"


# --- sums with zero ---


def zero(negative: bool = False) -> Const:
    return Const(-0.0 if negative else 0.0, F32)


def plus(one: Expr, other: Expr) -> Op:
    return Op("add", (one, other), F32)


@pytest.mark.parametrize(
    ("program", "kernels", "wrong"),
    [
        (lambda x: plus(plus(x, zero()), zero()), lambda x: plus(x, zero()), ""),
        (lambda x: plus(plus(zero(), x), zero()), lambda x: plus(x, zero()), ""),
        (lambda x: plus(plus(x, Const(2.0, F32)), zero()), lambda x: plus(x, Const(2.0, F32)), ""),
        (lambda x: plus(x, zero()), lambda x: x, "value"),
        (lambda x: plus(exp(x), zero()), exp, "value"),
        (lambda x: plus(plus(x, zero(negative=True)), zero()), lambda x: plus(x, zero(negative=True)), "value"),
        (lambda x: plus(plus(x, zero()), Const(1.0, F32)), lambda x: plus(x, zero()), "value"),
    ],
)
def test_zero_is_only_left_out_of_sums_that_are_never_negative_zero(
    program: Callable[[Expr], Expr], kernels: Callable[[Expr], Expr], wrong: str
) -> None:
    a, out = buffer("a", 4, "input"), buffer("out", 4)
    whole = Program([a], [], [store(4, element(out), program(Load(element(a), F32)))], [out])
    assert kind_of(whole, [kernel([(1, kernels(SlotLoad(0, F32)))], "r w", (4, [(a, 0), (out, 0)]))]) == wrong
