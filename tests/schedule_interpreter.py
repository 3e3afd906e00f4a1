"""Runs schedules on CPU tensors with PyTorch, one member after the other: what code generators must agree with.

`check(function, *inputs)` compares a function in eager mode with its graph, lowered, fused and interpreted.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from cpu_runner import Data, Strided, run, strided
from expr_interpreter import COMPARISONS, Environment, evaluate_body
from quickfuse.differentiate.expand import expand
from quickfuse.ir.expr import HALF_TYPES, PICK, SCALAR_OPS, Const, Op
from quickfuse.ir.kernel import KernelBody, KernelCall, Member, Schedule, walk
from quickfuse.ir.loop import Buffer, Draw, Extern, HostScalar, Program, View
from quickfuse.ir.philox import WIDTHS
from quickfuse.ir.target import CpuTarget
from quickfuse.lower import lower
from quickfuse.schedule import launches as scheduling
from quickfuse.schedule import schedule as make_schedule
from quickfuse.verify import copied, verify
from trace_helper import copy_inputs, flatten, trace


@contextlib.contextmanager
def schedules_made() -> Iterator[list[Schedule]]:
    """Collect the schedules that are made meanwhile."""
    made: list[Schedule] = []

    def recorded(*args: Any, **kwargs: Any) -> Schedule:
        made.append(Schedule(*args, **kwargs))
        return made[-1]

    scheduling.Schedule = recorded  # type: ignore[assignment,misc]
    try:
        yield made
    finally:
        scheduling.Schedule = Schedule  # type: ignore[misc]


def check_types(body: KernelBody) -> None:
    """Assert what `ir/expr.py` says of the types of operations."""
    assert all(store.value.dtype is body.slots[store.slot].dtype for store in body.stores if store.slot >= 0)
    for root in body.roots:
        for node in walk(root):
            if isinstance(node, Const):
                assert node.dtype not in HALF_TYPES
            if not isinstance(node, Op) or node.name == "cast":
                continue
            if node.name == PICK:
                assert [arg.dtype for arg in node.args] == [node.dtype, torch.int64, torch.bool]
                continue
            if node.name in WIDTHS:
                assert [arg.dtype for arg in node.args] == [torch.int64, torch.int64, torch.int32, torch.int32]
                continue
            types = [arg.dtype for arg in node.args]
            assert len(types) == SCALAR_OPS[node.name][0]
            if node.name == "where":
                assert types.pop(0) is torch.bool
            else:
                assert HALF_TYPES.isdisjoint(types), f"arithmetic in 16 bits: {node}"
            assert len(set(types)) == 1, (node.name, types)
            assert node.dtype is (torch.bool if node.name in COMPARISONS else types[0])


class RunInEager(Exception):
    """Raised where a kernel found that the graph is to run in eager mode, which raises an exception."""


class Interpreter:
    """Runs one schedule: `Interpreter(schedule, names)(*inputs)` with the graph's inputs, whose names are `names`."""

    def __init__(self, schedule: Schedule, names: Sequence[str]) -> None:
        self.schedule = schedule
        self.names = names

    def __call__(self, *inputs: Any) -> list[Any]:
        self.memory: dict[Buffer, torch.Tensor] = {}
        self.numbers: dict[str, Any] = {"math": math}
        program = self.schedule.program
        for name, buffer, value in zip(self.names, program.inputs, inputs, strict=True):
            if buffer is None:
                self.numbers[name] = value
            else:
                self.memory[buffer] = value
        for scalar in program.host_scalars:
            self.numbers[scalar.name] = eval(scalar.code, {}, self.numbers)
        self._allocate()
        for step in self.schedule.steps:
            if isinstance(step, KernelCall):
                self._run(step)
            else:
                self._call(step)
        if program.flag is not None and bool(self.memory[program.flag]):
            raise RunInEager
        made = {id(value): self._output(value) for value in program.outputs}
        return [made[id(value)] for value in program.outputs]

    def _allocate(self) -> None:
        outputs = [v.buffer if isinstance(v, View) else v for v in self.schedule.program.outputs]
        called = {b for step in self.schedule.steps if isinstance(step, Extern) for b in step.outputs}
        if self.schedule.program.flag is not None:
            self.memory[self.schedule.program.flag] = torch.zeros((), dtype=torch.bool)
        for buffer in [*self.schedule.temps, *(b for b in outputs if isinstance(b, Buffer))]:
            if buffer in self.memory or buffer in called:
                continue
            meta = buffer.meta
            memory = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype)
            # Contents that nobody has written must not look right by accident.
            self.memory[buffer] = memory.fill_(True if meta.dtype is torch.bool else 77)

    def _run(self, call: KernelCall) -> None:
        check_types(call.body)
        scalars = [self.numbers[s.name] if s.value is None else s.value for s in call.scalars]
        pending = []
        for member in call.members:
            self._check_slots(call.body, member)
            views = [self._element_view(member, k) for k in range(len(member.buffers))]
            stored = evaluate_body(call.body, Environment(member.sizes, views, scalars))
            for slot, value in stored.items():
                if call.body.slots[slot].access != "flag":
                    pending.append((_once_a_row(call.body, slot, views[slot]), value))
                elif value:
                    self.memory[member.buffers[slot]].fill_(True)
        # Members run at the same time: none may see what another one has stored.
        for tensor, value in pending:
            tensor.copy_(value)

    def _element_view(self, member: Member, slot: int) -> torch.Tensor | Strided:
        buffer = member.buffers[slot]
        if buffer.kind == "flag":  # on a GPU, each kernel stops by itself
            self.memory.setdefault(buffer, torch.zeros((), dtype=torch.bool))
        memory = self.memory[buffer]
        return strided(memory, member.offsets[slot], member.sizes, member.strides[slot])

    @staticmethod
    def _check_slots(body: KernelBody, member: Member) -> None:
        assert len(body.slots) == len(member.buffers) == len(member.strides) == len(member.offsets)
        assert body.ndim == len(member.sizes)
        for slot, buffer, strides in zip(body.slots, member.buffers, member.strides, strict=True):
            assert slot.dtype is buffer.meta.dtype
            assert all(known is None or known == s for known, s in zip(slot.strides, strides, strict=True))
        for k in [k for k, slot in enumerate(body.slots) if slot.access != "r"]:
            others = [j for j, b in enumerate(member.buffers) if b is member.buffers[k] and j != k]
            assert all(_elements(member, k).isdisjoint(_elements(member, j)) for j in others)
        written = {store.slot for store in body.stores if store.slot >= 0}
        assert written == {k for k, s in enumerate(body.slots) if s.access != "r"}

    def _call(self, step: Extern) -> None:
        result = step.target(*self._plain(step.args), **self._plain(step.kwargs))
        results = result if isinstance(result, (list, tuple)) else [result]
        if isinstance(step, Draw):
            results = [torch.tensor(number) for number in results]
        for buffer, tensor in zip(step.outputs, results, strict=True):
            if tensor is None:  # a gradient that is not asked for
                continue
            assert (buffer.meta.shape, buffer.meta.stride) == (tuple(tensor.shape), tensor.stride())
            self.memory[buffer] = tensor

    def _plain(self, value: Any) -> Any:
        if isinstance(value, (Buffer, View)):
            return self._output(value)
        if isinstance(value, HostScalar):
            return self.numbers[value.name]
        if isinstance(value, (list, tuple)):
            return type(value)(self._plain(v) for v in value)
        if isinstance(value, dict):
            return {k: self._plain(v) for k, v in value.items()}
        return value

    def _output(self, value: Any) -> Any:
        if isinstance(value, Buffer):
            return self.memory[value]
        if isinstance(value, View):
            base = self.memory[value.buffer]
            return base.as_strided(value.shape, value.stride, base.storage_offset() + value.offset)
        return self.numbers[value.name] if isinstance(value, HostScalar) else value


class Compiled(Interpreter):
    """Runs the kernels that are emitted for the CPU."""

    threads = 1
    target: CpuTarget | None = None

    def _run(self, call: KernelCall) -> None:
        members = []
        for member in call.members:
            views = [self._element_view(member, k) for k in range(len(member.buffers))]
            members.append(Data(member.sizes, views))
        scalars = [self.numbers[s.name] if s.value is None else s.value for s in call.scalars]
        run(call.body, members, scalars, n_threads=self.threads, target=self.target)


def _elements(member: Member, slot: int) -> set[int]:
    """Where a slot's elements are in its buffer."""
    found = {member.offsets[slot]}
    for size, stride in zip(member.sizes, member.strides[slot], strict=True):
        found = {place + stride * k for place in found for k in range(size)}
    return found


def _once_a_row(body: KernelBody, slot: int, view: torch.Tensor) -> torch.Tensor:
    """Where a store that happens once a row goes to: one element along each reduced axis."""
    if body.once_a_row(slot):
        for axis in body.inner:
            view = view.narrow(axis, 0, 1)
    return view


def fused(program: Program) -> Schedule:
    """The schedule of a program, verified."""
    asked = copied(program)
    schedule = make_schedule(program)
    verify(asked, schedule)
    return schedule


def compile_for_test(function: Callable[..., Any], *inputs: Any) -> tuple[Schedule, Interpreter]:
    """A function's schedule, and the interpreter that runs it on flattened inputs. The inputs are left alone."""
    gm = trace(function, *copy_inputs(inputs))
    schedule = fused(lower(gm.graph, (), expand))
    names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    return schedule, Interpreter(schedule, names)


def check(
    function: Callable[..., Any], *inputs: Any, exact: bool = False, ulps: float = 4, emitted: bool = False
) -> Schedule:
    """Assert that the compiled function returns and changes the same as the function itself.

    Strides and types are compared too, and which outputs are inputs or share memory with others. With `emitted` the
    emitted kernels are run, too.
    """
    schedule, interpreter = compile_for_test(function, *inputs)
    _compare(function, inputs, interpreter, exact, ulps)
    if emitted:
        _compare(function, inputs, Compiled(schedule, interpreter.names), exact, ulps)
    return schedule


def _compare(function: Callable[..., Any], inputs: Any, interpreter: Interpreter, exact: bool, ulps: float) -> None:
    expected_inputs, actual_inputs = copy_inputs(inputs), copy_inputs(inputs)
    with torch.no_grad():
        expected = flatten(function(*expected_inputs))
        actual = interpreter(*flatten(actual_inputs))
    assert len(expected) == len(actual)
    before, after = flatten(expected_inputs) + expected, flatten(actual_inputs) + actual
    for k, (e, a) in enumerate(zip(before, after, strict=True)):
        if isinstance(e, torch.Tensor):
            assert_same(a, e, exact=exact, ulps=ulps)
            assert _partners(k, before) == _partners(k, after), "outputs share memory with other tensors than in eager"
        else:
            assert a == e


def _partners(k: int, values: list[Any]) -> list[tuple[int, bool]]:
    """Which tensors share memory with tensor k, and which are that very tensor."""
    mine = values[k].untyped_storage().data_ptr()
    return [
        (j, other is values[k])
        for j, other in enumerate(values)
        if isinstance(other, torch.Tensor) and other.numel() and other.untyped_storage().data_ptr() == mine
    ]


def assert_same(actual: torch.Tensor, expected: torch.Tensor, *, exact: bool = False, ulps: float = 4) -> None:
    assert actual.dtype is expected.dtype, (actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    if expected.numel() > 1:
        assert actual.stride() == expected.stride(), (actual.stride(), expected.stride())
    if exact or not expected.dtype.is_floating_point:
        assert torch.equal(torch.isnan(actual), torch.isnan(expected)) if expected.is_floating_point() else True
        same = torch.nan_to_num(actual.double()) == torch.nan_to_num(expected.double())
        assert bool(same.all()), (actual, expected)
        return
    eps = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=ulps * eps, atol=ulps * eps, equal_nan=True)
