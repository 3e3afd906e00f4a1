"""Calls whose tensors have other sizes from one to the next: batches of other lengths, images, a last batch.

Each combination of sizes is a specialisation of its own. They are looked up by the sizes in which they differ. Compiling
takes some hundred times as long as a call, so that a size is not worth it which never comes again. Nobody knows that
beforehand: past the first few, a size runs in plain Python until compiled code would have saved, in all its calls together,
what compiling it takes. So sizes that never come again cost nothing more than in plain Python, and those that recur no more
than twice what would have been lost by compiling them at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FunctionType, TracebackType
from typing import Any

from ..emit.glue import MISS
from ..emit.sizes_reader import shapes_held, sizes_reader
from ..ir.frame import Suspension
from ..ir.source import Source
from ..ir.values import TensorMeta
from .specialise import Specialisation, helpers

#: Specialisations for so many sizes are looked up by these.
LOOKED_UP_FROM = 2
#: So many sizes are compiled as soon as they come: batches, the last of them, and the same of another data set. But from the
#: third on only where compiling them takes no more than this share of the time that the program has run since the first. On
#: a GPU as many as ever: plain Python may need much more of its memory.
AT_ONCE = 5
CHEAP = 0.05
#: At so many sizes it is seen whether they grow (see `Point.growing_sizes`), and at so many whether what computes with such
#: tensors may be left to Python (see `other_sizes`).
MAY_GROW, MAY_BE_LEFT = 3, 5
#: Where no time is taken, and as many are compiled as are kept: after so many calls another one is forgotten for a size.
FORGET_FOR = 64
#: A call with a backward outside takes so many times as long as the call alone, about.
WITH_BACKWARD = 3
#: Calls of a size that pass before it is measured what compiled code saves (fewer, of calls that take so many seconds), and
#: those of which the median counts.
WARM_UP, MEASURED = 8, 5
WARM_UP_OF_LONG, LONG = 2, 0.001
#: The share that is thought to be saved before that, and at the least. Of the four small programs in
#: `benchmarks/varying_sizes.py`, whole steps save 0.4 to 0.8, those with a backward outside 0.15 to 0.2, and evaluation 0.2
#: to 0.6.
UNKNOWN_GAIN, SMALLEST_GAIN = 0.3, 0.05
#: By the sizes of at most so many tensors.
MOST_TENSORS = 8
#: Of so many sizes that run in plain Python it is known for how long they did.
MOST_WAITING = 4096

Shape = tuple[int, ...]
Key = tuple[Shape, ...]


class Waiting:
    """Calls with sizes that are not compiled yet: how many of them ran in plain Python, and how long these took; and whether
    they are compiled now."""

    __slots__ = ("calls", "over", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.over = False
        self.seconds = 0.0

    def note(self, seconds: float) -> None:
        """A call in plain Python has ended. Other threads may do the same."""
        self.calls += 1
        self.seconds += seconds


class Sizes:
    """The specialisations of a place in the program, by the shapes of the tensors in which they differ.

    `others` are those which hold for more than one shape, or of which that is not known: they come after those for a shape.
    `on_cpu`: all that is computed with is there. `read` is made of `read_by`, and is not kept for longer, as it holds
    objects of the user's that are on the way.
    """

    __slots__ = ("names", "on_cpu", "others", "read", "read_by", "table", "waiting")

    def __init__(
        self, names: list[str], read_by: Specialisation, read: Callable[..., Any], waiting: dict[Key | None, Waiting],
        on_cpu: bool,
    ) -> None:  # fmt: skip
        self.names = names
        self.read_by = read_by
        self.read = read
        self.table: dict[Key, list[Specialisation]] = {}
        self.others: list[Specialisation] = []
        self.waiting = waiting
        self.on_cpu = on_cpu

    def find(self, known: list[Specialisation], args: Any, kwargs: Any) -> tuple[list[Specialisation], Key | None]:
        """Those of the `known` specialisations whose sizes a call has, or suspended frames, and these sizes. All of them and
        None where a call's tensors are not where they were: each looks at its own guards anyway."""
        key = self.read(*args, **kwargs)
        if key is MISS:
            return known, None
        return self.table.get(key, self.others), key

    def used(self, specialisation: Specialisation, tried: list[Specialisation], key: Key | None) -> None:
        """Note that a specialisation was of use, of those that were tried."""
        specialisation.note_use()
        if specialisation is not tried[0] and key in self.table and specialisation not in self.others:
            self.table[key] = [specialisation, *(other for other in tried if other is not specialisation)]

    def most_of_a_size(self) -> int:
        """How many specialisations there are for a call at the most."""
        return max(map(len, self.table.values()), default=0)

    def is_new(self, specialisation: Specialisation) -> bool:
        """Whether a specialisation is the only one for its size."""
        alone = 1 + len(self.others)
        return not any(len(found) > alone and specialisation in found for found in self.table.values())

    def is_worth(self, waiting: Waiting, seconds: float, gains: Gains) -> bool:
        """Whether what compiled code would have saved by now is as much as compiling a size takes."""
        of_size = next(iter(self.table.values()), self.others)
        times = WITH_BACKWARD if any(known.backwards for known in of_size) else 1
        return times * gains.share() * waiting.seconds >= seconds

    def seen(self) -> set[Key]:
        """The sizes that there were, as far as that is known."""
        return {*self.table, *[key for key in [*self.waiting] if key is not None]}

    def is_at_once(self, key: Key | None, times: CompileTimes) -> bool:
        """Whether one of the first few sizes is compiled as it comes."""
        if len(self.table) >= AT_ONCE:
            return False
        return key in self.table or times.are_cheap()

    def wait_for(self, key: Key | None) -> Waiting:
        """What is known of calls with these sizes that no specialisation fits; None for those without such tensors."""
        found = self.waiting.get(key)
        if found is None:
            for oldest in [*self.waiting][: max(0, 1 + len(self.waiting) - MOST_WAITING)]:
                self.waiting.pop(oldest, None)
            found = self.waiting.setdefault(key, Waiting())
        return found


def by_sizes(specialisations: list[Specialisation], before: Sizes | None, like: FunctionType | None) -> Sizes | None:
    """Some specialisations of `like` by sizes, if there are enough of these; `before` is what there was until now."""
    if like is None or (before is None and len(specialisations) < LOOKED_UP_FROM):
        return None
    held = [held_by(specialisation) for specialisation in specialisations]
    newest = next((k for k, shapes in enumerate(held) if shapes), None)
    if newest is None:
        return None
    names = _telling(held, held[newest])
    if names is None and before is not None and all(name in held[newest] for name in before.names):
        names = before.names  # the others were forgotten
    if names is None:
        return None
    same = before is not None and before.names == names
    if before is not None and same and before.read_by in specialisations:
        made = Sizes(names, before.read_by, before.read, before.waiting, before.on_cpu)
    else:
        segment, sources = specialisations[newest].segment, [held[newest][name][0] for name in names]
        on_cpu = all(i.meta.device.type == "cpu" for i in segment.inputs if isinstance(i.meta, TensorMeta))
        read = sizes_reader(segment, sources, like, helpers())
        made = Sizes(names, specialisations[newest], read, before.waiting if before is not None and same else {}, on_cpu)
    for specialisation, shapes in zip(specialisations, held, strict=True):
        if all(name in shapes for name in names):
            made.table.setdefault(tuple([shapes[name][1] for name in names]), []).append(specialisation)
        else:
            made.others.append(specialisation)
    for found in made.table.values():
        found += made.others
    return made


def held_by(specialisation: Specialisation) -> dict[str, tuple[Source, Shape]]:
    """The shapes that its guards hold (see `shapes_held`)."""
    if specialisation.shapes is None:
        specialisation.shapes = shapes_held(specialisation.segment)
    return specialisation.shapes


def _telling(held: Sequence[dict[str, tuple[Source, Shape]]], places: dict[str, Any]) -> list[str] | None:
    """Names of a few tensors whose shapes tell specialisations apart as far as shapes can; None if these are too few."""
    chosen: list[str] = []
    told = 1
    keys: list[Key | None] = [()] * len(held)  # None where a specialisation has no such tensor
    for name in sorted(places, key=len):
        shapes = [known[name][1] if name in known else None for known in held]
        if len(set(shapes)) > 1 and len(chosen) < MOST_TENSORS:
            finer = [None if k is None or s is None else (*k, s) for k, s in zip(keys, shapes, strict=True)]
            if len({*finer} - {None}) > told:
                chosen, keys, told = [*chosen, name], finer, len({*finer} - {None})
    return chosen if told >= LOOKED_UP_FROM else None


class Gains:
    """How much of plain Python's time compiled code saves: measured in the first calls with a size that ran in plain Python
    before. Nothing is measured in later calls."""

    def __init__(self) -> None:
        self._found: deque[float] = deque(maxlen=5)

    def share(self) -> float:
        """The share that is saved, as far as it is known: the first size that is compiled tells."""
        if not self._found:
            return UNKNOWN_GAIN
        return max(sorted(self._found)[len(self._found) // 2], SMALLEST_GAIN)

    def measure(self, specialisation: Specialisation, native: float) -> None:
        """Take the time of the next calls; one in plain Python takes so many seconds."""
        to_the_end = not specialisation.segment.resumes
        run, seconds = specialisation.run, list[float]()
        warm_up = WARM_UP if native < LONG else WARM_UP_OF_LONG

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.thread_time()
            result = run(*args, **kwargs)
            if result is MISS:
                return result
            seconds.append(time.thread_time() - begun)
            done = len(seconds) >= warm_up + MEASURED  # threads may run it at a time
            if done or (to_the_end and type(result) is Suspension):  # that goes on as another one
                specialisation.run = run
                if done:
                    self._found.append(1.0 - sorted(seconds[warm_up:])[MEASURED // 2] / native)
            return result

        like: Any = run
        timed.__defaults__, timed.__kwdefaults__ = like.__defaults__, like.__kwdefaults__  # see `has_signature_of`
        specialisation.run = timed


class CompileTimes:
    """How long compiling for another size takes; of a call, what was compiled of it at breaks counts, too. A context in
    which one place is compiled. Kernels for a GPU are compiled by other processes, and what passes meanwhile counts."""

    def __init__(self) -> None:
        self._of_sizes: deque[list[float]] = deque(maxlen=5)  # of this thread, and what passed
        self._begun = 0.0, 0.0
        self._usual = 0.0, 0.0
        self._first: float | None = None  # when the first was compiled
        self._passed = 0.0  # in compiling, since then

    def begin_size(self) -> None:
        """What is compiled from here on is for another size."""
        self._of_sizes.append([0.0, 0.0])

    def __enter__(self) -> None:
        self._begun = time.thread_time(), time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._of_sizes:
            self._of_sizes[-1][0] += time.thread_time() - self._begun[0]
            self._of_sizes[-1][1] += time.perf_counter() - self._begun[1]
            middle = (len(self._of_sizes) - 1) // 2
            thread, passed = [sorted(of_size)[middle] for of_size in zip(*self._of_sizes, strict=True)]
            self._usual = thread, passed
        now = time.perf_counter()
        if self._first is None:
            self._first = now
        else:
            self._passed += now - self._begun[1]

    def are_cheap(self) -> bool:
        """Whether compiling for one more size takes little of the time since the first, with what others took."""
        since = 0.0 if self._first is None else time.perf_counter() - self._first
        return self._passed + self.usual(on_cpu=False) <= CHEAP * since

    def usual(self, on_cpu: bool = True) -> float:
        """The seconds for one size: the middle of the last ones, of which the first of all took longer."""
        return self._usual[0 if on_cpu else 1]
