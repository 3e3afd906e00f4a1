"""Tracebacks that read like the native ones: entries for suspended frames of the user's, none for the compiler's code."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FrameType, TracebackType
from typing import Any

from ..bytecode.decoding import local_names
from ..ir.frame import UNBOUND, Activation, FrameState
from .callers import is_own
from .resume import TRACEBACK, resume_function


class _Probe(Exception):
    """Raised in a copy of a user's frame, to get hold of that frame."""


def traced(
    exception: BaseException,
    trace: Sequence[tuple[CodeType, dict[str, Any], int]],
    activations: Sequence[Activation | None] = (),
) -> BaseException:
    """Give an exception the traceback entries of where captured code raised it: (code, globals, position), innermost
    first, with the activations of those frames that go on."""
    found: list[TracebackType | None] = [None]

    def make() -> None:
        for (code, globals_, position), activation in itertools.zip_longest(trace, activations):
            frame = FrameState(code, globals_, [UNBOUND] * len(local_names(code)), [], position + 1)
            frame.activation = activation
            found[0] = entry(frame, position, found[0], variables=activation is None)

    # Without callers, since one of them has the exception in a variable: see `_frame_that_raises`.
    if _generators_have_no_callers():
        next(_in_generator(make))
    else:
        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
    exception.__traceback__ = found.pop()  # the frames made have the list
    return exception


def _in_generator(make: Callable[[], None]) -> Iterator[None]:
    yield make()


@functools.cache
def _generators_have_no_callers() -> bool:
    """Whether a frame that was made inside of a generator, which then was dropped, has no callers below that one. Not so in
    CPython 3.12, where a generator that is dropped remembers who ran it last."""
    found: list[FrameType | None] = []

    def fail() -> None:
        raise _Probe

    next(_in_generator(lambda: found.append(_frame_that_raises(fail))))
    frame = found.pop()
    while frame is not None and frame.f_code is not _in_generator.__code__:
        frame = frame.f_back
    return frame is not None and frame.f_back is None


def without_own(entries: TracebackType | None) -> TracebackType | None:
    """The traceback from the first entry on that is the user's."""
    while entries is not None and is_own(entries.tb_frame.f_code):
        entries = entries.tb_next
    return entries


class _HidesOwn:
    """A context that takes the entries in front of the user's out of the traceback of what is raised in it. Nor does the
    function with the context add one: the traceback that is there at the end of a context is what goes on."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            error.__traceback__ = without_own(error.__traceback__)


hides_own = _HidesOwn()


def entry(
    frame: FrameState, position: int, following: TracebackType | None, variables: bool = True
) -> TracebackType:
    """A traceback entry for a suspended frame at an instruction, with its variables where the frame is done.

    The entry of a frame that goes on has its `Activation`: variables of its own would keep their values alive, when the
    frame goes on and lets go of them.
    """
    position = max(position, 0)
    kept: list[Any] = []
    if not variables:
        if frame.activation is None:
            frame.activation = Activation()
        kept.append(frame.activation)
    values = frame.locals if variables else [UNBOUND] * len(frame.locals)
    moved = FrameState(frame.code, frame.globals, values, kept, position)
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
        try:
            return probe.__traceback__.tb_next.tb_frame
        finally:
            probe.__traceback__ = probe.__context__ = None
    raise AssertionError
