"""Whether iterations of one launch meet in memory: its members, their rows, and the elements of a row all run at a time.

An element that a statement stores to may only be loaded by the same operand at the same index, or, where it is stored once a
row, in the same row. Compilers rely on more: that operands which are stored to share no element with any other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from quickfuse.ir.loop import Buffer

from .memory import Region
from .nest import LOAD, Nest, Phase
from .violation import ScheduleError

_Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Use:
    """What an operand of a member is to a launch: a region that is loaded, or stored to by a statement."""

    nest: Nest
    operand: int
    region: Region
    stored: tuple[Phase, int] | None = None
    scattered: bool = False

    @property
    def text(self) -> str:
        if self.stored is not None:
            return self.nest.describe(self.stored[1])
        for phase in self.nest.phases:
            for number, instruction in enumerate(phase.instructions):
                if instruction.kind == LOAD and instruction.payload == self.operand:
                    return self.nest.describe(phase.statement_of(number))
        return str(self.region)


class Launch:
    """The members of a launch, and which elements of which buffers they store to."""

    def __init__(self, nests: list[Nest]) -> None:
        self.uses: dict[Buffer, list[_Use]] = {}
        self.written: set[Buffer] = set()
        self._masks: dict[Buffer, _Mask] = {}
        for nest in nests:
            self._add(nest)

    def _add(self, nest: Nest) -> None:
        stored: dict[int, _Use] = {}
        loaded: dict[int, _Use] = {}
        for phase in nest.phases:
            shape = phase.shape(nest.shape)
            for assign in phase.assigns:
                if not assign.to_flag:
                    region = nest.operands[assign.operand].region(shape)
                    stored[assign.operand] = _Use(nest, assign.operand, region, (phase, assign.statement))
            for scatter in phase.scatters:
                region = nest.operands[scatter.operand].region(shape)
                stored[scatter.operand] = _Use(nest, scatter.operand, region, (phase, scatter.statement), True)
            for number in phase.loaded:
                loaded[number] = _Use(nest, number, nest.operands[number].region(shape))
        self.written.update(nest.operands[number].buffer for number in stored)
        for number, use in [*stored.items(), *((k, use) for k, use in loaded.items() if k not in stored)]:
            self.uses.setdefault(nest.operands[number].buffer, []).append(use)

    def check(self) -> None:
        """Raise the `ScheduleError` for iterations that meet."""
        for buffer in self.written:
            uses = self.uses[buffer]
            if len(uses) > 1:
                self._check(buffer, uses)

    def _check(self, buffer: Buffer, uses: list[_Use]) -> None:
        scatter = next((use for use in uses if use.scattered), None)
        if scatter is not None:
            raise _race(buffer, scatter, next(use for use in uses if use is not scatter))
        size = buffer.meta.span_bytes // buffer.meta.dtype.itemsize
        owners = np.zeros(size, dtype=np.int32)
        ordered = sorted(uses, key=lambda use: use.stored is None)
        for number, use in enumerate(ordered, 1):
            first, last = use.region.bounds
            if first < 0 or last >= size:
                continue  # an error of its own
            place = use.region.of(owners)
            if place.any():
                raise _race(buffer, ordered[int(place.max()) - 1], use)
            if use.stored is not None:
                place[...] = number

    def busy(self, buffer: Buffer) -> _Mask | None:
        """The elements of a buffer that the launch stores to; None where there are none."""
        if buffer not in self.written:
            return None
        mask = self._masks.get(buffer)
        if mask is None:
            uses = [use for use in self.uses[buffer] if use.stored is not None]
            mask = np.zeros(buffer.meta.span_bytes // buffer.meta.dtype.itemsize, dtype=np.bool_)
            for use in uses:
                if use.scattered:
                    mask[:] = True
                else:
                    use.region.of(mask)[...] = True
            self._masks[buffer] = mask
        return mask


def _race(buffer: Buffer, one: _Use, other: _Use) -> ScheduleError:
    what = "is stored to by both" if other.stored is not None else "is stored to by one, and read by the other"
    return ScheduleError("race", f"an element of {buffer} {what} in one launch:\n  {one.text}\n  {other.text}")
