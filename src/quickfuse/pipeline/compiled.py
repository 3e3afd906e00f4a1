"""`Compiled`: the callable that a user holds. The one module that knows all stages."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from .. import config, errors, logs
from ..capture import capture, may_be_handled, resume
from ..capture.branches.assertions import UNUSUAL, WAITING
from ..control import disabled
from ..drive.callers import call_below, call_nothing
from ..drive.driver import NO_SEGMENT, Driver
from ..drive.places import places_of
from ..drive.regions import Natively
from ..drive.tracebacks import hides_own
from ..emit.glue import MISS, Interrupted
from ..explain.recompiles import values_now
from ..ir.dynamic import OtherSizes
from ..ir.frame import FrameState, Suspension
from ..ir.guard import Guard
from ..ir.marks import keep_peer_out
from ..ir.modes import checks_gradients, is_unobserved, outer_tracer
from ..ir.segment import Break, RunNatively
from ..settings import Settings
from ..signals import handlers_heard, let_through
from .callables import LikeFunction, plain_function, why_never
from .compiling import UNUSUAL_AFTER, Compiling
from .interrupted import suspended
from .points import Missed, Point
from .sizes import MAY_BE_LEFT, MAY_GROW, Waiting
from .specialise import Specialisation
from .trials import Trial

_NO_KEYWORDS: dict[str, Any] = {}


class Compiled(LikeFunction, Compiling):
    """A compiled function. Call it like the original; `graph_count` and `breaks` tell what became of it."""

    __captured_as__ = "function"  # inside another compiled function it is the original

    #: What a call of this object is, which changes (see `trials`): read by CPython itself, so that a call that is left to
    #: plain Python runs nothing else.
    __call__: Callable[..., Any]
    __slots__ = ("__call__", "__dict__", "__weakref__")

    def __init__(self, function: Callable[..., Any], settings: Settings) -> None:
        of_function = isinstance(function, (FunctionType, MethodType))  # other callables have attributes of their own
        functools.update_wrapper(self, function, updated=("__dict__",) if of_function else ())
        self.function = function
        self.settings = settings
        self._no_waiting = frozenset({WAITING}) if settings.recorded else frozenset()
        self.native_reason: str | None = None
        self._lock = threading.RLock()
        self._plain, self._bound = plain_function(function)
        self._never: str | None = why_never(self._plain)
        plain = function if self._plain is None else self._plain
        self.call_natively = functools.partial(plain, *self._bound) if self._bound else plain
        self._begin()
        _live.add(self)

    def _begin(self) -> None:
        self.entry = Point(self._plain, limit=self.settings.recompile_limit)
        self.points: dict[Any, Point] = {}
        self._volatile_in: dict[tuple[Any, ...], frozenset[str]] = {}  # of frames: what keeps changing, at any place
        self._held_in: dict[tuple[Any, ...], dict[str, Guard]] = {}  # the guards that said so
        self.breaks: list[Break] = []
        self.native_reason = None
        #: Up to where Python uses tensors that have other sizes in each call, and may leave others.
        self._other_sizes_at: set[tuple[CodeType, int]] = set()
        self._other_sizes_in: dict[tuple[Any, ...], frozenset[str]] = {}  # of frames: the variables that hold such tensors
        #: How often capture was tried, with success or not.
        self.captures = 0
        self.for_sizes = 0
        self._said_of_sizes: set[tuple[Point, str]] = set()
        self._recovers = self.settings.backend.name == "quickfuse"
        self.trial = Trial(self) if self._may_be_native() else None
        self.driver = Driver(self._point_at, self._run_segment, Suspension, self._log_at)
        self.__call__ = self.call_compiled if self.trial is None else self.trial.call

    def call_compiled(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function as compiled code, compiling it if need be."""
        bound = self._bound
        if bound:
            args = (*bound, *args)
        if disabled.depth:
            return self._native(args, kwargs)
        waiting = None
        try:
            entry = self.entry
            known = entry.specialisations
            # What was used last comes first: to try it here saves the call of `Point.run`, a tenth of a small call's time.
            first = known[0] if known and entry.sizes is None else None
            result: Any = MISS if first is None else first.run(*args, **kwargs)
            if result is MISS:
                result = entry.run(args, kwargs, first)
                if type(result) is Missed:
                    missed, waiting = result, self._waits(entry, result)
                    if waiting is not None and self._may_leave(entry, waiting, args, kwargs):
                        waiting = None
                    if waiting is None or waiting.over:
                        before, waiting = waiting, None
                        result = self._compile_and_run(missed, args, kwargs, before)
            if waiting is None and type(result) is not Suspension:
                return result
        except RunNatively as request:
            failure, result = _cause_of(request), None
            if self._note_other_sizes(self.entry, request):
                failure = None
        except Interrupted as halt:
            self._note_unusual(self.entry)
            plain: Any = self._plain
            until = functools.partial(capture, plain, args, kwargs, recovers=True, halts=True)
            result = suspended(halt, lambda n: until(stop_at=n), plain, args, kwargs)
        except TypeError:
            if not self._forget_other_signatures():
                raise
            return self.call_compiled(*args[len(bound) :], **kwargs)
        if waiting is not None:
            begun, plain = time.thread_time(), cast(FunctionType, self._plain)
            try:  # the program may look who called it
                with hides_own:
                    return call_below((), call_nothing, functools.partial(plain, *args, **kwargs))
            finally:
                waiting.note(time.thread_time() - begun)
        if result is not None:
            return self.driver.run(result)
        return self._native_after(failure, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """A copy of a method belongs to the copy of its object; functions are not copied."""
        return Compiled(copy.deepcopy(self.function, memo), self.settings)

    def __reduce__(self) -> Any:
        """Pickled by name where the name leads here, as functions are."""
        path = str(getattr(self, "__qualname__", ""))
        found: Any = sys.modules.get(self.__module__)
        for name in path.split("."):
            found = getattr(found, name, None)
        return path if found is self else (Compiled, (self.function, self.settings))

    # what was compiled ------------------------------------------------------------------------------------------

    @property
    def specialisations(self) -> list[Specialisation]:
        """Every compiled segment, those that begin with the call first."""
        return [s for point in (self.entry, *self.points.values()) for s in point.specialisations]

    @property
    def graph_count(self) -> int:
        """The number of graphs with operators in them."""
        return sum(s.segment.operators > 0 for s in self.specialisations)

    def reset(self) -> None:
        """Forget every specialisation."""
        with self._lock:
            self._begin()

    # running ----------------------------------------------------------------------------------------------------

    def _native(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._plain(*args, **kwargs) if self._plain is not None else self.function(*args, **kwargs)

    def _may_be_native(self) -> bool:
        """Whether plain Python may be tried in place of compiled code: nobody asked for more than the same results."""
        plain_settings = not self.settings.fullgraph and self.settings.backend.name == "quickfuse"
        return config.measure_short_calls and plain_settings and self._plain is not None and self._never is None

    def _native_after(self, failure: BaseException | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run natively where a specialisation could not, or failed: then the native run fails as well, or handles the
        failure, or we did wrong. A `GraphBreak` says that capture saw the program raise."""
        result = self._native(args, kwargs)
        if isinstance(failure, errors.GraphBreak):
            raise failure
        if isinstance(failure, Exception) and self._note_unusual(self.entry):
            return result
        if isinstance(failure, Exception) and not any(may_be_handled(s.segment) for s in self.entry.specialisations):
            if self._raise_internal_errors():
                raise failure
            self._report_internal_error(failure)
        return result

    def _note_unusual(self, point: Point) -> bool:
        """A segment failed. Whether a branch may have had another outcome than usual; if so, that is not expected again for
        long."""
        if not any(s.segment.expects for s in point.specialisations):
            return False
        point.unusual += 1
        if point.unusual >= UNUSUAL_AFTER and not self.settings.fullgraph:
            with self._lock:
                point.volatile |= {UNUSUAL}
                point.forget(lambda specialisation: bool(specialisation.segment.expects))
        return True

    def _note_other_sizes(self, point: Point, request: RunNatively) -> bool:
        """Whether capture was wrong about dynamic sizes. If it is so too often, there are none any more."""
        if not isinstance(request, OtherSizes) and not isinstance(request.__cause__, OtherSizes):
            return False
        point.other_sizes += 1
        if point.other_sizes == UNUSUAL_AFTER:
            with self._lock:
                point.forget_dynamic()
            self.say_native("sizes that are other ones than expected: compiled for each of them from now on")
        return True

    def _compile_and_run(
        self, missed: Missed, args: tuple[Any, ...], kwargs: dict[str, Any], before: Waiting | None
    ) -> Any:  # fmt: skip
        """Compile for a call, unless what another thread compiled fits, and run it. `before` is about calls of these sizes
        in plain Python."""
        specialisation = None
        with self._lock:
            self._forget_other_signatures()
            added = self.entry.others(missed.known)
            self._leave_to_python()
            if self._plain is None or self._never is not None:
                self._refuse_or_log(self._never or "")
            elif (other := outer_tracer()) is not None:
                self._refuse_or_log(other)
            elif checks_gradients():
                self.say_native("anomaly mode, in which PyTorch looks at the gradients of each operator")
            elif not added and self.native_reason is None and self._may_compile(self.entry, missed.tried, args):
                whole = self.settings.fullgraph
                begin = functools.partial(capture, self._plain, args, kwargs, whole=whole, recovers=self._recovers)
                self.entry.times.begin_size()
                with self.entry.times:
                    specialisation = self._specialise(self.entry, args, kwargs, begin)
        if added:
            return self.call_compiled(*args[len(self._bound) :], **kwargs)
        if specialisation is not None:
            self._measure(self.entry, specialisation, before)
            with logs.stage("first run"):
                result = specialisation.first_run(*args, **kwargs)
            if result is not MISS:
                return result
            self.say_native("a guard that does not hold right after capture")
        return self._native(args, kwargs)

    def _forget_other_signatures(self) -> bool:
        """Forget what was compiled of the function when it had other code or default arguments, as before a notebook loaded
        it again: that may not even take the call. Whether there was any."""
        known = self.entry.specialisations
        others = [s for s in known if self._plain is None or not s.has_signature_of(self._plain)]
        if others:
            self.entry.forget(others.__contains__)
        return bool(others)

    def _leave_to_python(self) -> None:
        """Let CPython call the function itself, with no frame of ours below it, where no call will be captured again."""
        never = self._plain is None or self._never is not None or self.native_reason is not None
        if never and not self.settings.fullgraph and not self.entry.specialisations:
            self.trial = None
            self.__call__ = self.call_natively

    def _point_at(self, key: Any, frames: list[FrameState]) -> Point:
        """The driver's hook: the place of this key, which these frames are at."""
        point = self.points.get(key)
        if point is None:
            codes = tuple([frame.code for frame in frames])
            volatile, lets_go = self._volatile_in.get(codes, frozenset()), key == places_of(frames)
            made = Point(self._plain, codes, volatile, lets_go, self._for_steady, self.settings.recompile_limit)
            point = self.points.setdefault(key, made)
        return point

    def _run_segment(self, point: Point, frames: list[FrameState]) -> Any:
        """The driver's hook: run the segment that begins with these frames, compiling it if need be."""
        if disabled.depth:
            self._leave_with_block(frames[-1])
            return NO_SEGMENT
        try:
            missed = point.run((frames,), _NO_KEYWORDS)
            if type(missed) is not Missed:
                return missed
            if not point.capturable:
                if not missed.known and point.lets_go:
                    self.driver.without_segment.add(frames)
                return NO_SEGMENT
            waiting, region = self._waits(point, missed, frames[-1]), point.region
            if waiting is not None and self._may_leave(point, waiting, (frames,), {}):
                waiting = None
            if waiting is not None and not waiting.over and region is not None:
                return Natively(region, waiting.note)
            added, made = self._compile_after(point, missed, frames)
            if added:
                return self._run_segment(point, frames)
            if made is None:
                return NO_SEGMENT
            self._measure(point, made, waiting)
            with logs.stage("first run"):
                result = made.first_run(frames)
        except RunNatively as request:  # an operator failed, or this segment is running already: the native code will tell
            _cause_of(request)
            self._note_other_sizes(point, request)
            self._note_unusual(point)
            return NO_SEGMENT
        except Interrupted as halt:
            self._note_unusual(point)
            until = functools.partial(resume, frames, recovers=True, halts=True)
            return suspended(halt, lambda n: until(stop_at=n), self._plain, (frames,), {})
        if result is MISS:
            self._log_at("a guard that does not hold right after capture", frames[-1])
            return NO_SEGMENT
        return result

    def _compile_after(
        self, point: Point, missed: Missed, frames: list[FrameState]
    ) -> tuple[list[Specialisation], Specialisation | None]:
        """What another thread has compiled for a place meanwhile; if nothing, what was compiled now, if anything."""
        with self._lock, contextlib.ExitStack() as times:
            added = point.others(missed.known)
            if added or not point.capturable or not is_unobserved():
                return added, None
            if not self._may_compile(point, missed.tried, (), frames[-1]):
                return [], None
            if point.made < max(self.entry.made, 1):  # else it has other sizes than the call
                times.enter_context(self.entry.times)
            point.times.begin_size()
            times.enter_context(point.times)
            return [], self._specialise(point, (frames,), {}, functools.partial(resume, frames, recovers=self._recovers))

    def _may_leave(self, point: Point, waiting: Waiting, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Once several sizes are known, and before another one runs natively: whether they grow, or what computes with
        tensors of other sizes in each call may be left to Python, so that the rest is compiled for all of them."""
        sizes, plain = point.sizes, self._plain
        if waiting.calls or waiting.over or sizes is None or plain is None or len(sizes.table) >= MAY_BE_LEFT:
            return False
        seen = len(sizes.seen())
        if seen not in (MAY_GROW, MAY_BE_LEFT) or self.settings.fullgraph or not is_unobserved():
            return False
        frame = None if point is self.entry else args[0][-1]
        if frame is None:
            begin = functools.partial(capture, plain, args, kwargs, recovers=self._recovers)
        else:
            begin = functools.partial(resume, args[0], recovers=self._recovers)
        with self._lock, handlers_heard() as heard, logs.stage("capture"):
            try:
                known = point.volatile
                self._note_failed_guards(point, args, kwargs)
                if point.volatile != known or seen < MAY_BE_LEFT:
                    return point.volatile != known
                return bool(self._other_sizes(point, frame, begin, point.volatile | point.changed | self._no_waiting))
            except Exception:
                heard.check()
                if self._raise_internal_errors():
                    raise
                return False

    def _measure(self, point: Point, made: Specialisation, before: Waiting | None) -> None:
        """Measure what compiled code saves, if its sizes ran in plain Python before."""
        if before is not None and before.seconds > 0 and self._may_be_native():
            point.gains.measure(made, before.seconds / before.calls)

    def _for_steady(self, point: Point, frames: list[FrameState]) -> Callable[..., Any] | None:
        """What runs a segment that holds the values of what kept changing at this place and no longer does, if there is
        something of the kind."""
        plain: Any = self._plain
        held = self._held_in.get(point.frames, {})
        steady = point.no_longer_changes(held, lambda: values_now(plain, (frames,), {}))
        if not steady or not point.capturable or len(point.specialisations) >= point.most():
            return None
        with self._lock:
            begin = functools.partial(resume, frames, recovers=self._recovers)
            made = self._specialise(point, (frames,), {}, begin, steady) if is_unobserved() else None
        return None if made is None else made.first_run

    def _leave_with_block(self, frame: FrameState) -> None:
        """Run the rest of a `with` block natively that was just entered: it is one of `quickfuse.disable()`."""
        instructions = frame.decoded.instructions
        if frame.position == 0 or instructions[frame.position - 1].name != "BEFORE_WITH":
            return
        handler = frame.decoded.handler_for(frame.position)
        if handler is not None:
            end = max(other.end for other in frame.decoded.handlers if other.target == handler.target)
            self.driver.leave_loop(frame, end, "what quickfuse.disable() encloses runs natively")


keep_peer_out(Compiled.call_compiled)


def _cause_of(request: RunNatively) -> BaseException | None:
    """What failed. A signal handler's exception is no failure: the program does not run again, but gets it."""
    failure = request.__cause__
    if failure is not None:
        let_through(failure)
    return failure


#: All that a user holds, for `reset()`.
_live: weakref.WeakSet[Compiled] = weakref.WeakSet()


def forget_everything() -> None:
    """Forget every specialisation of every compiled function."""
    for compiled in list(_live):
        compiled.reset()
