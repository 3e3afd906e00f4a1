"""Whether compiled code is worth running: measured, for functions whose calls are short.

A break costs some microseconds, as much as a few operators on small tensors. Where such a function has settled, some calls
run compiled and as many as plain Python, each a call of the program like any other; from then on all run as what was faster.
Arguments may take turns of which one is quick, and a call may wait for something else: whole rounds are compared, and of
each turn the quickest. A function that is still compiled again now and then after many calls is compared with what that
takes. Plain Python is timed now and then: where it takes longer than it did, tensors have grown, and compiled code gets
another chance. The other calls run no Python of ours: they cost a tenth of a microsecond.
"""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Callable
from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING, Any

from ..control import disabled
from ..ir.marks import keep_peer_out

if TYPE_CHECKING:
    from .compiled import Compiled

#: How many calls in a row capture nothing before time is taken. Generated code takes some twelve calls to become as quick as
#: it will be (CPython's specialising interpreter, caches): `sin(x) + cos(y)` of 100 elements 9.8, 5.4, 5.2, 4.9, ... 3.4 us,
#: beside 4.0 us in plain Python.
SETTLED_AFTER = 16
#: A round: so many calls go through 2, 3, 4 or 6 kinds of arguments in whole turns. Time is taken in two rounds of each of
#: both.
ROUND = 12
MEASURED = 2 * ROUND
#: After so many calls, one that captures something shows that the function does not settle; so many before it tell what
#: calls take.
UNSETTLED_AFTER = 64
RECENT = 32
#: Seconds. Calls that take longer stay compiled: as plain Python they might need much more memory.
SHORT = 0.002
#: A call in plain Python is long that takes so many times as long as those before; so many in a row end it.
LONG = 4.0
LONG_CALLS = 4
#: How many calls in plain Python are not timed after one that is.
UNTIMED = 255
#: How often compiled code gets another chance.
CHANCES = 3


class Trial:
    """What was measured of one function."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.chances = CHANCES
        self._begin()

    def _begin(self) -> None:
        self.native = False
        self.all_calls = 0
        self.recent_seconds: deque[float] = deque(maxlen=RECENT)
        self._settle()

    def _settle(self) -> None:
        self.settles = True
        self.calls = 0
        self.compiled_seconds: list[float] = []
        self.native_seconds: list[float] = []
        self.usual_seconds = 0.0  # of a call in plain Python
        self.long_calls = 0

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function as one or the other."""
        compiled = self.compiled
        if disabled.depth:
            return compiled.call_natively(*args, **kwargs)
        self.calls += 1
        if self.calls > SETTLED_AFTER + MEASURED:
            begun = time.thread_time()
            try:
                return compiled.call_natively(*args, **kwargs)
            finally:
                self.native_seconds.append(time.thread_time() - begun)
                if compiled.trial is not self:  # `reset()` came meanwhile, or another thread decided
                    pass
                elif sum(seconds > SHORT for seconds in self.native_seconds) > 1:
                    self._stay_compiled()
                elif len(self.native_seconds) >= MEASURED:
                    self._decide()
        captures = compiled.captures
        compiled.__call__ = compiled.call_compiled  # also where this call calls the function again
        begun = time.thread_time()
        try:
            return compiled(*args, **kwargs)
        finally:
            self._note(time.thread_time() - begun, compiled.captures != captures)
            if compiled.trial is self:
                if self._may_go_on():
                    compiled.__call__ = self.call
                else:
                    self._stay_compiled()

    def _note(self, seconds: float, captured: bool) -> None:
        """Note how long a compiled call took."""
        self.all_calls += 1
        self.recent_seconds.append(seconds)
        if not captured:
            if self.calls > SETTLED_AFTER:
                self.compiled_seconds.append(seconds)
            return
        self._settle()
        if self.all_calls >= UNSETTLED_AFTER:
            self.settles = False
            self.calls = SETTLED_AFTER + MEASURED
            self.compiled_seconds = [sum(self.recent_seconds) / RECENT] * MEASURED

    def _may_go_on(self) -> bool:
        """Whether plain Python may be tried."""
        if self.calls < SETTLED_AFTER + MEASURED:
            return True
        if self.settles and min(self.compiled_seconds, default=0.0) > SHORT:
            return False
        segments = [specialisation.segment for specialisation in self.compiled.specialisations]
        inputs = [i.meta for segment in segments for i in segment.inputs]
        on_cpu = all(getattr(meta, "device", _CPU).type == "cpu" for meta in inputs)
        return on_cpu and not any(segment.asks_compiling for segment in segments)

    def _decide(self) -> None:
        compiled = self.compiled
        compiled_seconds, self.usual_seconds = _of_a_call(self.compiled_seconds), _of_a_call(self.native_seconds)
        if compiled_seconds <= self.usual_seconds:
            self._stay_compiled()
            return
        took = [1e6 * seconds for seconds in (compiled_seconds, self.usual_seconds)]
        compiled.say_native("compiled calls took {:.0f} us, and calls in plain Python {:.0f} us".format(*took))
        self.native = True
        self._untimed_mostly = _in_turns(compiled.call_natively, UNTIMED, self._timed)
        compiled.__call__ = self._untimed_mostly

    def _stay_compiled(self) -> None:
        self.compiled.trial = None
        self.compiled.__call__ = self.compiled.call_compiled

    def _timed(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call in plain Python that is timed."""
        compiled = self.compiled
        begun = time.thread_time()
        try:
            return compiled.call_natively(*args, **kwargs)
        finally:
            is_long = time.thread_time() - begun > LONG * self.usual_seconds
            self.long_calls = self.long_calls + 1 if is_long else 0
            if compiled.trial is self and self.native:  # no other thread decided, nor `reset()`
                compiled.__call__ = self._timed if is_long else self._untimed_mostly
                if self.long_calls >= LONG_CALLS:
                    self.chances -= 1
                    self._begin()
                    compiled.__call__ = self.call
                    if not self.chances:
                        self._stay_compiled()


def _in_turns(first: Callable[..., Any], times: int, second: Callable[..., Any]) -> Callable[..., Any]:
    """What calls the first so many times and the second once, and so on. No call of it runs any Python but theirs."""
    turns = chain.from_iterable(map(repeat, cycle((first, second)), cycle((times, 1))))
    namespace = {"__slots__": (), "__call__": property(functools.partial(next, turns))}
    return type("InTurns", (), namespace)()  # type: ignore[no-any-return]


def _of_a_call(seconds: list[float]) -> float:
    """How long a call takes, by two rounds."""
    if len(seconds) < MEASURED:  # another thread has begun anew
        return math.inf
    return sum(map(min, seconds[:ROUND], seconds[ROUND:MEASURED])) / ROUND


class _CPU:
    type = "cpu"


keep_peer_out(Trial.call)
keep_peer_out(Trial._timed)
