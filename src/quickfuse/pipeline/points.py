"""Places in a program where segments begin, and what was compiled for each."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from .. import config
from ..drive.regions import Region, region_between
from ..emit.glue import MISS
from ..ir.guard import Guard
from ..ir.number_parameters import changed
from ..ir.source import Source, is_element
from .sizes import CompileTimes, Gains, Key, Sizes, by_sizes
from .specialise import Specialisation

#: How many specialisations may differ in the value of one number before the number's value counts as changing.
VOLATILE_AFTER = 4
#: The same where a program goes on after a break, where numbers count iterations. Of what an iterator gives, which differs
#: from turn to turn of a loop, one value is enough.
VOLATILE_AFTER_BREAK = 2
#: How many specialisations of sizes that grow by one there are before such sizes are symbols.
DYNAMIC_AFTER = 2
#: So many runs in a row in which what keeps changing had one value tell that it no longer does: a list that was filled and
#: has its full length. They are looked at after as many runs, and again after twice, four times, ... as many.
STEADY_AFTER = 16
#: How often a place is compiled for what no longer changes.
MOST_STEADY = 4
#: How many classes or functions of one name, each at the same place of a call of its own, tell that calls make them anew.
MADE_ANEW_AFTER = 3
#: Of so many specialisations it is found out why they do not fit, where they are many for their sizes.
MOST_ASKED = 6
#: Specialisations for other sizes take about so much memory, where they are more than `config.recompile_limit`.
MOST_BYTES = 256 << 20


#: Held while a list of specialisations is replaced, which takes no time: a thread that compiles does not hold up others. One
#: that tries to take the lock under which it compiles would keep it where a signal handler raises right after.
_lists = threading.RLock()


class Missed(NamedTuple):
    """What no specialisation fits: a call, or suspended frames. `known` were all that there were, those `tried` could have
    fitted by the sizes, which `sizes` looked up; `key` are these."""

    known: list[Specialisation]
    tried: list[Specialisation]
    sizes: Sizes | None
    key: Key | None


Steadier = Callable[["Point", list[Any]], Callable[..., Any] | None]


class Point:
    """A place in the program where a segment may begin: the call itself, or where a break left off.

    `specialisations` are tried in order, the most recently used first, but those for a call's `sizes` alone where they are
    looked up by these. After a break, those that leave to Python what keeps changing (`general`) come last: they fit where
    the others do, and a loop that runs again is to take the same ones. Where that has come to rest, one more is compiled
    for its value.
    """

    __slots__ = ("asked", "capturable", "changed", "failed_guards", "failures", "forgets", "frames", "gains", "general",
                 "general_runs", "lets_go", "like", "limit", "look_after", "made", "not_held", "other_sizes", "region",
                 "sizes", "specialisations", "steadier", "steady", "times", "tried", "tried_sizes", "unusual", "useful",
                 "values", "volatile")  # fmt: skip

    def __init__(
        self, like: FunctionType | None, codes: tuple[Any, ...] = (), volatile: frozenset[str] = frozenset(),
        lets_go: bool = True, steadier: Steadier | None = None, limit: int | None = None,
    ) -> None:  # fmt: skip
        """`like` is the compiled function, of a call of which this is a place. `steadier` gives what to run in place of one
        of `general`, if there is anything by now. `limit` stands for `config.recompile_limit` where the user gave one."""
        self.limit = limit
        self.steadier = steadier
        self.specialisations: list[Specialisation] = []
        self.sizes: Sizes | None = None  # of these, where they are looked up; never older than the list
        self.times, self.gains = CompileTimes(), Gains()
        self.region: Region | None = None  # after a break: what runs natively where none of them fits
        self.forgets = False  # whether there were more of them than are kept
        self.made = 0  # for how many sizes it was compiled here: what was forgotten counts again
        self.like = like
        self.general: set[Specialisation] = set()
        self.capturable = True
        self.failures = 0
        self.useful = False
        self.unusual = 0  # how often a branch had another outcome than usual
        self.other_sizes = 0  # how often dynamic sizes were others than expected
        self.asked: list[Specialisation] = []  # those of which it was found out why the last call did not fit
        self.failed_guards: list[Guard | None] = []  # these reasons, one for each
        self.volatile = volatile
        self.changed: frozenset[str] = frozenset()  # the numbers that had two values
        self.not_held: frozenset[str] = frozenset()  # what had a second value, and was captured without a guard on it
        self.tried: set[frozenset[str]] = set()  # what was captured so together, with success or not
        self.tried_sizes: frozenset[str] = frozenset()  # of which tensors it was tried to leave the sizes open
        self.lets_go = lets_go  # of each of the frames' values: none is an object whose end can be seen
        self.general_runs = 0  # how often one of `general` was taken
        self.look_after = STEADY_AFTER  # after how many of these what keeps changing is looked at, in a row of them
        self.values: dict[str, Any] = {}  # what was found then
        self.steady = 0  # how often something was the same in all of them
        self.frames = codes  # keeps the code objects alive whose identities name this place

    def add(self, specialisation: Specialisation, steady: bool = False, beside: int = 0) -> None:
        """Note what was compiled; `steady`: for the value that something has which kept changing before. `beside`: the bytes
        that what was compiled elsewhere takes for each that is here."""
        general = self.frames and self.volatile and not specialisation.segment.is_dynamic and not steady
        if general:
            self.general.add(specialisation)
        specialisation.note_use()
        segment = specialisation.segment
        if segment.resumes and (self.region is None or self.region.possible):
            ended = [(frame.code, frame.position) for frame in segment.frames] if segment.pause is not None else []
            self.region = region_between(segment.began, ended)
        with _lists:
            known = self.specialisations
            if self.sizes is not None and config.on_recompile_limit != "error":  # which counts all of them
                before, known = len(known), _with_room(known, specialisation, beside)
                self.forgets |= len(known) < before
                self.general.intersection_update([*known, specialisation])
            self._replace([*known, specialisation] if general else [specialisation, *known])
            self.made += self.forgets or self.sizes is None or self.sizes.is_new(specialisation)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], but: Specialisation | None = None) -> Any:
        """Run what fits a call, or suspended frames; `but` does not, as was seen. Gives what that gives, or what was
        `Missed`."""
        tried = known = self.specialisations
        sizes, key = self.sizes, None  # after the list: it is never older
        if sizes is not None:
            tried, key = sizes.find(known, args, kwargs)
        general = self.general
        for specialisation in tried:
            if specialisation is but:
                continue
            if general and specialisation in general:
                result = self._run_general(specialisation, args[0])
                if result is not MISS:
                    return result
                continue
            result = specialisation.run(*args, **kwargs)
            if result is not MISS:
                if sizes is not None:
                    sizes.used(specialisation, tried, key)
                elif specialisation is not tried[0]:
                    self.put_first(specialisation)
                return result
        return Missed(known, tried, sizes, key)

    def _run_general(self, specialisation: Specialisation, frames: list[Any]) -> Any:
        """Run what leaves to Python what keeps changing, or what was compiled for its value, and stays behind."""
        steady = None if self.steadier is None else self.steadier(self, frames)
        result = (steady or specialisation.run)(frames)
        if result is not MISS:
            specialisation.note_use()
        return result

    def _replace(self, specialisations: list[Specialisation]) -> None:
        self.asked = []
        self.sizes = by_sizes(specialisations, self.sizes, self.like)
        self.specialisations = specialisations

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any], why: Callable[[Specialisation], Guard | None]) -> None:
        """Find out why specialisations do not fit a call: of those for other sizes than its own, a few."""
        self.asked = self.specialisations
        if self.sizes is not None:
            fitting, key = self.sizes.find(self.asked, args, kwargs)
            first = [] if key is None else fitting
            asked = [*first, *(other for other in self.asked if other not in first)]
            self.asked = asked[: max(MOST_ASKED, len(first))]
        self.failed_guards = [why(specialisation) for specialisation in self.asked]

    def others(self, known: list[Specialisation]) -> list[Specialisation]:
        """What another thread compiled since these were all."""
        return [s for s in self.specialisations if s not in known]

    def is_full(self, tried: list[Specialisation], by_size: bool) -> bool:
        """Whether there are as many specialisations as may be, of which some were `tried` and do not fit. `by_size`: those
        for other sizes than the call's do not count, and may have been forgotten."""
        sizes = self.sizes if by_size else None
        count = len(self.specialisations) if sizes is None else min(len(tried), sizes.most_of_a_size())
        return count >= self.most() or (self.forgets and not by_size)

    def most(self) -> int:
        """How many specialisations there may be, but for other sizes."""
        return config.recompile_limit if self.limit is None else self.limit

    def forget_dynamic(self) -> None:
        """Sizes are held by guards from now on."""
        self.volatile = frozenset(name for name in self.volatile if ".shape[" not in name)
        self.forget(lambda specialisation: specialisation.segment.is_dynamic)

    def put_first(self, specialisation: Specialisation) -> None:
        """Try this one, which is not general, first from now on."""
        with _lists:
            others = [known for known in self.specialisations if known is not specialisation]
            if self.sizes is None and len(others) < len(self.specialisations):
                self.specialisations = [specialisation, *others]

    def forget(self, which: Callable[[Specialisation], bool]) -> None:
        """Forget some specialisations."""
        with _lists:
            self._replace([s for s in self.specialisations if not which(s)])

    def no_longer_changes(self, held: dict[str, Guard], value_of: Callable[[], Callable[[Source], Any]]) -> frozenset[str]:
        """One of `general` is about to run: what has kept changing, and had the same value in all of the last runs. `held`
        are guards on what keeps changing, by its name; `value_of` tells what is at a source now."""
        self.general_runs += 1
        if self.general_runs < self.look_after or self.steady >= MOST_STEADY:
            return frozenset()
        value_at = value_of()
        found = {name: _held_value(held[name], value_at) for name in self.volatile if name in held}
        if self.general_runs == self.look_after:
            self.values = found
        else:
            self.values = {name: value for name, value in self.values.items() if found.get(name, _GONE) == value}
        if self.values and self.general_runs < self.look_after + STEADY_AFTER:
            return frozenset()
        names, self.values = frozenset(self.values), {}
        self.look_after = 2 * self.general_runs
        self.steady += bool(names)
        return names

    def note_changed(self) -> None:
        """Note the numbers of which the failed guards hold a value."""
        held = [guard for guard in self.failed_guards if guard is not None and guard.values_held()]
        self.changed |= {changed(str(source)) for guard in held for source in guard.sources()}

    def made_anew(self) -> str | None:
        """The class or function that each call makes anew, if that is why none of several specialisations fits."""
        guards = [guard for guard in self.failed_guards if guard is not None and guard.kind in ("type", "is")]
        values = [guard.value for guard in guards if isinstance(guard.value, (type, FunctionType, MethodType))]
        if len(values) < MADE_ANEW_AFTER or len(values) < len(self.failed_guards):
            return None
        several = len({str(guard.source) for guard in guards}) > 1 or len({*map(id, values)}) < len(values)
        names = {(value.__module__, value.__qualname__) for value in values}
        return None if several or len(names) > 1 else f"{values[0].__qualname__} ({guards[0].source})"

    def growing_sizes(self, value_of: Callable[[Source], Any]) -> frozenset[str]:
        """The sizes of tensors that have grown by one from each of several specialisations to the next and to this call, as
        those of a cache do in generation: the names of symbols for them. `value_of` tells what is at a source now."""
        alike: dict[str, list[Specialisation]] = {}
        for specialisation, guard in zip(self.asked, self.failed_guards, strict=False):
            if guard is not None and guard.kind == "tensor":
                alike.setdefault(str(guard.source), []).append(specialisation)
        return frozenset().union(*[_growing_in(group, value_of) for group in alike.values() if len(group) >= DYNAMIC_AFTER])

    def keeps_changing(self) -> frozenset[str]:
        """The names of numbers, texts and lengths of which the failed guards hold too many values, and of parts of tensors
        of which they hold too many shapes."""
        failed = [guard for guard in self.failed_guards if guard is not None]
        # Each value counts once: specialisations that differ in something else may all hold the same one.
        held = {(name, guard.one_value(n)) for n, guard in enumerate(failed) for name in guard.values_held()}
        names = [name for name, _ in held]
        names += [str(g.source) for g in failed if g.kind == "tensor" and g.source is not None and g.source.kind == "part"]
        truths = [name for guard in failed if (name := guard.truth_values_held())]
        many = frozenset(name for name in truths if truths.count(name) >= VOLATILE_AFTER)  # one of them has only two values
        if not self.frames:
            return many | frozenset(name for name in names if names.count(name) >= VOLATILE_AFTER)
        return many | frozenset(name for name in names if is_element(name) or names.count(name) >= VOLATILE_AFTER_BREAK)


def _with_room(known: list[Specialisation], made: Specialisation, beside: int) -> list[Specialisation]:
    """Those that are kept beside one more: the ones used last, as far as there is room."""
    kept = 1
    room = MOST_BYTES - made.bytes_held - beside
    staying = set()
    for specialisation in sorted(known, key=lambda s: s.last_use, reverse=True):
        room -= specialisation.bytes_held + beside
        kept += 1
        if kept > config.most_sizes or (room < 0 and kept > config.recompile_limit):
            break
        staying.add(specialisation)
    return [specialisation for specialisation in known if specialisation in staying]


#: What no longer is where it was, which is no value of its own.
_GONE = float("nan")


def _held_value(guard: Guard, value_at: Callable[[Source], Any]) -> Any:
    """What a guard holds, as it is now: a length, a number or a text, or the numbers that one is computed from."""
    values = [value_at(source) for source in guard.sources()]
    if guard.kind == "length":
        return len(values[0]) if hasattr(values[0], "__len__") else _GONE
    return tuple(values) if all(type(value) in (int, float, bool, str) for value in values) else _GONE


def _growing_in(group: list[Specialisation], value_of: Callable[[Source], Any]) -> frozenset[str]:
    """The sizes that differ by one from one specialisation to the next, and from the last one to what they are now."""
    found: dict[str, list[tuple[int, ...]]] = {}
    sources: dict[str, Source] = {}
    for specialisation in group:
        for guard in specialisation.segment.guards:
            if guard.kind == "tensor" and guard.value[0] is torch.Tensor and guard.source is not None:
                found.setdefault(str(guard.source), []).append(guard.value[1].shape)
                sources[str(guard.source)] = guard.source
    names = []
    for name, shapes in found.items():
        if len(shapes) < DYNAMIC_AFTER or len(set(shapes)) < len(shapes):  # a cache is empty in the first of them
            continue
        now = value_of(sources[name])
        if type(now) is torch.Tensor and len({len(shape) for shape in (*shapes, now.shape)}) == 1:
            for axis, sizes in enumerate(zip(*sorted(shapes), now.shape, strict=True)):
                if _are_consecutive(sizes):
                    names.append(f"{name}.shape[{axis}]")
    return frozenset(names)


def _are_consecutive(sizes: Sequence[int]) -> bool:
    return all(one + 1 == two for one, two in itertools.pairwise(sizes))
