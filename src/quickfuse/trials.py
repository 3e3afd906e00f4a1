"""Whether compiled code is worth running: measured, for functions whose calls are short.

A break costs some microseconds, as much as a few operators on small tensors. Where such a function has settled, some calls
run compiled and as many as plain Python, each a call of the program like any other; from then on all run as what was faster.
The median of each counts: arguments may take turns of which one is quick, and a call may wait for something else.
Plain Python is timed now and then: where it takes longer than it did, tensors have grown, and compiled code gets another
chance.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .compiled import Compiled

#: How many calls in a row capture nothing before time is taken, and in how many it is taken for each of both. Generated code
#: takes some twelve calls to become as quick as it will be (CPython's specialising interpreter, caches): `sin(x) + cos(y)`
#: of 100 elements 9.8, 5.4, 5.2, 4.9, ... 3.4 us, beside 4.0 us in plain Python.
SETTLED_AFTER = 16
MEASURED = 6
#: Seconds. Calls that take longer stay compiled: as plain Python they might need much more memory.
SHORT = 0.002
#: By how much compiled code has to be slower.
SLOWER = 1.05
#: A call in plain Python is long that takes so many times as long as those before; so many in a row end it.
LONG = 4.0
LONG_CALLS = 4
#: How many calls in plain Python are not timed after one that is.
UNTIMED = 15
#: How often compiled code gets another chance.
CHANCES = 3


class Trial:
    """What was measured of one function."""

    def __init__(self) -> None:
        self.chances = CHANCES
        self._begin()

    def _begin(self) -> None:
        self.native = False
        self.calls = 0
        self.compiled_seconds: list[float] = []
        self.native_seconds: list[float] = []
        self.usual_seconds = 0.0  # of a call in plain Python
        self.long_calls = 0

    def call(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function as one or the other."""
        if self.native:
            return self._timed_natively(compiled, args, kwargs)
        self.calls += 1
        if self.calls > SETTLED_AFTER + MEASURED:
            begun = time.thread_time()
            try:
                return compiled.call_natively(*args, **kwargs)
            finally:
                self.native_seconds.append(time.thread_time() - begun)
                if self.calls >= SETTLED_AFTER + 2 * MEASURED:
                    self._decide(compiled)
        captures = compiled.captures
        compiled.trial = None  # for this call
        begun = time.thread_time()
        try:
            return compiled(*args, **kwargs)
        finally:
            if compiled.captures != captures:
                self._begin()
            elif self.calls > SETTLED_AFTER:
                self.compiled_seconds.append(time.thread_time() - begun)
            if self._may_go_on(compiled):
                compiled.trial = self

    def _may_go_on(self, compiled: Compiled) -> bool:
        """Whether plain Python may be tried."""
        if self.calls < SETTLED_AFTER + MEASURED:
            return True
        if _median(self.compiled_seconds) > SHORT:
            return False
        segments = [specialisation.segment for specialisation in compiled.specialisations]
        inputs = [i.meta for segment in segments for i in segment.inputs]
        on_cpu = all(getattr(meta, "device", _CPU).type == "cpu" for meta in inputs)
        return on_cpu and not any(segment.asks_compiling for segment in segments)

    def _decide(self, compiled: Compiled) -> None:
        compiled_seconds, self.usual_seconds = _median(self.compiled_seconds), _median(self.native_seconds)
        if compiled_seconds <= SLOWER * self.usual_seconds:
            compiled.trial = None
            return
        took = [1e6 * seconds for seconds in (compiled_seconds, self.usual_seconds)]
        compiled.say_native("compiled calls took {:.0f} us, and calls in plain Python {:.0f} us".format(*took))
        self.native = True
        compiled.native_calls = UNTIMED

    def _timed_natively(self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        begun = time.thread_time()
        try:
            return compiled.call_natively(*args, **kwargs)
        finally:
            is_long = time.thread_time() - begun > LONG * self.usual_seconds
            self.long_calls = self.long_calls + 1 if is_long else 0
            compiled.native_calls = 0 if is_long else UNTIMED
            if self.long_calls >= LONG_CALLS:
                self.chances -= 1
                self._begin()
                if not self.chances:
                    compiled.trial = None


def _median(seconds: list[float]) -> float:
    if not seconds:  # another thread has begun anew
        return math.inf
    ordered = sorted(seconds)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


class _CPU:
    type = "cpu"
