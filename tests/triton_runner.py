"""Runs schedules whose kernels are for a GPU on CPU tensors, through Triton's interpreter in a child process.

`check(function, *inputs)` compares a function in eager mode with its graph, lowered as if its tensors were on a GPU, and
emitted; `compiled(schedule)` compiles its kernels for a GPU, which need not be there.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cpu_runner import Strided
from quickfuse.differentiate.expand import expand
from quickfuse.emit.triton import emit
from quickfuse.ir.kernel import Form, KernelBody, KernelCall, Schedule, row_template
from quickfuse.launch.cuda_compile import (
    CompiledCubin,
    LaunchShape,
    argument_types,
    compile_kernel,
    fits_arguments,
    unaligned_step,
)
from quickfuse.launch.cuda_shapes import choose, program_grid, program_table
from quickfuse.lower import lower
from schedule_interpreter import Interpreter, assert_same, fused
from trace_helper import copy_inputs, flatten, on_gpu, trace

U8 = torch.uint8

#: A GPU with few multiprocessors, so that small work is shared, too.
MULTIPROCESSORS = 4


class Child:
    """The child process that runs kernels (it must choose the interpreter before it imports Triton)."""

    def __init__(self) -> None:
        source = Path(__file__).resolve().parents[1] / "src"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "emit" / "triton_interpreter.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "ignore"},
        )

    def run(self, **job: object) -> list[np.ndarray]:
        assert self._process.stdin and self._process.stdout
        pickle.dump(job, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self._process.communicate()


@functools.cache
def child() -> Child:
    """The child process of this one."""
    made = Child()
    atexit.register(made.close)
    return made


def shape_of(call: KernelCall, multiprocessors: int = MULTIPROCESSORS) -> LaunchShape:
    """How a call would be launched."""
    return choose(call.body, call.members, multiprocessors)


def looped(shape: LaunchShape) -> LaunchShape:
    """The same with loops over small tiles."""
    if not shape.columns:
        return shape
    form = Form.LOOPED if shape.form is Form.WHOLE else shape.form
    return replace(shape, form=form, columns=min(shape.columns, 4), block=min(shape.block, 8))


def constants(body: KernelBody, shape: LaunchShape) -> dict[str, Any]:
    if shape.columns:
        return {"BLOCK": shape.block, "COLUMNS": shape.columns, "ALIGN": int(shape.access), "INDEX": "int32"}
    tail = {"TAIL": unaligned_step(body, shape), "ALIGN": bool(shape.access)} if body.ndim else {}
    return {"BLOCK": shape.block, **tail, **({"INDEX": "int32"} if body.ndim > 1 else {})}


def work_and_grid(call: KernelCall, shape: LaunchShape) -> tuple[Any, tuple[int, ...]]:
    """What says which program does what: the number of members where bodies have no axes, a null pointer, or a table."""
    if call.body.ndim == 0:
        return len(call.members), (-(-len(call.members) // shape.block),)
    if grid := program_grid(call.body, call.members, shape):
        return 0, grid
    table = program_table(call.body, call.members, shape)
    return table, (len(table),)


class Emitted(Interpreter):
    """Runs the kernels that are emitted for a GPU, with the launch shapes that `change` makes of the usual ones; with
    `tables`, also where a call has one member."""

    def __init__(
        self, schedule: Schedule, names: Sequence[str], change: Callable[[LaunchShape], LaunchShape] = lambda shape: shape,
        tables: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(schedule, names)
        self.change = change
        self.tables = tables

    def _run(self, call: KernelCall) -> None:
        if call.device.type != "cuda":
            super()._run(call)
            return
        body, shape = call.body, self.change(shape_of(call))
        values = np.zeros((len(call.members), body.value_words), dtype=np.int64)
        memories: dict[int, tuple[int, torch.Tensor]] = {}
        addresses = []
        for m, member in enumerate(call.members):
            for k, (slot, buffer, offset) in enumerate(zip(body.slots, member.buffers, member.offsets, strict=True)):
                if buffer.kind == "flag":
                    continue
                memory = self.memory[buffer]
                if slot.by_value:
                    word = values[m, body.value_word(k) :][:1]
                    word.view(np.float64 if slot.dtype == torch.float64 else np.int64)[0] = memory.item()
                    continue
                storage = memory.untyped_storage()
                number, _ = memories.setdefault(storage.data_ptr(), (len(memories), memory))
                place = (memory.storage_offset() + offset) * memory.itemsize
                addresses.append((m, body.slot_word(k), number, place))
        everything = [torch.empty(0, dtype=U8).set_(memory.untyped_storage()) for _, memory in memories.values()]
        work, grid = work_and_grid(call, shape)
        in_arguments = fits_arguments(call, False) and not self.tables
        arguments = argument_types(body, in_arguments=True).items()
        types = {first: [kind for name, kind in arguments if name[0] == first] for first in "as"}
        out = child().run(
            source=emit(body, "kernel", shape.form, in_arguments),
            in_arguments=in_arguments,
            number_types=types["s"],
            name="kernel",
            buffers=[memory.numpy().copy() for memory in everything],
            rows=np.array([row_template(body, member) for member in call.members], dtype=np.int64).reshape(
                len(call.members), body.row_words
            ),
            addresses=addresses,
            values=values,
            work=work,
            grid=grid,
            scalars=list(zip(types["a"], [self.numbers[s.name] for s in call.scalars], strict=True)),
            constants=constants(body, shape),
        )
        for memory, after in zip(everything, out, strict=True):
            memory.copy_(torch.from_numpy(after))


def compiled(schedule: Schedule, multiprocessors: int = 132) -> list[CompiledCubin]:
    """The kernels of a schedule for a GPU, compiled for compute capability 9.0."""
    made = []
    for call in kernels(schedule):
        if call.device.type != "cuda":
            continue
        shape = shape_of(call, multiprocessors)
        in_arguments = fits_arguments(call, False)
        source = emit(call.body, "kernel", shape.form, in_arguments)
        made.append(compile_kernel(source, call.body, "kernel", capability=90, shape=shape, in_arguments=in_arguments))
    return made


def kernels(schedule: Schedule) -> list[KernelCall]:
    """The kernel calls of a schedule."""
    return [step for step in schedule.steps if isinstance(step, KernelCall)]


def gpu_schedule(function: Callable[..., Any], *inputs: Any, on_cpu: tuple[str, ...] = ()) -> tuple[Schedule, list[str]]:
    """The verified schedule of a function of tensors on a GPU, and the names of its inputs."""
    gm = on_gpu(trace(function, *copy_inputs(inputs)), on_cpu)
    return fused(lower(gm.graph, (), expand)), [node.name for node in gm.graph.nodes if node.op == "placeholder"]


def check(
    function: Callable[..., Any], *inputs: Any, calls: int = 0, launches: int = 0, ulps: float = 16, tiles: bool = True
) -> Schedule:
    """Assert that a function computes the same by kernels for a GPU as in eager mode, by so many calls of operators and, if
    that is given, so many launches. With `tiles`, also where rows are gone through in small tiles."""
    schedule, names = gpu_schedule(function, *inputs)
    found = len(schedule.steps) - len(kernels(schedule))
    assert found == calls, f"{found} calls of operators:\n{schedule}"
    assert not launches or len(kernels(schedule)) == launches, f"{len(kernels(schedule))} launches:\n{schedule}"
    expected = copy_inputs(inputs)
    results = flatten(function(*expected))
    for change in (lambda shape: shape, looped) if tiles else (lambda shape: shape,):
        actual = copy_inputs(inputs)
        made = Emitted(schedule, names, change, tables=change is looped)(*flatten(actual))
        for a, e in zip([*flatten(actual), *made], [*flatten(expected), *results], strict=True):
            if isinstance(e, torch.Tensor):
                assert_same(a, e, ulps=ulps)
    return schedule


__all__ = ["Child", "Emitted", "Strided", "check", "compiled", "gpu_schedule", "kernels", "looped", "shape_of"]
