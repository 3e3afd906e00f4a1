"""Compares a program of `lives` that was compiled with its twin in eager PyTorch, after each call and event.

Numbers are float64 and may differ by 1e-7 of each tensor's largest element. Where they differ by more, the twin runs again
with operators that round at random (`training.rounding`): what that does to the results, no test of them can see.
"""

from __future__ import annotations

import atexit
import collections
import functools
import gc
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import quickfuse
from lives.execute import Listener, Record, Seen, execute
from quickfuse import config, logs
from quickfuse.pipeline import compiled
from training.contiguous import ContiguousNorms
from training.execute import TooSlow
from training.rounding import RandomRounding

SHARE = 1e-7
MARGIN = 16
NEIGHBOURS = 4
#: What guards say about numbers that count steps, or what is kept, and decide something: also of schedulers, ASGD and RAdam,
#: and hooks that fail once. A line search goes other ways by itself.
COUNTING = ("scheduler", "['mu']", "rho", "['betas'][1] **", "C['cache']", "C['place']", "['calls'] + 1",
            ".after - 1", "'].at + 1", "== 'better'", "torch/optim/lbfgs.py")  # fmt: skip
#: What programs branch by that their tensors decide: a call that goes another way than those before compiles that way.
BRANCHES = ("total(", "done.all()")
#: What eager raises in the middle of a backward, with some gradients given by then. One that was compiled computes all of
#: them first, and need not mind the change: from there on the two have nothing in common.
TOO_LATE = "needed for gradient computation has been modified by an inplace operation"
#: What quickfuse logs where it gives up what it should not.
COMPLAINTS = ("internal error", "recompile_limit", "recompile limit")


@dataclass
class Report:
    """What became of a program: `kind` is "right", "invalid", "wrong", "exception", "internal error", "recompiles",
    "too slow" or "native"."""

    kind: str = "right"
    text: str = ""
    #: What a smaller program must have in common to be the same failure.
    what: str = ""
    graphs: int = 0
    excused: int = 0
    logged: list[str] = field(default_factory=list)

    def note(self, at: int, expected: Record, found: Record, differences: list[str]) -> None:
        """What differs after one call or event."""
        where = f"{at}, {'call' if expected.call else 'event'} {expected.name!r}"
        shown = "\n  ".join(differences[:10] + [f"and {len(differences) - 10} more"] * (len(differences) > 10))
        raised = found.trace if found.error != expected.error else ""
        self.kind = "internal error" if "InternalError" in found.error else "exception" if raised else "wrong"
        self.what = found.error[:60] if raised else ("call" if expected.call else expected.name)
        self.text = f"{where}\n  {shown}\n{raised}"


#: Says in a report how the records of a program that was compiled, the last argument, are not those of eager.
Judge = Callable[["Report", str, list[Record], list[Record]], None]


@functools.cache
def _keep_what_is_here() -> None:
    """Programs collect garbage often, and to look through PyTorch takes half a second each time."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # for libraries that complain of what is not let go of in the end


def check(
    source: str, plain: bool = False, defaults: bool = False, mode: str | None = None, judge: Judge | None = None
) -> Report:  # fmt: skip
    """Run a program in eager PyTorch and compiled, and compare.

    Args:
        plain: compare eager with eager.
        defaults: with quickfuse's settings as users have them, which measures short calls.
        mode: of `quickfuse.compile`.
        judge: what compares, if not `judge_life`.
    """
    _keep_what_is_here()
    quickfuse.reset()
    gc.collect()
    judge, report = judge or judge_life, Report()
    try:
        expected = execute(source)
    except (Exception, TooSlow) as error:
        return Report("invalid", f"eager: {type(error).__name__}: {error}", type(error).__name__)
    try:
        found = execute(source) if plain else _compiled(source, report, defaults, mode)
    except TooSlow as slow:
        return Report("too slow", str(slow))
    except Exception as error:
        return Report("exception", f"between calls: {type(error).__name__}: {error}", type(error).__name__)
    judge(report, source, expected, found)
    if report.kind == "right":
        complaints = [line for line in report.logged if any(c in line for c in COMPLAINTS)]
        if complaints:
            report.kind, report.text, report.what = "native", complaints[0], complaints[0][:40]
    return report


def _compiled(source: str, report: Report, defaults: bool, mode: str | None) -> list[Record]:
    made: list[Any] = []

    def compiler(function: Any, **options: Any) -> Any:
        made.append(quickfuse.compile(function, **{"mode": mode} | options))
        return made[-1]

    def captures() -> int:
        return sum(c.captures for c in [*compiled._live])

    listener = Listener(report.logged)
    settings: dict[str, Any] = {"raise_internal_errors": True, "measure_short_calls": defaults, "verify": False}
    if not defaults:
        settings["cuda_graph_launches"] = 0
    before = {name: getattr(config, name) for name in settings}
    propagates, level = logs.log.propagate, logs.log.level
    logs.log.addHandler(listener)
    logs.log.propagate = False
    logs.log.setLevel(logging.DEBUG)
    logs.set_logs(graph_breaks=True, recompiles=True)
    for name, value in settings.items():
        setattr(config, name, value)
    try:
        records = execute(source, compiler, quickfuse.reset, captures, report.logged)
        report.graphs = sum(getattr(c, "graph_count", 0) for c in made)
        return records
    finally:
        for name, value in before.items():
            setattr(config, name, value)
        logs.set_logs(graph_breaks=False, recompiles=False)
        logs.log.removeHandler(listener)
        logs.log.propagate = propagates
        logs.log.setLevel(level)


# recompilations -------------------------------------------------------------------------------------------------


def _recompiles(records: list[Record]) -> Iterator[tuple[str, str]]:
    """Calls that capture something though they were made twice before without that, and nothing but quiet events came since.

    Twice: the first of them may have changed what the second finds, as where gradients add up. And after the same call,
    which may leave gradients, or none.
    """
    settled: collections.Counter[tuple[str, str]] = collections.Counter()
    previous = ""
    for record in records:
        if not record.call:
            settled = settled if record.quiet else collections.Counter()
        elif record.captures or record.error:
            reasons = [line for line in record.logged if "[recompiles]" in line]
            expected = record.error or any(c in line for line in reasons for c in COUNTING)
            if settled[previous, record.name] > 1 and not expected:
                yield "recompiles", f"{record.name}: {reasons or record.logged}"
            settled.clear()
        else:
            settled[previous, record.name] += 1
        previous = record.name if record.call else previous


# numbers --------------------------------------------------------------------------------------------------------


def judge_life(report: Report, source: str, expected: list[Record], found: list[Record]) -> None:
    _compare(source, expected, found, report)
    if report.kind == "right" and not any(text in source for text in BRANCHES):
        report.kind, report.text = next(_recompiles(found), ("right", ""))


def _compare(source: str, expected: list[Record], found: list[Record], report: Report) -> None:
    comparison = Comparison(source, expected, report)
    for at, (e, f) in enumerate(zip(expected, found, strict=True)):
        if TOO_LATE in e.error and (TOO_LATE in f.error or not f.error):
            return
        if differences := [*comparison.differences(at, e, f)]:
            report.note(at, e, f, differences)
            return


class Comparison:
    """A run in eager PyTorch, and further ones that say how exact it can be."""

    def __init__(
        self, source: str, expected: list[Record], report: Report, units: int = 4, further: int = NEIGHBOURS
    ) -> None:
        """`units` in the last place may differ of each tensor's largest element; `further` runs may say more."""
        self.source, self.expected, self.report, self.units, self.further = source, expected, report, units, further
        self._neighbours: list[list[Record]] | None = None
        self._contiguous: list[Record] | None = None

    def differences(self, at: int, expected: Record, found: Record) -> Iterator[str]:
        if expected.error != found.error:
            yield f"raised {found.error or 'nothing'!r} where eager raised {expected.error or 'nothing'!r}"
        missing = expected.state.keys() ^ found.state.keys()
        if missing:
            yield f"only in one of the two: {sorted(missing)[:5]}"
        for name, e in expected.state.items():
            f = found.state.get(name)
            if name in missing:
                continue
            if isinstance(e, Seen) and isinstance(f, Seen):
                if e.facts != f.facts:
                    yield f"{name}: {[x for x, y in zip(f.facts, e.facts, strict=True) if x != y]} where eager has " + str(
                        [y for x, y in zip(f.facts, e.facts, strict=True) if x != y])  # fmt: skip
                elif text := self._numbers(at, name, e.values, f.values):
                    yield f"{name}: {text}"
            elif isinstance(e, torch.Tensor) and isinstance(f, torch.Tensor):
                if not torch.equal(e, f):
                    yield f"{name}: another state"
            elif isinstance(e, float) and isinstance(f, float):
                if text := self._numbers(at, name, torch.tensor(e), torch.tensor(f)):
                    yield f"{name}: {text}"
            elif type(e) is not type(f) or e != f:
                yield f"{name}: {f!r} where eager has {e!r}"

    def _numbers(self, at: int, name: str, e: torch.Tensor, f: torch.Tensor) -> str:
        if torch.equal(e, f):
            return ""
        if not e.is_floating_point() and not e.is_complex():
            others = [_values(run[at].state.get(name), e) for run in self.neighbours]
            steady = torch.stack([other == e for other in others]).all(0) if others else torch.ones_like(e, dtype=torch.bool)
            off = int(((e != f) & steady).sum())
            return f"{off} of {e.numel()} elements differ" if off else ""
        finite, other = e.isfinite() & f.isfinite(), _unusual(e) != _unusual(f)
        size = float(e[finite].abs().max()) if finite.any() else 0.0
        off, allowed = _distance(e, f), max(SHARE, self.units * torch.finfo(e.dtype).eps) * size + 1e-13
        if off <= allowed and not other.any():
            return ""
        noises = [_values(run[at].state.get(name), e) for run in self.neighbours]
        noise = max((_distance(e, n) for n in noises), default=0.0)
        for n in noises:
            other &= _unusual(n) == _unusual(e)
        if other.any() and self._squares_overflow(at):
            self.report.excused += 1
            other &= ~f.isfinite()
        if other.any():
            return f"other elements are infinite or no numbers: {f[other][:4].tolist()} where {e[other][:4].tolist()}"
        if off <= MARGIN * noise:
            self.report.excused += 1
            return ""
        if self.contiguous and _distance(_values(self.contiguous[at].state.get(name), e), f) <= max(allowed, MARGIN * noise):
            self.report.excused += 1
            return ""
        return f"off by {off:.2g}, at most {allowed:.2g} expected, of {size:.2g}"

    def _squares_overflow(self, at: int) -> bool:
        """Whether eager has numbers in float32 whose squares are too large for it. Its norms make no numbers of these, while
        our sums are wider (decision 13)."""
        seen = [value for record in self.expected[max(at - 1, 0) : at + 1] for value in record.state.values()]
        numbers = [value.values for value in seen if isinstance(value, Seen) and value.values.dtype is torch.float32]
        return any(bool((n.abs() > math.sqrt(torch.finfo(n.dtype).max)).any()) for n in numbers)

    @property
    def contiguous(self) -> list[Record]:
        """Eager with normalisations of contiguous tensors: of others, PyTorch's gradients are wrong sometimes."""
        if self._contiguous is None:
            run = execute(self.source, around=ContiguousNorms())
            self._contiguous = run if len(run) == len(self.expected) else []
        return self._contiguous

    @property
    def neighbours(self) -> list[list[Record]]:
        """Eager, rounding at random."""
        if self._neighbours is None:
            self._neighbours = []
            for seed in range(1, self.further + 1):
                run = execute(self.source, around=RandomRounding(seed))
                if len(run) == len(self.expected):
                    self._neighbours.append(run)
        return self._neighbours


def _values(seen: Any, default: torch.Tensor) -> torch.Tensor:
    """The numbers of a neighbour under a name, if it has as many."""
    values = seen.values if isinstance(seen, Seen) else torch.tensor(seen) if isinstance(seen, float) else default
    return values if values.shape == default.shape else default


def _unusual(values: torch.Tensor) -> torch.Tensor:
    """What each element is, if it is no finite number."""
    if values.is_complex():
        return _unusual(values.real) + 8 * _unusual(values.imag)
    return values.isnan().int() + 2 * values.isposinf().int() + 4 * values.isneginf().int()


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    both = a.isfinite() & b.isfinite()
    wide = torch.complex128 if a.is_complex() else torch.float64
    distance = float((a[both].to(wide) - b[both].to(wide)).abs().max()) if both.any() else 0.0
    return math.inf if math.isnan(distance) else distance
