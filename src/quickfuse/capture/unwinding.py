"""Exceptions on their way: finding the handler, chaining them, and their tracebacks."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..errors import Unsupported
from .frame import Frame
from .interpreter import Interpreter
from .raising import Raised
from .symbolic import FromOutside, MadeTraceback, real_of


def unwind(i: Interpreter, exception: BaseException, depth: int) -> None:
    """Give an exception to the innermost handler, popping frames as CPython does."""
    if isinstance(exception, FromOutside):
        raise Unsupported("raising an exception from outside")  # its traceback gets an entry for each frame
    _chain(i, exception)
    trace = i.outside.note_exception(exception).trace
    while len(i.frames) > depth:
        frame = i.frames[-1]
        if not trace or not _is_reraise(frame):
            trace.append((frame, frame.lasti))
        handler = frame.decoded.handler_for(frame.lasti)
        if handler is not None:
            frame.in_traceback = True
            gone = frame.stack[handler.depth :]
            del frame.stack[handler.depth :]
            if i.ending:
                for value in gone:
                    i.let_go(value)
            gone.clear()
            if handler.push_lasti:
                frame.stack.append(frame.lasti)
            frame.stack.append(exception)
            frame.position = handler.target
            return
        i.frames.pop()
        i.leave(frame)
        if frame.generator is not None:
            frame.generator.done = True
            if isinstance(exception, StopIteration):
                stop = exception
                exception = i.mark_created(RuntimeError("generator raised StopIteration"))
                exception.__cause__ = exception.__context__ = stop
    raise Raised(exception)


def _chain(i: Interpreter, exception: BaseException) -> None:
    """Set `__context__` as CPython does for an exception that is raised while another one is handled."""
    handled = next((e for f in reversed(i.frames) for e in reversed(f.exceptions) if e is not None), None)
    if handled is None or handled is exception:
        return
    handled = real_of(handled)
    if exception.__context__ is None and not _leads_to(handled, exception):
        exception.__context__ = handled


def traceback_of(i: Interpreter, exception: BaseException) -> Any:
    """The traceback of an exception that captured code made: some traceback, which only the real one replaces."""
    made = i.outside.note_exception(exception)
    for known in made.tracebacks:
        if known.entries == len(made.trace):
            return known.value
    # Of a frame that has no caller: one that had would keep the interpreter's own frames.
    traceback = TracebackType(None, (nothing for nothing in ()).gi_frame, 0, 1)
    i.outside.note_traceback(traceback, made)
    return traceback


def set_traceback(i: Interpreter, exception: BaseException, traceback: Any) -> None:
    """`exception.__traceback__ = traceback`, for an exception that captured code made: back to what it was before."""
    if traceback is None:
        i.outside.note_exception(exception).trace.clear()
        return
    known = i.outside.made(traceback)
    if not isinstance(known, MadeTraceback) or known.owner is not exception:
        raise Unsupported("giving an exception another traceback")
    del i.outside.note_exception(exception).trace[known.entries :]


def _is_reraise(frame: Frame) -> bool:
    """Whether the last instruction raised an exception that has its entry for this frame already."""
    name, arg, _, _ = frame.decoded.instructions[frame.lasti]
    return name in ("RERAISE", "CLEANUP_THROW") or (name == "RAISE_VARARGS" and not arg)


def _leads_to(exception: BaseException, wanted: BaseException) -> bool:
    """Whether `wanted` is in the chain of contexts of `exception`."""
    seen: BaseException | None = exception
    while seen is not None:
        if seen is wanted:
            return True
        seen = seen.__context__
    return False
