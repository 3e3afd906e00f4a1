"""Running a program that is suspended: segments where there are any, single instructions and native Python between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import CodeType
from typing import Any, Protocol

from ..errors import QuickfuseError
from ..ir.endings import visible_endings
from ..ir.frame import After, FrameState
from . import native
from .loops import loop_end
from .places import Key, WithoutSegment, key_of, place_of, places_of
from .regions import Natively, Region
from .step import leave, needs_own_frame, perform, perform_through
from .tracebacks import without_own
from .unwind import Returned, unwind

#: How many instructions in a row may be performed one by one, without a segment that does anything for tensors, before
#: the loop around them is left to CPython; and outside of loops, before the function is.
PATIENCE = 24
PATIENCE_OUTSIDE = 96

#: For how many of these instructions a segment counts that was compiled and does nothing for tensors: where each turn of a
#: loop compiles another one, the loop is soon better left to CPython.
COMPILED_IN_VAIN = 6

#: What a segment's run gives instead of a result where there is none for these frames.
NO_SEGMENT = object()


class Beginning(Protocol):
    """A place where segments begin."""

    #: Whether they do anything for tensors.
    useful: bool


class Driver:
    """Drives one function's suspended calls.

    `beginning(key, frames)` is the place of this key, the same object each time; `run_segment(beginning, frames)` runs the
    segment that begins at these frames: it gives the call's result, other suspended frames (of type `suspension`, with what
    is known of places after them as `after`), `Natively`, where the program is to run up to the segment's end without it, or
    `NO_SEGMENT`. What was found out about places in the program is remembered
    for later calls.
    """

    def __init__(
        self,
        beginning: Callable[[Key, list[FrameState]], Beginning],
        run_segment: Callable[[Any, list[FrameState]], Any],
        suspension: type,
        log: Callable[[str, FrameState], None],
    ) -> None:
        self._beginning = beginning
        self._run_segment = run_segment
        self._suspension = suspension
        self._log = log
        #: Native loops and functions: for a place the end of the loop, or None for the rest of the function.
        self.left_to_python: dict[Key, int | None] = {}
        #: Places from which CPython cannot go on.
        self._refused: set[Key] = set()
        self.without_segment = WithoutSegment()
        self._said: set[tuple[str, int, int | None]] = set()
        #: How many segments were compiled so far.
        self.compiled = 0
        self._codes: dict[int, CodeType] = {}  # places are named by the identity of code, which must not be used again

    def run(self, frames: list[FrameState]) -> Any:
        """Run suspended frames to the result of the outermost one, which may raise."""
        try:  # the same as `hides_own`, which takes longer
            return self._run(frames)
        except BaseException as error:
            error.__traceback__ = without_own(error.__traceback__)
            raise

    def _run(self, frames: list[FrameState]) -> Any:
        after = getattr(frames, "after", None) or After()
        while True:
            try:
                return self._go_on(frames, after)
            except QuickfuseError:
                raise
            except BaseException as error:
                if not frames:  # the program's own, which passed all of its frames
                    raise
                # A signal handler's, or Ctrl-C, between two steps or in compiled code: the program's handlers are to see it.
                frames[-1].position += 1
                if not unwind(frames, error):
                    raise
                after = After()  # the frames may be those of after another segment

    def _go_on(self, frames: list[FrameState], after: After) -> Any:
        """Run suspended frames to the result. The list is always of those that are suspended now."""
        barren = 0
        settled = False
        left = self.left_to_python
        while True:
            performed, quiet = (0, False) if left else perform_through(frames, self.without_segment, after)
            settled = settled and quiet
            if isinstance(performed, Returned):
                return performed.value
            if not performed:
                returned = self._advance(frames)
                if returned is not None:
                    return returned.value
                performed = 1
            barren += abs(performed)
            if barren > PATIENCE and self._leave_to_python(frames[-1], barren):
                barren = 0
            if performed < 0:
                continue
            if left and (place_of(frames[-1]) in left or frames[-1].position in self.without_segment.positions(frames)):
                continue
            if not settled and visible_endings(frames):
                beginning = self._beginning(key_of(frames), frames)
            else:
                settled = True
                beginning = self._ordinary_beginning(frames, after)
            compiled = self.compiled
            outcome = self._run_segment(beginning, frames)
            barren += COMPILED_IN_VAIN * (self.compiled - compiled)
            if outcome is NO_SEGMENT:
                continue
            if type(outcome) is Natively:
                begun = time.thread_time()
                try:
                    returned = self._run_through(frames, outcome.region)
                finally:
                    outcome.note(time.thread_time() - begun)
                if returned is not None:
                    return returned.value
                barren, settled, after = 0, False, After()
                continue
            before = frames[:]
            frames[:] = kept = outcome if type(outcome) is self._suspension else ()
            for frame in before:  # a signal's handler may raise from here on: the frames are those of after the segment
                if frame not in kept:  # frames are equal to themselves only
                    frame.forget()
            if not frames:
                return outcome
            after = getattr(outcome, "after", None) or After()
            settled = settled and getattr(outcome, "settled", False)
            if beginning.useful:
                barren = 0

    def _ordinary_beginning(self, frames: list[FrameState], after: After) -> Beginning:
        """Where frames stand that have no values whose end can be seen."""
        place = len(frames), frames[-1].position
        found = after.points.get(place)
        if found is None:
            found = after.points[place] = self._beginning(places_of(frames), frames)
        return found

    def _advance(self, frames: list[FrameState]) -> Returned | None:
        """Perform the instruction that no segment could, or what is left to Python here."""
        top = frames[-1]
        end = self.left_to_python.get(place_of(top), 0)
        if end == top.position:  # there already
            end = 0
        if end == 0 and not needs_own_frame(top):
            return perform(frames)
        return self._run_natively(frames, end)

    def _run_through(self, frames: list[FrameState], region: Region) -> Returned | None:
        """Run natively to the end of a region, by way of handlers, too, or to the end of the frame that it ends in."""
        if len(frames) == region.depth and frames[-1].position == region.stop:  # once through a loop
            returned = perform(frames)
            if returned is not None:
                return returned
        while len(frames) >= max(region.depth, 1):
            top = frames[-1]
            inside = len(frames) == region.depth
            if inside and top.position == region.stop:
                break
            place = place_of(top)
            returned = self._run_natively(frames, region.stop if inside else None)
            if returned is not None:
                return returned
            if place in self._refused:
                region.possible = False
                return None
        while len(frames) == region.depth and region.stop <= frames[-1].position < region.end:
            returned = perform(frames)  # what is pushed for a call, before which CPython cannot stop
            if returned is not None:
                return returned
        return None

    def _run_natively(self, frames: list[FrameState], end: int | None) -> Returned | None:
        """Run the innermost frame natively up to the instruction `end`, or to its own end."""
        top, callers = frames[-1], frames[:-1]
        result: Any = None
        refused = False
        try:
            result = native.run_loop(top, end, callers) if end else native.finish(top, callers)
        except native.CannotResume:
            refused = True
        except BaseException as error:
            frames.pop().end()
            if not unwind(frames, error):
                raise
            return None
        if refused:
            self.left_to_python.pop(place_of(top), None)
            self._refused.add(place_of(top))
            return perform(frames)
        if end:
            if result is None:
                return None
            result = result.value
        return leave(frames, result)

    def leave_loop(self, frame: FrameState, end: int, reason: str = "a loop without tensors runs natively") -> None:
        """From now on, run the loop that `frame` is in natively from here, up to the instruction `end`."""
        self._note(frame, end, reason)

    def leave_function(self, frame: FrameState, reason: str) -> None:
        """From now on, run the rest of the innermost function natively from here."""
        self._note(frame, None, reason)

    def _note(self, frame: FrameState, end: int | None, reason: str) -> None:
        place = place_of(frame)
        self._codes[id(frame.code)] = frame.code
        if place not in self._refused:
            self.left_to_python[place] = end
        said = reason, id(frame.code), end
        if said not in self._said:  # a loop is left to Python from every place in it where a step was one too many
            self._said.add(said)
            self._log(reason, frame)

    def _leave_to_python(self, frame: FrameState, barren: int) -> bool:
        """Too many instructions one by one: the innermost loop around this place runs natively, or the whole function.
        False where that was decided before, and where it is too early outside of loops: what was performed may have been a
        loop that ended there, and what follows may compute."""
        place = place_of(frame)
        if place in self.left_to_python or place in self._refused:
            return False
        end = loop_end(frame)
        if end is None and barren <= PATIENCE_OUTSIDE:
            return False
        if end is not None:
            self.leave_loop(frame, end, "a loop without tensor work runs natively")
        else:
            self.leave_function(frame, "the rest of a function without tensor work runs natively")
        return True
