"""Why a value is wrong: most often what it is made of was overwritten before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from quickfuse.ir.loop import Buffer

from .memory import Region
from .nest import Nest


@dataclass(slots=True)
class Change:
    """A store to a region of an input; None: to any of its elements."""

    region: Region | None
    describe: Callable[[], str]

    def meets(self, region: Region, size: int) -> bool:
        if self.region is None:
            return True
        mask = np.zeros(size, dtype=np.bool_)
        self.region.of(mask)[...] = True
        return bool(region.of(mask).any())


def changes_of(nest: Nest) -> Iterator[tuple[Buffer, Change]]:
    """The inputs that a nest stores to."""
    for phase in nest.phases:
        shape = phase.shape(nest.shape)
        for assign in phase.assigns:
            operand = nest.operands[assign.operand]
            if operand.buffer.kind == "input":
                yield operand.buffer, Change(operand.region(shape), _text(nest, assign.statement))
        for scatter in phase.scatters:
            buffer = nest.operands[scatter.operand].buffer
            if buffer.kind == "input":
                yield buffer, Change(None, _text(nest, scatter.statement))


def loads_of(nest: Nest) -> Iterator[tuple[Buffer, Region]]:
    """What a nest loads, one element at each index."""
    for phase in nest.phases:
        for number in phase.loaded:
            yield nest.operands[number].buffer, nest.operands[number].region(phase.shape(nest.shape))


def overwritten(loads: Iterable[tuple[Buffer, Region]], changes: Mapping[Buffer, list[Change]]) -> str:
    """The statement that has overwritten an input which is loaded, as text; empty if there is none.

    Programs always mean what an input held before they began.
    """
    for buffer, region in loads:
        size = buffer.meta.span_bytes // buffer.meta.dtype.itemsize
        for change in changes.get(buffer, ()):
            if change.meets(region, size):
                return f"\n  which reads {buffer} after {change.describe()}"
    return ""


def _text(nest: Nest, statement: int) -> Callable[[], str]:
    return lambda: nest.describe(statement)
