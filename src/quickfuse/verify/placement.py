"""Buffers that share memory are never alive together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from quickfuse.ir.kernel import Schedule
from quickfuse.ir.loop import Buffer, buffers_in

from .violation import ScheduleError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies: `offset` bytes after the begin of a block of memory, which has `size` bytes if that is known.

    It lies there from step `first` of the schedule to step `last`, both included; None: as long as something uses it.
    """

    block: Hashable
    offset: int
    first: int | None = None
    last: int | None = None
    size: int | None = None


def check_placement(schedule: Schedule, places: Mapping[Buffer, Place]) -> None:
    """Check that each of some buffers lies where it does while a step uses it, and that no other does meanwhile.

    What a step reads is alive together with what it writes. Outputs, inputs and flags are alive to the end.

    Raises:
        ScheduleError: naming both buffers and their steps.
    """
    uses = lifetimes(schedule)
    blocks: dict[Hashable, list[tuple[int, int, int, int, Buffer]]] = {}
    for buffer, place in places.items():
        first, last = uses.get(buffer, (0, -1))
        begin = first if place.first is None else place.first
        end = last if place.last is None else place.last
        if begin > first or end < last:
            raise ScheduleError("memory", f"{buffer} has its memory from step {begin} to {end}, and is used from {first} to "
                                f"{last}")  # fmt: skip
        span = buffer.meta.span_bytes
        if place.offset < 0 or (place.size is not None and place.offset + span > place.size):
            raise ScheduleError("memory", f"{buffer} of {span} bytes at {place.offset} is not within {place.block}")
        if span and begin <= end:
            blocks.setdefault(place.block, []).append((place.offset, place.offset + span, begin, end, buffer))
    for block, entries in blocks.items():
        _check_block(block, entries)


def _check_block(block: Hashable, entries: list[tuple[int, int, int, int, Buffer]]) -> None:
    """Go through a block by addresses, with those that have not ended yet."""
    entries.sort(key=lambda entry: entry[:4])
    open_ones: list[tuple[int, int, int, int, Buffer]] = []
    for entry in entries:
        offset, _, begin, end, buffer = entry
        open_ones = [other for other in open_ones if other[1] > offset]
        for _, _, other_begin, other_end, other in open_ones:
            if begin <= other_end and other_begin <= end:
                raise ScheduleError("memory", f"{buffer} (steps {begin} to {end}) and {other} (steps {other_begin} to "
                                    f"{other_end}) lie in the same bytes of {block}")  # fmt: skip
        open_ones.append(entry)


def lifetimes(schedule: Schedule) -> dict[Buffer, tuple[int, int]]:
    """The first and the last step that uses each buffer."""
    found: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(schedule.steps):
        for buffer in step.buffers:
            found[buffer] = (found[buffer][0] if buffer in found else number, number)
    for buffer, (first, _) in list(found.items()):
        if buffer.kind in ("input", "flag"):
            found[buffer] = (0, len(schedule.steps))
        elif buffer.kind == "output":
            found[buffer] = (first, len(schedule.steps))
    for buffer in buffers_in(schedule.program.outputs):
        found[buffer] = (found.get(buffer, (0, 0))[0], len(schedule.steps))
    return found
