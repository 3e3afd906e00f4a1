"""When a compiled function is not compiled once more: too many specialisations, or sizes that are not worth it yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import config, errors, logs
from ..capture import user_function
from ..drive.driver import Driver
from ..explain.recompiles import limit_message
from ..ir.frame import FrameState
from ..settings import Settings
from .points import Missed, Point
from .reporting import Reporting
from .sizes import FORGET_FOR, Sizes, Waiting
from .specialise import Specialisation
from .trials import Trial


class Limits(Reporting):
    """The part of `Compiled` that says what is not compiled any more."""

    __slots__ = ()

    __call__: Callable[..., Any]
    settings: Settings
    entry: Point
    driver: Driver
    trial: Trial | None
    #: How often a call ran in plain Python since its sizes are not compiled yet, or was compiled after such calls.
    for_sizes: int
    _said_of_sizes: set[tuple[Point, str]]

    def _may_be_native(self) -> bool:
        """Whether plain Python may be tried in place of compiled code: nobody asked for more than the same results."""
        raise NotImplementedError

    def _waits(self, point: Point, missed: Missed, frame: FrameState | None = None) -> Waiting | None:
        """What notes the calls with sizes that are not worth compiling at once, and says whether they are now; None where
        they are compiled as they come. After a break, that is so for as many as the call itself was compiled for. Where no
        time may be taken, sizes are compiled when they come for the second time, or more often where another size is
        forgotten for that."""
        sizes = missed.sizes
        if sizes is None or not self._may_wait(point):
            return None
        measured, at_once = self._may_be_native(), config.recompile_limit
        few = len(sizes.table) < at_once and (not (measured and sizes.on_cpu) or sizes.is_at_once(missed.key, point.times))
        if (few and not point.forgets) or (frame is not None and self._follows_call(point)):
            return None
        waiting = sizes.wait_for(missed.key)
        self.for_sizes += 1  # type: ignore[misc]  # see `Compiled`
        often = FORGET_FOR if point.forgets else 1
        usual = point.times.usual(sizes.on_cpu)
        if sizes.is_worth(waiting, usual, point.gains) if measured else waiting.calls >= often:
            sizes.waiting.pop(missed.key, None)
            waiting.over = True
            return waiting
        if not waiting.calls:
            self._say_waits(point, sizes, frame)
        return waiting

    def _may_wait(self, point: Point) -> bool:
        """Whether sizes may run natively at first: after a break, what follows must not be left to Python with them."""
        region = point.region
        return config.on_recompile_limit != "error" and (point is self.entry or (region is not None and region.possible))

    def _follows_call(self, point: Point) -> bool:
        """Whether a place after a break was compiled for fewer sizes than the call."""
        return self.entry.sizes is not None and point.made < self.entry.made

    def _say_waits(self, point: Point, sizes: Sizes, frame: FrameState | None) -> None:
        """Say once that sizes run natively at first, and warn once that there are many of them."""
        places = ", ".join(sizes.names)
        location = self._beginning() if frame is None else frame.location
        if (point, "few") not in self._said_of_sizes:
            self._said_of_sizes.add((point, "few"))
            where = "" if frame is None else location
            self.say_native(f"another size of {places}, at first: {_worth(self._may_be_native())}", where)
        if (point, "many") not in self._said_of_sizes and len(sizes.seen()) > config.recompile_limit:
            self._said_of_sizes.add((point, "many"))
            logs.log.warning(
                "%s at %s was called with more than %d sizes of %s. %d of them are compiled, and others run natively at "
                "first: %s. Pass tensors of a few sizes, padded if need be.",
                self._shown(), location, config.recompile_limit, places, len(sizes.table), _worth(self._may_be_native()),
            )  # fmt: skip

    def sizes_note(self) -> str:
        """What became of calls with other sizes, if there were several."""
        sizes = self.entry.sizes
        if sizes is None:
            return ""
        compiled, others = len(sizes.table), len(sizes.seen()) - len(sizes.table)
        waiting = f"; {others} others ran natively: {_worth(self._may_be_native())}" if others else ""
        return f"{compiled} sizes of {', '.join(sizes.names)} are compiled{waiting}"

    def _may_compile(
        self, point: Point, tried: list[Specialisation], args: tuple[Any, ...], frame: FrameState | None = None
    ) -> bool:
        """Whether one more specialisation may be made at a place, where those `tried` did not fit.

        Raises:
            RecompileLimit: where the user wants an error instead.
        """
        may_raise = config.on_recompile_limit == "error"
        made_anew = None if may_raise or self.settings.fullgraph else point.made_anew()
        by_size = self._may_wait(point) or (not may_raise and self._follows_call(point))  # which are worth compiling
        if not point.is_full(tried, by_size) and made_anew is None:
            return True
        assert self._plain is not None
        name = self.settings.name or user_function(self._plain, args).__qualname__
        place = name if frame is None else f"{name} from {frame.location} on"
        message = limit_message(place, len(point.specialisations), point.failed_guards)
        if may_raise:
            raise errors.RecompileLimit(message)
        if made_anew is not None:
            message = f"{place} runs natively: each call makes {made_anew} anew"
            point.forget(lambda _: True)
        logs.log.warning(message)
        if self._may_be_native():  # what was measured before says nothing any more
            self.trial = Trial(self)  # type: ignore[arg-type, misc]
            self.__call__ = self.trial.call
        if frame is None:
            self.native_reason = message  # type: ignore[misc]
        else:
            point.capturable = False
            self.driver.leave_function(frame, message)
        return False


def _worth(measured: bool) -> str:
    if measured:
        return "each is compiled once that would have saved as much as compiling takes"
    return "each is compiled when it comes for the second time"
