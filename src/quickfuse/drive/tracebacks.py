"""Tracebacks that read like the native ones: entries for suspended frames of the user's, none for the compiler's code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from ..ir.bytecode import local_names
from ..ir.frame import UNBOUND, FrameState
from .callers import is_own
from .resume import TRACEBACK, resume_function


class _Probe(Exception):
    """Raised in a copy of a user's frame, to get hold of that frame."""


def add_user_frames(exception: BaseException, frames: Sequence[FrameState]) -> None:
    """Give an exception that leaves these frames, outermost first, the traceback that it has natively.

    Each frame stands at the instruction before its position. The compiler's own entries in front are taken out.
    """
    entries = without_own(exception.__traceback__)
    for frame in reversed(frames):
        entries = entry(frame, frame.position - 1, entries)
    exception.__traceback__ = entries
    del exception  # see `_frame_that_raises`


def traced(exception: BaseException, trace: Sequence[tuple[CodeType, dict[str, Any], int]]) -> BaseException:
    """Give an exception the traceback entries of where captured code raised it: (code, globals, position), innermost
    first."""
    found: list[TracebackType | None] = [None]

    def make() -> None:
        for code, globals_, position in trace:
            frame = FrameState(code, globals_, [UNBOUND] * len(local_names(code)), [], position + 1)
            found[0] = entry(frame, position, found[0])

    # In a thread of its own, since the caller has the exception in a variable: see `_frame_that_raises`.
    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    exception.__traceback__ = found[0]
    return exception


def without_own(entries: TracebackType | None) -> TracebackType | None:
    """The traceback from the first entry on that is the user's."""
    while entries is not None and is_own(entries.tb_frame.f_code):
        entries = entries.tb_next
    return entries


def entry(
    frame: FrameState, position: int, following: TracebackType | None, variables: bool = True
) -> TracebackType:
    """A traceback entry for a suspended frame at an instruction, with its variables where the frame is done.

    The entry of a frame that goes on has none: a variable that holds the exception would keep it, and all that the others
    hold, alive, since nothing clears it in the entry when the user's handler ends.
    """
    position = max(position, 0)
    values = frame.locals if variables else [UNBOUND] * len(frame.locals)
    moved = FrameState(frame.code, frame.globals, values, [], position)
    function, resume = resume_function(moved, TRACEBACK, exception=_Probe())
    return TracebackType(following, _frame_that_raises(function), resume.lasti, resume.line)


def _frame_that_raises(function: Callable[[], Any]) -> FrameType:
    """The frame of a function that raises a probe.

    A frame keeps its callers', with their variables. So no variable of a caller may have the frame or the exception in
    whose traceback it will be, when the caller returns: that would be a cycle, and keep everything in those frames alive
    until the next garbage collection.
    """
    try:
        function()
    except _Probe as probe:
        assert probe.__traceback__ is not None and probe.__traceback__.tb_next is not None
        return probe.__traceback__.tb_next.tb_frame
    raise AssertionError
