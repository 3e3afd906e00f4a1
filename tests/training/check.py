"""Compares a compiled training program with eager PyTorch. Nothing here knows how quickfuse works.

In float64 the two may differ by 1e-7 of each tensor's largest element. In float32 both are compared with eager in float64,
and ours may be off by a small multiple of what eager is off. Where that is not enough, eager is run again, with operators
that round at random (`training.rounding`): what that does to the results, no test of them can see. So it is with biases
before a norm, whose gradients are nothing but rounding errors, which some optimizers scale up to whole steps, and with
what cancels inside of a saturated softmax. A step whose numbers are too large for float32 may have infinite numbers and none
in other places. Where eager itself gives another answer for the same images in another layout, and ours is the one for
contiguous images, eager's counts as wrong.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

import quickfuse
from quickfuse import config, errors, logs
from training.execute import Program, Run, Snapshot, TooSlow, execute

#: What a result may differ by in float64, as a share of the largest element.
SHARE = 1e-7
#: The same as a share of the largest of its kind, such as all gradients: a sum of a thousand numbers one by one, as that of
#: the gradients of a bias before a norm, which is zero, may be off by some hundred units of its largest part.
SUMS = 1e-13
#: What quickfuse logs where it gives up what it should not.
COMPLAINTS = ("internal error", "operator by operator", "stays a call")
#: The documented exceptions: optimizers with `fused=True`, recurrent layers that PyTorch runs as one operator, and gradients
#: through custom functions; leaves made inside, with a break after them, are one too; gradients of results by each other.
LIMITS = (
    "_fused_", "a recurrent layer, which keeps", "gradients flow through more than one graph", "requires_grad_ stays a call",
    "gradients of results by each other",
)  # fmt: skip
#: Eager runs that round at random, made where a comparison fails, and what they may be off by in comparison. The further
#: ones are made where the first explain nothing: an optimizer that divides by what it adds up makes whole steps of the sign
#: of a gradient that is nothing but rounding errors, and where a sign is as likely to change as not, four runs agree once in
#: sixteen times. None of them knows anything of ours: a difference that rounding does not explain stays one.
NEIGHBOURS = 4
FURTHER = 12
MARGIN = 16


@dataclass
class Finding:
    """`kind`: "wrong", "internal error", "too slow", "exception", "native", or "invalid": a program that eager refuses."""

    kind: str
    detail: str
    #: What a smaller program must have in common to be the same failure.
    what: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass
class Report:
    """What became of one program."""

    finding: Finding | None = None
    #: What quickfuse logged, such as graph breaks.
    logged: list[str] = field(default_factory=list)
    graphs: int = 0
    excused: list[str] = field(default_factory=list)
    #: Values for which eager gives another answer where the same images are contiguous, which is ours.
    disputed: list[str] = field(default_factory=list)


class Recorder(logging.Handler):
    """Takes what quickfuse logs."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def check(program: Program, compiled: bool = True) -> Report:
    """Run a program in eager PyTorch and compiled, and compare; without `compiled`, in eager twice."""
    report = Report()
    try:
        expected = execute(program)
    except (Exception, TooSlow) as error:
        report.finding = Finding("invalid", f"eager: {type(error).__name__}: {error}")
        return report
    found = _run_compiled(program, report) if compiled else execute(program)
    if found is None:
        return report
    differences = list(Comparison(program, expected, found, report).differences())
    if differences:
        shown = "\n  ".join(differences[:12] + [f"and {len(differences) - 12} more"] * (len(differences) > 12))
        report.finding = Finding("wrong", f"{len(differences)} values differ\n  {shown}")
    elif complaints := [line for line in report.logged if _is_complaint(line)]:
        report.finding = Finding("native", complaints[0], re.sub(r":\d+", "", complaints[0])[:170])
    return report


def _is_complaint(line: str) -> bool:
    return any(part in line for part in COMPLAINTS) and not any(limit in line for limit in LIMITS)


def _run_compiled(program: Program, report: Report) -> Run | None:
    """The compiled run; None and a finding where there is none."""
    quickfuse.reset()
    recorder = Recorder(report.logged)
    logs.log.addHandler(recorder)
    before, config.raise_internal_errors = config.raise_internal_errors, True
    propagates, logs.log.propagate = logs.log.propagate, False
    logs.set_logs(graph_breaks=True)
    made: list[Any] = []

    def compiler(step: Any) -> Any:
        made.append(quickfuse.compile(step))
        return made[0]

    try:
        run = execute(program, compiler)
        report.graphs = made[0].graph_count
        return run
    except TooSlow as slow:
        report.finding = Finding("too slow", f"{slow}, in {_place(slow)}")
    except errors.InternalError as error:
        cause = error.__cause__ or error
        report.finding = Finding(
            "internal error", f"{error}, in {_place(cause)}", f"{type(cause).__name__} {_place(cause, 1)}"
        )
    except Exception as error:
        report.finding = Finding("exception", f"{type(error).__name__}: {error}, in {_place(error)}", type(error).__name__)
    finally:
        logs.set_logs(graph_breaks=False)
        logs.log.removeHandler(recorder)
        logs.log.propagate = propagates
        config.raise_internal_errors = before
    return None


def _place(error: BaseException, depth: int = 3) -> str:
    """The innermost functions of quickfuse that an exception went through."""
    places, trace = [], error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/quickfuse/" in code.co_filename:
            places.append(f"{code.co_filename.rpartition('/quickfuse/')[2]}:{code.co_name}")
        trace = trace.tb_next
    return " < ".join(places[: -depth - 1 : -1]) or "no code of quickfuse"


# numbers --------------------------------------------------------------------------------------------------------


class Comparison:
    """Two runs of a program, and further runs in eager PyTorch that say how exact they can be."""

    def __init__(self, program: Program, expected: Run, found: Run, report: Report) -> None:
        self.program, self.expected, self.found, self.report = program, expected, found, report
        self.double, self.autocast = program.dtype == torch.float64, program.autocast
        self._exact: Run | None = None
        self._contiguous: Run | None = None
        self._neighbours: list[Run] = []

    def differences(self) -> Iterator[str]:
        for number, (expected, found) in enumerate(zip(self.expected.steps, self.found.steps, strict=True)):
            here = [*self._of_step(number, expected, found)]
            yield from (f"step {number}: {text}" for text in here)
            if here:
                return  # later steps differ because of this one
        if not torch.equal(self.expected.generator, self.found.generator):
            yield "the random generator is in another state"

    def _of_step(self, number: int, expected: Snapshot, found: Snapshot) -> Iterator[str]:
        missing = expected.keys() ^ found.keys()
        if missing:
            yield f"only in one of the two: {sorted(missing)[:5]}"
        scales = _scales(expected)
        for name, e in expected.items():
            f = found.get(name)
            if name in missing:
                continue
            if not isinstance(e, torch.Tensor) or not isinstance(f, torch.Tensor):
                if type(e) is not type(f) or not _equal(e, f):
                    yield f"{name}: {f!r} where eager has {e!r}"
            elif _layout(e) != _layout(f):
                yield f"{name}: {_layout(f)} where eager has {_layout(e)}"
            elif not torch.equal(e, f):
                text = self._difference(number, name, e, f, scales[_group(name)])
                if text:
                    yield f"{name}: {text}"

    def _difference(self, number: int, name: str, e: torch.Tensor, f: torch.Tensor, scale: float) -> str:
        if not e.is_floating_point():
            for count in (NEIGHBOURS, NEIGHBOURS + FURTHER):
                others = [run.steps[number].get(name, e) for run in self.neighbours(count)]
                steady = torch.stack([other == e for other in others]).all(0)
                off = int(((e != f) & steady).sum())
                if not off:
                    break
            self.report.excused += [name] * (not off)
            return f"{off} of {e.numel()} elements differ" if off else ""
        finite = e.isfinite() & f.isfinite()
        if not torch.equal(e.nan_to_num(nan=0.5)[~finite], f.nan_to_num(nan=0.5)[~finite]):
            if not self._overflows(number, name, e, f):
                return "other elements are infinite or no numbers"
            self.report.excused.append(name)
        sized = torch.where(finite, e, f)
        size = float(sized[sized.isfinite()].abs().max()) if sized.isfinite().any() else 0.0
        if self.double:
            off, allowed = _distance(e, f), SHARE * size + SUMS * scale
        else:
            exact = self.exact.steps[number][name]
            unit = torch.finfo(torch.bfloat16 if self.autocast else torch.float32).eps
            off, allowed = _distance(exact, f), 8 * _distance(exact, e) + 32 * unit * size + unit**2 * scale
        if off <= allowed:
            return ""
        if _distance(self.contiguous.steps[number].get(name, e), f) <= allowed:
            self.report.disputed.append(name)
            return ""
        if any(off <= self._noise(number, name, count) for count in (NEIGHBOURS, NEIGHBOURS + FURTHER)):
            self.report.excused.append(name)
            return ""
        return f"off by {off:.2g}, at most {allowed:.2g} expected, of {size:.2g}"

    @property
    def exact(self) -> Run:
        """Eager in float64, from the same numbers."""
        if self._exact is None:
            self._exact = execute(self.program, dtype=torch.float64)
        return self._exact

    def _overflows(self, number: int, name: str, e: torch.Tensor, f: torch.Tensor) -> bool:
        """Whether a float32 program computes what is too large for float32. Then whether a sum of such numbers is infinite,
        or no number, depends on their order, and so does all that is computed of it; or only eager's sums were too large."""
        if self.double:
            return False
        exact, largest = self.exact.steps[number], torch.finfo(torch.float32).max
        if bool((f.isfinite() & exact[name].isfinite())[~e.isfinite()].all() and f[e.isfinite()].isfinite().all()):
            return True
        return any(bool((t.abs() > largest).any()) for t in exact.values() if isinstance(t, torch.Tensor) and t.numel())

    def _noise(self, number: int, name: str, count: int) -> float:
        """How far results of eager runs that round in other ways are off, times a margin."""
        exact = (self.expected if self.double else self.exact).steps[number][name]
        return max(_distance(run.steps[number].get(name, exact), exact) for run in self.neighbours(count)) * MARGIN

    @property
    def contiguous(self) -> Run:
        """Eager in float64, called with contiguous tensors, and so are its normalisations: some of PyTorch's operators are
        wrong for images with channels last, and the right result is the same for all layouts."""
        if self._contiguous is None:
            self._contiguous = execute(self.program, dtype=torch.float64, contiguous=True)
        return self._contiguous

    def neighbours(self, count: int) -> list[Run]:
        """Eager, rounding at random, so many times."""
        for seed in range(len(self._neighbours) + 1, count + 1):
            self._neighbours.append(execute(self.program, rounding=1000 * seed))
        return self._neighbours[:count]


def _layout(tensor: torch.Tensor) -> str:
    """Type, shape and strides, those of axes of size one not counted: they depend on whose gradient came first."""
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return f"{tensor.dtype} {[*tensor.shape]} strides {strides}"


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return math.isclose(a, b, rel_tol=1e-12) or a != a and b != b
    return bool(a == b)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    both = a.isfinite() & b.isfinite()
    return float((a[both].double() - b[both].double()).abs().max()) if both.any() else 0.0


def _group(name: str) -> str:
    """Values that are of a size: gradients, or all others of an object."""
    return name.partition(".")[0].partition("[")[0] + (".grad" if name.endswith(".grad") else "")


def _scales(values: Snapshot) -> dict[str, float]:
    """The largest element of each group."""
    scales: dict[str, float] = {}
    for name, value in values.items():
        largest = 0.0
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            largest = float(value.nan_to_num(0, 0, 0).abs().max())
        scales[_group(name)] = max(scales.get(_group(name), 0.0), largest)
    return scales
