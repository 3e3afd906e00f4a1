"""Whether compiled code is worth running: measured, for functions whose calls are short.

A break costs some microseconds, as much as a few operators on small tensors. Where such a function has settled, some calls
run compiled and as many as plain Python, each a call of the program like any other; from then on all run as what was faster.
Arguments may take turns of which one is quick, and a call may wait for something else: whole rounds are compared, and of
each turn the quickest. A function that is still compiled again now and then after many calls is compared with what that
takes. Plain Python is timed now and then: where it takes longer than it did, tensors have grown, and compiled code gets
another chance. The other calls run no Python of ours: they cost a tenth of a microsecond.

No call in plain Python has a frame of ours below it, for the program may look (`warnings.warn(..., stacklevel=2)` does):
time is taken before such a call, and by the object that is called, when it is let go.
"""

from __future__ import annotations

import functools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable
from itertools import chain, cycle, repeat
from typing import TYPE_CHECKING, Any

from ..control import disabled
from ..ir.marks import keep_peer_out
from .worth import results_of

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
#: The same where graphs with breaks between them make so few bytes, all their operators' results together, that plain Python
#: takes no more memory: kernels gain little there, and breaks cost all the same.
SHORT_BETWEEN_BREAKS = 0.05
FEW_BYTES = 2**24
#: A call in plain Python is long that takes so many times as long as those before; so many in a row end it.
LONG = 4.0
LONG_CALLS = 4
#: Where calls have many sizes, some compiled calls and other ones in plain Python tell only of differences like this.
VARIED = 1.25
FEW_SIZES = 2
#: How many calls in plain Python are not timed after one that is.
UNTIMED = 255
#: How often compiled code gets another chance.
CHANCES = 3


class Trial:
    """What was measured of one function."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled
        self.chances = CHANCES
        self.trying = _called_as(self._tried, compiled.call_natively)
        self.timing = _called_as(self._timed, compiled.call_natively)
        self._begin()

    def _begin(self) -> None:
        self.native = False
        self.all_calls = 0
        self.recent_seconds: deque[float] = deque(maxlen=RECENT)
        self._settle()

    def _settle(self) -> None:
        self.settles = True
        self.short = SHORT
        self.calls = 0
        self.compiled_seconds: list[float] = []
        self.native_seconds: list[float] = []
        self.usual_seconds = 0.0  # of a call in plain Python
        self.long_calls = 0
        #: When calls in plain Python began and ended, and what notes their ends.
        self.records: list[tuple[list[float], Any]] = []

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function as compiled code."""
        compiled = self.compiled
        if disabled.depth:
            return compiled.call_natively(*args, **kwargs)
        self.calls += 1
        captures, for_sizes = compiled.captures, compiled.for_sizes
        compiled.__call__ = compiled.call_compiled  # also where this call calls the function again
        begun = time.thread_time()
        try:
            return compiled(*args, **kwargs)
        finally:
            if compiled.for_sizes == for_sizes:
                self._note(time.thread_time() - begun, compiled.captures != captures)
            else:  # a call in plain Python for now, or one that is compiled since these took as long
                self.calls -= 1
            if compiled.trial is self and not self.native:
                if self._may_go_on():
                    compiled.__call__ = self.call if self.calls < SETTLED_AFTER + MEASURED else self.trying
                else:
                    self._stay_compiled()

    def _tried(self, _: Any) -> Callable[..., Any]:
        """What to call to find out how long plain Python takes."""
        compiled = self.compiled
        if disabled.depth:
            return compiled.call_natively
        self.native_seconds += self._ended()
        if compiled.trial is not self:  # `reset()` came meanwhile, or another thread decided
            return compiled
        if sum(seconds > self.short for seconds in self.native_seconds) > 1:
            self._stay_compiled()
        elif len(self.native_seconds) >= MEASURED:
            self._decide()
        else:
            return self._watched()
        return compiled

    def _watched(self) -> Callable[..., Any]:
        """A call in plain Python that is timed. Its end is noted without Python code, where Ctrl-C would be lost."""
        called, record = functools.partial(self.compiled.call_natively), [0.0]
        end = functools.partial(next, map(record.append, iter(time.thread_time, None)))
        self.records.append((record, weakref.ref(called, end)))
        record[0] = time.thread_time()
        return called

    def _ended(self) -> list[float]:
        """How long those took that have ended since this was asked last."""
        records, self.records = self.records, []
        self.records += [record for record in records if len(record[0]) == 1]
        return [record[1] - record[0] for record, _ in records if len(record) == 2]

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
        self.short = _short(self.compiled)
        if self.settles and min(self.compiled_seconds, default=0.0) > self.short:
            return False
        segments = [specialisation.segment for specialisation in self.compiled.specialisations]
        inputs = [i.meta for segment in segments for i in segment.inputs]
        on_cpu = all(getattr(meta, "device", _CPU).type == "cpu" for meta in inputs)
        return on_cpu and not any(segment.asks_compiling for segment in segments)

    def _decide(self) -> None:
        compiled = self.compiled
        compiled_seconds, self.usual_seconds = _of_a_call(self.compiled_seconds), _of_a_call(self.native_seconds)
        sizes = compiled.entry.sizes
        varied = VARIED if sizes is not None and len(sizes.table) > FEW_SIZES else 1.0
        if compiled_seconds <= varied * self.usual_seconds:
            self._stay_compiled()
            return
        took = [1e6 * seconds for seconds in (compiled_seconds, self.usual_seconds)]
        compiled.say_native("compiled calls took {:.0f} us, and calls in plain Python {:.0f} us".format(*took))
        self.native = True
        self._untimed_mostly = _in_turns(compiled.call_natively, UNTIMED, self.timing)
        compiled.__call__ = self._untimed_mostly

    def _stay_compiled(self) -> None:
        self.compiled.trial = None
        self.compiled.__call__ = self.compiled.call_compiled

    def _timed(self, _: Any) -> Callable[..., Any]:
        """What to call where time is taken now and then, and in the call after that."""
        compiled = self.compiled
        if compiled.trial is not self or not self.native or disabled.depth:  # as in `_tried`
            return compiled.call_natively
        ended = self._ended()
        for seconds in ended:
            self.long_calls = self.long_calls + 1 if seconds > LONG * self.usual_seconds else 0
        if ended and not self.long_calls:
            compiled.__call__ = self._untimed_mostly
            return compiled.call_natively
        if self.long_calls < LONG_CALLS:
            compiled.__call__ = self.timing
            return self._watched()
        self.chances -= 1
        self._begin()
        compiled.__call__ = self.call
        if not self.chances:
            self._stay_compiled()
        return compiled


def _in_turns(first: Callable[..., Any], times: int, second: Callable[..., Any]) -> Callable[..., Any]:
    """What calls the first so many times and the second once, and so on. No call of it runs any Python but theirs."""
    turns = chain.from_iterable(map(repeat, cycle((first, second)), cycle((times, 1))))
    return _called_as(functools.partial(next, turns), first)


def _called_as(chosen: Callable[[Any], Callable[..., Any]], like: Callable[..., Any]) -> Callable[..., Any]:
    """An object that is called as what is chosen before each call, and has the signature of the other one."""
    namespace = {"__slots__": (), "__call__": property(chosen), "__wrapped__": staticmethod(like)}
    return type("Called", (), namespace)()  # type: ignore[no-any-return]


def _of_a_call(seconds: list[float]) -> float:
    """How long a call takes, by two rounds."""
    if len(seconds) < MEASURED:  # another thread has begun anew
        return math.inf
    return sum(map(min, seconds[:ROUND], seconds[ROUND:MEASURED])) / ROUND


def _short(compiled: Compiled) -> float:
    """The seconds that a call of this function takes at the most for plain Python to be tried."""
    if not compiled.breaks:
        return SHORT
    nodes = (node for specialisation in compiled.specialisations for node in specialisation.segment.graph.nodes)
    made = (value for node in nodes if node.op != "placeholder" for value in results_of(node.meta.get("val")))
    return max(SHORT, SHORT_BETWEEN_BREAKS) if sum(meta.nbytes for meta in made) <= FEW_BYTES else SHORT


class _CPU:
    type = "cpu"


for _function in (Trial.call, Trial._tried, Trial._timed, Trial._watched, Trial._ended, Trial._decide):
    keep_peer_out(_function)
