"""Places in a program: what names the beginning of a segment, and where no segment begins."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from ..ir.endings import visible_endings
from ..ir.frame import FrameState

Key = tuple[Any, ...]


def key_of(frames: list[FrameState]) -> Key:
    """What tells one beginning of a segment from another: where suspended frames stand in the program, and where they
    have objects that a segment must not let go of."""
    endings = visible_endings(frames)
    places = places_of(frames)
    return (places, tuple([slot for slot, _ in endings])) if endings else places


def places_of(frames: list[FrameState]) -> Key:
    """Where suspended frames stand in the program."""
    return tuple([(id(frame.code), frame.position) for frame in frames]) if len(frames) > 1 else place_of(frames[0])


def place_of(frame: FrameState) -> Key:
    """Where one frame stands."""
    return id(frame.code), frame.position


class WithoutSegment:
    """The places where no segment begins, whatever the frames hold: the next instruction is performed at once."""

    def __init__(self) -> None:
        self._positions: dict[Any, set[int]] = {}
        self._codes: list[CodeType] = []  # places are named by the identity of code, which must not be used again

    def add(self, frames: Sequence[FrameState]) -> None:
        self._codes += [frame.code for frame in frames]
        self.positions(frames).add(frames[-1].position)

    def positions(self, frames: Sequence[FrameState]) -> set[int]:
        """Those in the function of the innermost frame, as it was called by the other ones: a set that grows."""
        return self._positions.setdefault(_function_of(frames), set())


def _function_of(frames: Sequence[FrameState]) -> Any:
    if len(frames) == 1:
        return id(frames[0].code)
    number = id(frames[-1].code)
    return number, *[(id(frame.code), frame.position) for frame in frames[:-1]]
