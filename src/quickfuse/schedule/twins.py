"""Parts of a graph that were left out because they do the same as others (`lower/twins.py`), in a schedule of the rest."""

from __future__ import annotations

from typing import Any

from quickfuse.ir.kernel import KernelCall, Member, Schedule
from quickfuse.ir.loop import Buffer, Program
from quickfuse.ir.twins import Part, WithoutTwins


def with_twins(schedule: Schedule, found: WithoutTwins, asked: Program | None = None) -> bool:
    """Give the kernels of a schedule the members for the twins of its parts, with temporaries of their own. `asked` is the
    program of the whole graph, if that was lowered, and the schedule is to be one for that. Returns False, and leaves the
    schedule as it was, where what it does with parts cannot be told apart."""
    program = schedule.program
    if program.flag is not None or not all(type(step) is KernelCall for step in schedule.steps):
        return False
    calls: list[KernelCall] = schedule.steps  # type: ignore[assignment]
    inputs = dict(zip(found.kept, program.inputs, strict=True))
    outputs = dict(zip(found.given, program.outputs, strict=True))
    owner = {inputs[k]: part for part in found.parts for k in part.inputs}
    for part in found.parts:
        for k in part.outputs:
            if type(outputs[k]) is not Buffer or owner.setdefault(outputs[k], part) is not part:
                return False
    if asked is not None and not all(
        type(asked.outputs[k]) is Buffer for part in found.parts for one in (part, *part.twins) for k in one.outputs
    ):
        return False
    if not _note_owners(calls, owner):
        return False
    whole = _Whole(found, inputs, outputs, asked)
    temporaries: dict[Part, list[Buffer]] = {}
    for buffer in schedule.temps:
        if buffer in owner:
            temporaries.setdefault(owner[buffer], []).append(buffer)
    twins: dict[Part, list[tuple[int, dict[Buffer, Buffer]]]] = {}
    for part in found.parts:
        twins[part] = [(twin.at, whole.of_twin(part, twin, temporaries.get(part, []))) for twin in part.twins]
    for call in calls:
        members = []
        for member in call.members:
            part = next((owner[buffer] for buffer in member.buffers if buffer in owner), None)
            members.append((-1 if part is None else part.at, _of(member, whole.kept)))
            members += [(at, _of(member, buffers)) for at, buffers in twins[part]] if part is not None else []
        members.sort(key=lambda one: one[0])
        call.members = [member for _, member in members]
    schedule.temps += whole.temps
    program.inputs, program.outputs, program.steps = whole.inputs, whole.outputs, []
    return True


def _note_owners(calls: list[KernelCall], owner: dict[Any, Part]) -> bool:
    """Note to which part each temporary belongs; False where a member of a kernel has to do with several parts."""
    members = [member for call in calls for member in call.members]
    while True:
        known = len(owner)
        for member in members:
            parts = {owner[buffer] for buffer in member.buffers if buffer in owner}
            if len(parts) > 1:
                return False
            for part in parts:
                owner.update((buffer, part) for buffer in member.buffers if buffer.kind != "input")
        if len(owner) == known:
            return True


class _Whole:
    """The inputs, outputs and new temporaries of the whole graph: those of the program of it, if there is one.

    `kept` are those that stand for buffers of what is left.
    """

    def __init__(
        self, found: WithoutTwins, inputs: dict[int, Buffer | None], outputs: dict[int, Any], asked: Program | None
    ) -> None:
        self._asked, self._inputs, self._outputs = asked, inputs, outputs
        self.temps: list[Buffer] = []
        self.kept: dict[Buffer, Buffer] = {}
        nodes = [node for node in found.whole.nodes if node.op == "placeholder"]
        self.inputs: list[Buffer | None] = asked.inputs if asked is not None else [
            inputs[k] if k in inputs else Buffer(node.name, node.meta["val"], "input", k) for k, node in enumerate(nodes)
        ]  # fmt: skip
        count = max([-1, *found.given, *(k for part in found.parts for twin in part.twins for k in twin.outputs)]) + 1
        self.outputs: list[Any] = asked.outputs if asked is not None else [outputs.get(k) for k in range(count)]
        if asked is not None:
            self.kept = {buffer: asked.inputs[k] for k, buffer in inputs.items() if buffer is not None}  # type: ignore[misc]
            self.kept.update({outputs[k]: asked.outputs[k] for part in found.parts for k in part.outputs})

    def of_twin(self, part: Part, twin: Part, temporaries: list[Buffer]) -> dict[Buffer, Buffer]:
        """What a twin has in place of the buffers of a part, and of others."""
        buffers = dict(self.kept)
        for k, other in zip(part.inputs, twin.inputs, strict=True):
            buffers[self._inputs[k]] = self.inputs[other]  # type: ignore[index, assignment]
        for k, other in zip(part.outputs, twin.outputs, strict=True):
            buffer = self._outputs[k]
            if self._asked is not None:
                buffers[buffer] = self.outputs[other]
            elif buffer.kind != "input" and buffer not in buffers:
                buffers[buffer] = Buffer(f"{buffer.name}_{twin.at}", buffer.meta, buffer.kind)
            self.outputs[other] = buffers[buffer]
        for buffer in temporaries:
            if buffer not in buffers:
                buffers[buffer] = Buffer(f"{buffer.name}_{twin.at}", buffer.meta, buffer.kind)
                self.temps.append(buffers[buffer])
        return buffers


def _of(member: Member, buffers: dict[Buffer, Buffer]) -> Member:
    """The same with other buffers."""
    found = tuple([buffers.get(buffer, buffer) for buffer in member.buffers])
    return Member(member.sizes, found, member.offsets, member.strides)
