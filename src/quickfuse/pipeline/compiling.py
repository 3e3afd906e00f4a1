"""How a segment is compiled: captured, left to Python where that is not worth it, and given kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, cast

import torch

from .. import config, errors, logs
from ..capture import user_function
from ..emit.failed_guards import failures, first_failure
from ..errors import Unsupported
from ..explain.recompiles import report, values_now
from ..ir.default_device import run_without
from ..ir.frame import FrameState
from ..ir.garbage import collected_later
from ..ir.guard import Guard
from ..ir.meta_kernels import light_meta_kernels
from ..ir.segment import Break, RunNatively, Segment
from ..signals import handlers_heard
from .limits import Limits
from .other_sizes import end_of_expression, left_to_python, made_before, of_variables
from .points import Point
from .second_values import captured, is_in_pieces, less_in_pieces
from .specialise import FailsTooLate, Specialisation, get_ready, helpers, specialise
from .worth import end_of_views, is_too_short, loop_of_few_operators, loop_of_other_sizes, positions_up_to_break

#: How often a branch may have another outcome than usual, before segments end there.
UNUSUAL_AFTER = 3


class Compiling(Limits):
    """The part of `Compiled` that compiles a segment."""

    __slots__ = ()

    captures: int
    _recovers: bool
    _no_waiting: frozenset[str]
    _volatile_in: dict[tuple[Any, ...], frozenset[str]]
    _held_in: dict[tuple[Any, ...], dict[str, Guard]]
    _other_sizes_at: set[tuple[CodeType, int]]
    _other_sizes_in: dict[tuple[Any, ...], frozenset[str]]

    @run_without
    @collected_later()
    @light_meta_kernels()
    def _specialise(
        self, point: Point, args: tuple[Any, ...], kwargs: dict[str, Any], begin: Callable[..., Segment],
        steady: frozenset[str] = frozenset(),
    ) -> Specialisation | None:  # fmt: skip
        """Capture and compile a segment; None where there is none to be had. `steady` is what no longer changes."""
        get_ready(self.settings.backend)
        self.captures += 1  # type: ignore[misc]  # see `Compiled`
        with handlers_heard() as heard:
            if not steady:
                self._note_failed_guards(point, args, kwargs)
            volatile = (point.volatile - steady) | point.changed | self._no_waiting
            frame = None if point is self.entry else args[0][-1]
            end = None if steady or frame is None else loop_of_other_sizes(args[0], point.failed_guards, self.breaks)
            if frame is not None and end is not None:
                self.driver.leave_loop(frame, end, "a loop with other sizes in each turn runs natively")
                return None
            try:
                with logs.stage("capture"):
                    if not (steady or self.settings.fullgraph):
                        names = self._other_sizes(point, frame, begin, volatile)
                        if names and frame is not None and (end := end_of_expression(point, frame, names)) is not None:
                            self._other_sizes_at.add((frame.code, end))
                            self.driver.leave_loop(frame, end, "what has other sizes in each call runs natively")
                            return None
                        volatile |= names
                    if steady:
                        segment = begin(volatile=volatile)
                    else:
                        failing = functools.partial(self._failures, args, kwargs)
                        held, (segment, volatile) = volatile, captured(point, begin, volatile, failing)
                heard.check()
                if steady and not segment.operators:
                    return None
                if is_too_short(segment):
                    point.failures += 1
                    once = segment.pause is not None and segment.pause.until is not None
                    point.capturable = once and point.failures < config.capture_attempts
                    if not once and frame is not None and point.lets_go:
                        self.driver.without_segment.positions(args[0]).update(positions_up_to_break(segment))
                    self._note_break(segment)
                    return None
                if frame is not None and (end := end_of_views(segment)) is not None:
                    self.driver.leave_loop(frame, end, "views alone, up to the next break, run natively")
                    self._note_break(segment)
                    return None
                others = (s.segment for other in self.points.values() for s in other.specialisations)
                if frame is not None and (end := loop_of_few_operators(segment, others)) is not None:
                    said = "a loop of few operators, in which something keeps changing, runs natively"
                    self.driver.leave_loop(frame, end, said)
                    self._note_break(segment)
                    return None
                try:
                    specialisation = self._specialised(segment)
                    if not steady and volatile != held and is_in_pieces(specialisation):
                        other = self._specialised(begin(volatile=held))
                        specialisation = less_in_pieces(point, specialisation, other, volatile - held)
                        segment = specialisation.segment
                except FailsTooLate:
                    again = begin(volatile=volatile, recovers=False)
                    again.prepared[:0] = segment.prepared
                    specialisation = self._specialised(again)
            except Unsupported as reason:
                heard.check()
                if self.settings.fullgraph:
                    failure = self._graph_break(reason)
                    if self._raises(reason):
                        raise RunNatively from failure
                    raise failure from None
                if steady:
                    return None
                self._give_up_after_failures(point, reason)
                return None
            except errors.BackendError:
                raise
            except Exception as error:
                heard.check()
                if self._raise_internal_errors():
                    raise errors.InternalError(f"{type(error).__name__}: {error}") from error
                point.capturable = False
                self._report_internal_error(error)
                return None
        point.add(specialisation, bool(steady), self._bytes_beside() if point is self.entry else 0)
        self.driver.compiled += 1
        point.useful |= segment.operators > 0
        if segment.pause is not None:
            self._note_break(segment)
        return specialisation

    def _bytes_beside(self) -> int:
        """The bytes that what was compiled after breaks takes for each specialisation of the call."""
        behind = sum(s.bytes_held for point in [*self.points.values()] for s in point.specialisations)
        return behind // max(len(self.entry.specialisations), 1)

    def _other_sizes(
        self, point: Point, frame: FrameState | None, begin: Callable[..., Segment], volatile: frozenset[str]
    ) -> frozenset[str]:
        """The names of tensors from here on that have other sizes in each call, and are left to Python."""
        found = made_before(point, frame, self.breaks, self._other_sizes_at) if frame is not None else frozenset()
        known = self._other_sizes_in.get(point.frames, frozenset())
        found |= left_to_python(point, frame, self.breaks, begin, volatile | found, known)
        self._other_sizes_in[point.frames] = known | of_variables(found)
        point.volatile |= found
        return found

    def _note_break(self, segment: Segment) -> None:
        assert segment.pause is not None
        pause = segment.pause
        self._say_break(pause)
        if pause.loop_end is not None:
            top = segment.frames[-1]
            self.driver.leave_loop(FrameState(top.code, top.globals, [], [], top.position), pause.loop_end)

    def _give_up_after_failures(self, point: Point, reason: Unsupported) -> None:
        """Stop trying: capture costs more than it can ever gain for what it cannot follow."""
        pause = Break(reason.reason, reason.hint, reason.location or self._beginning(), reason.trace)
        if point is self.entry:
            self._remember_break(pause)
            self.say_native(reason.reason, reason.location)
        else:
            self._say_break(pause)
        point.failures += 1
        patience = config.recompile_limit if point.specialisations else config.capture_attempts
        if point.failures >= patience:
            point.capturable = False
            if point is self.entry:
                self.native_reason = reason.reason  # type: ignore[misc]
                self.say_native(f"{reason.reason} (from now on without trying to capture it)")

    def _specialised(self, segment: Segment) -> Specialisation:
        segment.recorded, segment.tuned = self.settings.recorded, self.settings.tuned
        return specialise(segment, cast(FunctionType, self._plain), self.settings.backend)

    def _note_failed_guards(self, point: Point, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find out why no specialisation holds: for the log, and to see which numbers keep changing."""
        if not point.specialisations or self._plain is None:
            return
        plain = self._plain
        point.ask(args, kwargs, lambda s: first_failure(s.segment, plain, args, kwargs, helpers()))
        guards = point.failed_guards
        point.note_changed()
        if not self.settings.fullgraph:
            often = point.keeps_changing()
            may_be_dynamic = self._recovers and point.other_sizes < UNUSUAL_AFTER
            if may_be_dynamic and not torch.is_grad_enabled():
                often |= point.growing_sizes(values_now(self._plain, args, kwargs))
            point.volatile |= often
            if often and point is not self.entry:
                held = self._held_in.setdefault(point.frames, {})
                held.update({name: guard for guard in guards if guard is not None for name in guard.values_held()})
                self._volatile_in[point.frames] = self._volatile_in.get(point.frames, frozenset()) | often
        if logs.enabled("recompiles"):
            shown = user_function(self._plain, () if point is not self.entry else args)
            logs.emit("recompiles", report(self._plain, shown, guards, args, kwargs))

    def _failures(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], specialisation: Specialisation, guards: list[Guard]
    ) -> Iterator[Guard]:
        """Those of some guards that a call, or suspended frames, do not meet."""
        assert self._plain is not None
        return failures(specialisation.segment, guards, self._plain, args, kwargs, helpers())
