"""Runs a schedule on hashes as it would really run, and compares what it does with what its program says.

Memory is as it is at each step. Members, rows and elements of a launch run in any order, which is the same as one after the
other if they do not meet in memory, and that is looked at first. What a step has stored is compared at once, so that the
first statement that is wrong is the one that is named.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quickfuse.ir.kernel import KernelCall, Schedule
from quickfuse.ir.loop import Buffer, Extern, buffers_in, views_in

from .bodies import Kernels
from .calls import region_of, run_call
from .changes import Change, changes_of, loads_of, overwritten
from .execute import Execution
from .memory import Contents, Memory, Region
from .nest import Assign, Nest, Phase, ScatterTo
from .program import Expected
from .races import Launch
from .violation import ScheduleError, both, shortened


class Run:
    """One run of a schedule. Raises a `ScheduleError` where it does not do what `expected` says."""

    def __init__(self, expected: Expected, schedule: Schedule) -> None:
        self.expected = expected
        self.schedule = schedule
        self.memory = Memory(expected.names, expected.before)
        self.kernels = Kernels()
        self.draws = 0
        self.called: dict[int, Extern] = {}  # by their ids
        #: The first store to an input, as text; and all of them, by input.
        self.changed = ""
        self.changes: dict[Buffer, list[Change]] = {}
        self.allocated = {*schedule.temps, *buffers_in(schedule.program.outputs)}

    def run(self) -> None:
        last = self._last_uses()
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, KernelCall):
                self._launch(step)
            else:
                self._call(step)
            for buffer in last.get(number, ()):
                self.memory.forget(buffer)
        self._check_calls()
        self._check_results()

    def _last_uses(self) -> dict[int, list[Buffer]]:
        """The temporaries that no step after step k uses."""
        last = {buffer: number for number, step in enumerate(self.schedule.steps) for buffer in step.buffers}
        returned = set(buffers_in(self.schedule.program.outputs))
        found: dict[int, list[Buffer]] = {}
        for buffer, number in last.items():
            if buffer.kind == "temp" and buffer not in returned:
                found.setdefault(number, []).append(buffer)
        return found

    # --- steps ---

    def _launch(self, call: KernelCall) -> None:
        nests = self.kernels.nests_of(call)
        launch = Launch(nests)
        launch.check()
        for nest in nests:
            self._check_kinds(nest)
        for nest in nests:
            Execution(nest, self.memory.__getitem__, self.memory.__getitem__, launch.busy, self._stored).run()
        for nest in nests:
            for buffer, change in changes_of(nest):
                self.changes.setdefault(buffer, []).append(change)

    def _check_kinds(self, nest: Nest) -> None:
        """That temporaries have memory, and that no input changes before it is known that nothing fails."""
        for phase in nest.phases:
            flags = [assign for assign in phase.assigns if assign.to_flag]
            if flags and self.changed:
                raise ScheduleError("order", f"an input is stored to before a flag is set:\n  {self.changed}\n  "
                                    f"{nest.describe(flags[0].statement)}")  # fmt: skip
        flagged = any(assign.to_flag for phase in nest.phases for assign in phase.assigns)
        for phase in nest.phases:
            stores: list[Assign | ScatterTo] = [*phase.assigns, *phase.scatters]
            for one in stores:
                buffer = nest.operands[one.operand].buffer
                text = nest.describe(one.statement) if buffer.kind == "input" and not self.changed else ""
                if text and flagged:
                    raise ScheduleError("order", f"an input is stored to in the launch that sets a flag:\n  {text}")
                self.changed = self.changed or text
                if buffer.kind == "temp" and buffer not in self.allocated:
                    raise ScheduleError("form", f"{buffer} is no temporary of the schedule\n  in "
                                        f"{nest.describe(one.statement)}")  # fmt: skip

    def _call(self, call: Extern) -> None:
        text = shortened(str(call))
        if call.may_fail and self.changed:
            raise ScheduleError("order", f"an input is stored to before a call that may fail:\n  {self.changed}\n  {text}")
        if call.after is not None and id(call.after) not in self.called:
            raise ScheduleError("order", f"{text}\n  runs before {shortened(str(call.after))}")
        if id(call) in self.called:
            raise ScheduleError("twice", f"a call runs once more: {text}")
        self.called[id(call)] = call
        turn, self.draws = self.draws, self.draws + call.draws
        loads = [(view.buffer, region_of(view)) for view in views_in((call.args, call.kwargs)) if 0 not in view.shape]
        for contents, region in run_call(call, self.memory.__getitem__, self.memory, turn):
            if contents.size:
                self._compare(contents, region, lambda: text + overwritten(loads, self.changes))

    # --- comparisons ---

    def _stored(self, nest: Nest, phase: Phase, assign: Assign, contents: Contents) -> None:
        if not assign.to_flag and contents.buffer not in self.expected.scattered:
            region = nest.operands[assign.operand].region(phase.shape(nest.shape))
            loads = loads_of(nest)
            self._compare(contents, region, lambda: nest.describe(assign.statement) + overwritten(loads, self.changes))

    def _compare(self, contents: Contents, region: Region, text: Callable[[], str]) -> None:
        """What has been stored to a region with what the program stores there, if it is a buffer of the program's."""
        expected = self.expected.after.get(contents.buffer)
        if expected is None:
            if contents.is_input:
                raise ScheduleError("value", f"{contents.buffer} keeps its value in the program" + both("-", text()))
            return
        mine, theirs = region.of(contents.hashes), region.of(expected.hashes)
        if np.array_equal(mine, theirs) and (not contents.is_input or region.of(expected.written).all()):
            return
        wrong = (mine != theirs) | ~region.of(expected.written)
        at = int(np.broadcast_to(region.positions(), wrong.shape)[wrong][0])
        count = f"{int(wrong.sum())} of {wrong.size} elements differ, the first is element {at} of {contents.buffer}"
        raise ScheduleError("value", count + both(self.expected.statement(contents.buffer, at), text()))

    def _check_calls(self) -> None:
        for call in self.expected.calls:
            if (call.draws or call.may_fail) and id(call) not in self.called:
                raise ScheduleError("missing", f"{shortened(str(call))} is never called")

    def _check_results(self) -> None:
        """That all is stored that anyone may see after the last step."""
        returned = set(buffers_in(self.expected.program.outputs))
        for expected in self.expected.after:
            buffer = expected.buffer
            if buffer.kind not in ("input", "flag") and buffer not in returned:
                continue
            mine = self.memory[buffer]
            if mine.conditions != expected.conditions:
                raise ScheduleError("value", f"{buffer} is set under other conditions: {self.expected.statement(buffer, 0)}")
            if not expected.size or not (expected.stored or expected.scattered):
                continue
            absent = expected.written & ~mine.written
            if expected.is_input:  # an element may well be left as it is, where the program stores what it holds
                absent &= mine.hashes != expected.hashes
            missing = np.flatnonzero(absent)
            if missing.size:
                at = int(missing[0])
                raise ScheduleError("missing", f"{missing.size} elements of {buffer} are not stored to, the first is "
                                    f"element {at}: {self.expected.statement(buffer, at)}")  # fmt: skip
            differ = np.flatnonzero(mine.hashes != expected.hashes)
            if differ.size:
                at = int(differ[0])
                raise ScheduleError("value", f"{differ.size} elements of {buffer} differ in the end, the first is element "
                                    f"{at}: {self.expected.statement(buffer, at)}")  # fmt: skip
        for mine in self.memory:
            if mine.conditions and self.expected.after.get(mine.buffer) is None:
                raise ScheduleError("value", f"{mine.buffer} is no flag of the program's")

