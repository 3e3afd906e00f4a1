"""The order of a program's steps, where some of them have been replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import Load, Op, Place, walk
from quickfuse.ir.loop import Buffer, Extern, Loop, buffers_in
from quickfuse.ir.overlaps import disjoint, may_read, views_read

_Step = Loop | Extern
_SAME: Mapping[Buffer, Buffer] = {}


class StepReads:
    """What steps read (`read_by`), looked for only once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[_Step, list[Buffer]]] = {}  # by the step's id, with what keeps the id

    def of(self, step: _Step) -> list[Buffer]:
        known = self._known.get(id(step))
        if known is None:
            known = self._known[id(step)] = (step, read_by(step))
        return known[1]

    def forget(self, step: _Step) -> None:
        """The step has been changed."""
        self._known.pop(id(step), None)


def read_by(step: _Step) -> list[Buffer]:
    """The buffers that a step reads, once for each operation that takes a load of theirs: `x * x` reads x twice."""
    if isinstance(step, Extern):
        return [*buffers_in((step.args, step.kwargs))]
    roots = [root for store in step.stores for root in store.roots]
    operands = [*roots, *[arg for node in walk(*roots) if isinstance(node, Op) for arg in node.args]]
    return [operand.access.buffer for operand in operands if isinstance(operand, (Load, Place))]


def meet(reader: _Step, writer: _Step, buffer: Buffer) -> bool:
    """Whether a step may read from a buffer what another one writes to it."""
    if isinstance(writer, Extern):
        return True
    stored = [store.access for store in writer.stores if store.access.buffer is buffer]
    if isinstance(reader, Extern):
        views = views_read(reader).get(buffer, [])
        return any(may_read(views, writer.shape, access) for access in stored)
    roots = [root for store in reader.stores for root in store.roots]
    read = [n.access for n in walk(*roots) if isinstance(n, (Load, Place)) and n.access.buffer is buffer]
    return any(not disjoint(reader.shape, one, writer.shape, other) for one in read for other in stored)


class Order:
    """What comes before what. `moved` says which buffers are parts of others now.

    All that is read of an input is what it held before the program began: what stores to inputs comes at the end.
    """

    def __init__(self, steps: Sequence[_Step], reads: StepReads, moved: Mapping[Buffer, Buffer] = _SAME) -> None:
        self.steps = steps
        self.before: list[set[int]] = [set() for _ in steps]
        writers: dict[Buffer, list[int]] = {}
        self.last = [number for number, step in enumerate(steps) if any(b.kind == "input" for b in step.writes)]
        for number, step in enumerate(steps):
            for buffer in dict.fromkeys(step.writes):
                self.before[number].update(writers.get(buffer, ()))
                writers.setdefault(buffer, []).append(number)
        for number, step in enumerate(steps):
            for read in dict.fromkeys(reads.of(step)):
                buffer = moved.get(read, read)
                if buffer.kind != "input":
                    wrote = writers.get(buffer, [])
                    if len(wrote) > 1 and buffer is read:
                        wrote = [k for k in wrote if meet(step, steps[k], buffer)]
                    self.before[number].update(wrote)
            self.before[number].discard(number)
        numbers = {id(step): number for number, step in enumerate(steps)}
        for number, step in enumerate(steps):
            if isinstance(step, Extern) and step.after is not None:
                self.before[number].add(numbers[id(step.after)])

    def sorted(self) -> list[int]:
        """The numbers of the steps, each after those that come before it, and else as they are."""
        done: list[int] = []
        state = [0] * len(self.steps)  # 1: begun, 2: done
        for number in [*sorted(set(range(len(self.steps))).difference(self.last)), *self.last]:
            stack = [number]
            while stack:
                top = stack[-1]
                if state[top] == 2:
                    stack.pop()
                    continue
                waiting = sorted([k for k in self.before[top] if state[k] != 2], reverse=True)
                if not waiting:
                    state[top] = 2
                    done.append(stack.pop())
                elif state[top] == 1:
                    raise Unsupported("steps that come before each other")
                else:
                    state[top] = 1
                    stack += waiting
        return done

    def ranks(self, members: Sequence[_Step]) -> list[int]:
        """How many of some steps come one after the other before each of them. Those of equal rank do not depend on each
        other."""
        chosen = {id(step) for step in members}
        ranks = [0] * len(self.steps)
        for number in self.sorted():
            ranks[number] = max(
                [ranks[k] + (id(self.steps[k]) in chosen) for k in self.before[number]], default=0
            )  # fmt: skip
        numbers = {id(step): number for number, step in enumerate(self.steps)}
        return [ranks[numbers[id(step)]] for step in members]


def in_order(steps: Sequence[_Step], reads: StepReads, moved: Mapping[Buffer, Buffer] = _SAME) -> list[_Step]:
    """The steps, each after those whose results it reads."""
    return [steps[number] for number in Order(steps, reads, moved).sorted()]
