"""Temporaries that are computed a second time, so that they need not be in memory where most is.

In a training step that is one graph, backward reads much of what forward made: an activation, for example, is an operand of
the next layer's product, and once more of the product that is the gradient of that layer's weight. Where the tensor that it
was computed from is kept anyway, it takes one more pass over that, and its memory is free in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quickfuse.ir.expr import Place, walk
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, StoreKind, buffers_in, with_buffers
from quickfuse.ir.target import costs_on


def rematerialise(program: Program) -> None:
    """Compute large temporaries again where they are not used for long, if a program on a GPU takes much memory."""
    made = {buffer for step in program.steps for buffer in step.writes if buffer.kind == "temp"}
    large = [buffer for buffer in made if 0 < costs_on(buffer.meta.device).least_rematerialised <= buffer.meta.nbytes]
    if large and sum(buffer.meta.nbytes for buffer in large) >= costs_on(large[0].meta.device).much_memory:
        _Memory(program, made).save()


class _Memory:
    """When the temporaries of a program are used, by the numbers of its steps."""

    def __init__(self, program: Program, made: set[Buffer]) -> None:
        self.program = program
        self.writers: dict[Buffer, list[int]] = {}
        self.readers: dict[Buffer, list[int]] = {}
        for number, step in enumerate(program.steps):
            for buffer in dict.fromkeys(step.writes):
                self.writers.setdefault(buffer, []).append(number)
            for buffer in step.reads:
                self.readers.setdefault(buffer, []).append(number)
        self.made = [buffer for buffer in self.writers if buffer in made and buffer in self.readers]
        self.returned = set(buffers_in(program.outputs))

    def save(self) -> None:
        """Have each temporary that is not used around the time of most memory, but before and after, be computed twice."""
        peak = self._peak()
        again: dict[int, list[Loop]] = {}
        for buffer in self.made:
            late = [number for number in self.readers[buffer] if number > peak]
            loop = self._formula_of(buffer)
            if loop is None or not late or self.writers[buffer][0] >= peak or not self._is_worth_it(buffer, loop, late[0]):
                continue
            copy = Buffer(f"{buffer.name}_again", buffer.meta, "temp")
            store = replace(loop.stores[0], access=replace(loop.stores[0].access, buffer=copy))
            again.setdefault(late[0], []).append(Loop(loop.shape, [store], loop.device))
            for number in late:
                call: Any = self.program.steps[number]
                reads = {buffer: copy}
                call.args, call.kwargs = with_buffers((call.args, call.kwargs), lambda one, reads=reads: reads.get(one, one))
        numbered = enumerate(self.program.steps)
        self.program.steps = [one for number, step in numbered for one in (*again.get(number, ()), step)]

    def _peak(self) -> int:
        """The step at which the temporaries take most memory."""
        change = [0] * (len(self.program.steps) + 1)
        for buffer in self.made:
            change[self.writers[buffer][0]] += buffer.meta.nbytes
            change[self.readers[buffer][-1] + 1] -= buffer.meta.nbytes
        total, totals = 0, []
        for difference in change:
            total += difference
            totals.append(total)
        return max(range(len(totals)), key=totals.__getitem__)

    def _formula_of(self, buffer: Buffer) -> Loop | None:
        """The loop that fills a buffer with a formula on single elements, if one does, and only calls of PyTorch read it.
        About what loops read, the schedule decides."""
        steps, numbers = self.program.steps, self.writers[buffer]
        loop = steps[numbers[0]]
        if len(numbers) > 1 or not isinstance(loop, Loop) or len(loop.stores) != 1 or buffer in self.returned:
            return None
        (store,) = loop.stores
        if store.kind is not StoreKind.ASSIGN or store.access != Access(buffer, 0, buffer.meta.stride):
            return None
        if loop.shape != buffer.meta.shape or any(isinstance(node, Place) for node in walk(store.value)):
            return None
        return loop if all(isinstance(steps[number], Extern) for number in self.readers[buffer]) else None

    def _is_worth_it(self, buffer: Buffer, loop: Loop, late: int) -> bool:
        """Whether what a buffer is computed from is there anyway when it is needed again, and little."""
        costs = costs_on(buffer.meta.device)
        if not 0 < costs.least_rematerialised <= buffer.meta.nbytes:
            return False
        operands = loop.reads
        for operand in operands:
            is_small = operand.meta.nbytes * costs.smaller_operand <= buffer.meta.nbytes
            is_there = operand.kind != "temp" or is_small or self.readers[operand][-1] >= late
            if not is_there or operand in self.program.optional:
                return False
        moved = buffer.meta.nbytes + sum(operand.meta.nbytes for operand in operands)
        return moved <= costs.rematerialised_traffic * buffer.meta.nbytes
