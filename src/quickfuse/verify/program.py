"""Runs a lowered program on hashes, with the meaning that `ir/loop.py` gives it: what a schedule is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quickfuse.ir.loop import Buffer, Extern, Loop, Program

from .calls import run_call
from .execute import Execution
from .loops import Loops
from .memory import Contents, Memory, Region, Shape
from .nest import Assign, Nest, Phase, Value
from .violation import ScheduleError, shortened


def copied(program: Program) -> Program:
    """A program that stays as it is when the steps and stores of the other one are replaced."""
    steps = [Loop(s.shape, list(s.stores), s.device) if isinstance(s, Loop) else s for s in program.steps]
    return Program(
        list(program.inputs), list(program.host_scalars), steps, list(program.outputs), program.flag, list(program.versions),
        program.chooses,
    )


@dataclass(slots=True)
class _Writer:
    """What stores to a region of a buffer; None: to any of its elements."""

    step: Nest | Extern
    statement: int
    region: Region | None


class Expected:
    """What a program leaves in memory: in the temporaries, in the outputs, and in the inputs that it changes.

    Loads of inputs see what these held before the program began.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: dict[Buffer, int] = {}
        self.before = Memory(self.names)
        self.after = Memory(self.names, self.before)
        self.scattered: set[Buffer] = set()
        self.calls = [step for step in program.steps if isinstance(step, Extern)]
        self._writers: dict[Buffer, list[_Writer]] = {}
        for buffer in program.inputs:
            if buffer is not None:
                self.names[buffer] = len(self.names)
        try:
            self._run()
        except ScheduleError as error:
            raise ScheduleError("program", str(error)) from None

    def source(self, buffer: Buffer) -> Contents:
        """Where the program's loads of a buffer read."""
        return self.before[buffer] if buffer.kind == "input" else self.after[buffer]

    def _run(self) -> None:
        loops = Loops()
        steps = [s for s in self.program.steps if isinstance(s, Extern) or 0 not in s.shape]
        nests = [loops.read(step) if isinstance(step, Loop) else step for step in steps]
        last = loops.finish()
        shared: dict[Shape, dict[int, Value]] = {}  # one expression may be computed over several shapes
        draws = turn = 0
        for step in nests:
            if isinstance(step, Extern):
                self._run_call(step, draws)
                draws += step.draws
                continue
            turn += 1
            of_shape = shared.setdefault(step.shape, {})
            self._run_nest(step, of_shape)
            for identity in last.get(turn, ()):
                del of_shape[identity]

    def _run_nest(self, nest: Nest, shared: dict[int, Value]) -> None:
        for phase in nest.phases:
            shape = phase.shape(nest.shape)
            for assign in phase.assigns:
                operand = nest.operands[assign.operand]
                self._note(operand.buffer, _Writer(nest, assign.statement, operand.region(shape)))
            for scatter in phase.scatters:
                buffer = nest.operands[scatter.operand].buffer
                self.scattered.add(buffer)
                self._note(buffer, _Writer(nest, scatter.statement, None))
            phase.finish()
        Execution(nest, self.source, self.after.__getitem__, _never_busy, _nothing, shared).run()

    def _run_call(self, call: Extern, turn: int) -> None:
        for buffer in call.outputs:
            self._note(buffer, _Writer(call, 0, None))
        run_call(call, self.source, self.after, turn)

    def _note(self, buffer: Buffer, writer: _Writer) -> None:
        self._writers.setdefault(buffer, []).append(writer)

    def statement(self, buffer: Buffer, element: int) -> str:
        """The text of what stores to an element, the last one if several do."""
        for writer in reversed(self._writers.get(buffer, [])):
            if writer.region is None or bool((np.asarray(writer.region.positions()) == element).any()):
                step = writer.step
                return shortened(str(step)) if isinstance(step, Extern) else step.describe(writer.statement)
        return f"nothing stores to element {element} of {buffer}"


def _never_busy(buffer: Buffer) -> npt.NDArray[np.bool_] | None:
    return None


def _nothing(nest: Nest, phase: Phase, assign: Assign, contents: Contents) -> None:
    return None
