"""Giving an exception to the handler that CPython would give it to."""

from __future__ import annotations

from typing import Any

from ..ir.frame import FrameState
from . import tracebacks
from .program import program_of


class Returned:
    """The outermost frame returned this value."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Returned({self.value!r})"


#: What an operation gives that ran no code of the program's, though its kind could.
QUIET = Returned(None)


def unwind(frames: list[FrameState], exception: BaseException, reraised: bool = False) -> bool:
    """Go to the innermost handler of an exception that came out of the instruction before the innermost frame's position.

    Frames without a handler are popped. The traceback gets an entry for each frame that the exception passes, as in
    CPython; one that is `reraised` in the innermost frame has its entry already.

    Returns:
        False if no frame has a handler. No frame is left then, and the caller raises the exception.
    """
    exception.__traceback__ = tracebacks.without_own(exception.__traceback__)
    while frames:
        frame = frames[-1]
        position = frame.position - 1
        handler = program_of(frame.code).decoded.handler_for(position)
        if not reraised:
            frame.lasti = position
            done = handler is None
            exception.__traceback__ = tracebacks.entry(frame, position, exception.__traceback__, variables=done)
        reraised = False
        if handler is not None:
            stack = frame.stack
            del stack[handler.depth :]
            if handler.push_lasti:
                stack.append(frame.lasti)
            stack.append(exception)
            frame.position = handler.target
            frame.keyword_names = ()
            del exception, stack  # or it would be kept by this function's frame, which the frames in its traceback keep
            return True
        frames.pop().end()
    del exception
    return False
