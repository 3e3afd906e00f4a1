"""How compile time grows with a program: `quickfuse bench compile-time --growth`.

Each point is a fresh process that compiles a short program of the same series first, so that imports are not counted, and
then the one that is measured. Times are processor time of the thread that compiles, so that they hold on a busy machine;
that of the clock is noted beside them. The exponent of a stage is the slope of its seconds over the length, both as
logarithms: 1 is time that grows with the program, 2 with its square.
"""

from __future__ import annotations

import gc
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

import quickfuse
from quickfuse import logs
from quickfuse.bench.cold import cache_environment
from quickfuse.bench.growing_programs import SERIES
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.report import SCHEMA
from quickfuse.bench.run import Progress

#: The shortest program, and the factor from one to the next.
SHORTEST, FACTOR = 10, 4
#: Shorter times than this say nothing of how a stage grows.
LEAST_SECONDS = 0.02
#: The exponent is that of the longest programs measured, so many of them.
FITTED = 4


@dataclass
class Point:
    """The first call of one program, in `seconds` of processor time and by the clock; `failure` says in one line why
    there is no time, if so."""

    length: int
    seconds: float = 0.0
    clock_seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    breaks: list[str] = field(default_factory=list)
    failure: str = ""


@dataclass
class Growth:
    """The points of each series, shortest first."""

    machine: dict[str, Any]
    series: dict[str, list[Point]] = field(default_factory=dict)

    def to_table(self, name: str) -> Table:
        """One series: a row for each stage."""
        points = self.series[name]
        table = Table(title=f"first call, processor seconds: {name}", title_justify="left", box=box.SIMPLE)
        table.add_column("stage")
        for point in points:
            table.add_column(str(point.length), justify="right")
        table.add_column("exponent", justify="right")
        measured = [point for point in points if not point.failure]
        for stage in _stages(measured):
            seconds = [f"{point.stages.get(stage, 0.0):.3f}" if not point.failure else "" for point in points]
            table.add_row(stage, *seconds, _shown(exponent((p.length, p.stages.get(stage, 0.0)) for p in measured)))
        table.add_section()
        totals = [point.failure or f"{point.seconds:.3f}" for point in points]
        table.add_row("first call", *totals, _shown(exponent((p.length, p.seconds) for p in measured)))
        table.add_row("by the clock", *["" if p.failure else f"{p.clock_seconds:.3f}" for p in points], "")
        return table

    def exponents(self) -> dict[str, dict[str, float]]:
        """By series and stage, where a stage takes long enough to tell."""
        found: dict[str, dict[str, float]] = {}
        for name, points in self.series.items():
            measured = [point for point in points if not point.failure]
            fitted = {s: exponent((p.length, p.stages.get(s, 0.0)) for p in measured) for s in _stages(measured)}
            fitted["first call"] = exponent((p.length, p.seconds) for p in measured)
            found[name] = {stage: round(value, 3) for stage, value in fitted.items() if value is not None}
        return found

    def write(self, path: Path) -> None:
        data = {
            "schema": SCHEMA,
            "workload": {"title": "growth of compile time", "measures": "growth"},
            "machine": self.machine,
            "exponents": self.exponents(),
            "series": {name: [asdict(point) for point in points] for name, points in self.series.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")


def measure(
    names: list[str], largest: int, limit: float, progress: Progress = lambda what, fraction: None,
    show: Callable[[Growth, str], None] = lambda growth, name: None,
) -> Growth:  # fmt: skip
    """Measure series up to the length `largest`; one stops at a first call that takes longer than `limit` seconds. `show` is
    called with the name of each series that is complete.
    """
    growth = Growth(describe_machine("cpu"))
    for number, name in enumerate(names):
        points = growth.series[name] = []
        for length in lengths(largest):
            progress(f"{name}, {length}", number / len(names))
            points.append(measure_point(name, length, limit))
            if points[-1].failure or points[-1].clock_seconds > limit:
                break
        show(growth, name)
    return growth


def lengths(largest: int) -> list[int]:
    """From `SHORTEST` on, each `FACTOR` times the one before, and `largest` itself."""
    steps = int(math.log(max(largest, SHORTEST) / SHORTEST, FACTOR))
    return sorted({*(SHORTEST * FACTOR**k for k in range(steps + 1)), max(largest, SHORTEST)})


def measure_point(name: str, length: int, limit: float) -> Point:
    """Compile one program in a fresh process, which is given up after twice the limit."""
    with tempfile.TemporaryDirectory(prefix="quickfuse-bench-", ignore_cleanup_errors=True) as folder:
        search_path = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **cache_environment(Path(folder)), "PYTHONPATH": os.pathsep.join(search_path)}
        command = [sys.executable, "-W", "ignore", "-m", __name__, name, str(length)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * limit + 30)
        except subprocess.TimeoutExpired:
            return Point(length, failure=f"over {limit:g} s")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        said = done.stderr.strip().splitlines()
        return Point(length, failure=said[-1][:120] if said else f"exit code {done.returncode}")
    return Point(**json.loads(lines[-1]))


def exponent(points: Iterable[tuple[int, float]]) -> float | None:
    """The slope of logarithms, by least squares, of the longest programs that took long enough; None for fewer than two."""
    known = [(math.log(length), math.log(seconds)) for length, seconds in points if seconds >= LEAST_SECONDS][-FITTED:]
    if len(known) < 2:
        return None
    x, y = (sum(values) / len(known) for values in zip(*known, strict=True))
    return sum((a - x) * (b - y) for a, b in known) / sum((a - x) ** 2 for a, _ in known)


def _stages(points: list[Point]) -> list[str]:
    return list(dict.fromkeys(stage for point in points for stage in point.stages))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


# the fresh process ----------------------------------------------------------------------------------------------


def _first_call(name: str, length: int) -> Point:
    """Compile a program and time that; the stages are exclusive of each other, and so is collecting garbage, which is put
    off until all is compiled."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other take processor time
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    warm, arguments = SERIES[name](3)
    quickfuse.compile(warm)(*arguments)
    program, arguments = SERIES[name](length)
    compiled: Any = quickfuse.compile(program)
    logs.clock = time.thread_time
    gc.collect()
    gc.callbacks.append(_Collections())
    logs.reset_stage_seconds()
    started, start = time.perf_counter(), time.thread_time()
    compiled(*arguments)
    seconds, by_clock = time.thread_time() - start, time.perf_counter() - started
    stages = {stage: round(spent, 4) for stage, spent in logs.stage_seconds.items()}
    stages["the rest"] = round(max(0.0, seconds - sum(stages.values())), 4)
    breaks = [b.reason for b in getattr(compiled, "breaks", ())]
    return Point(length, round(seconds, 4), round(by_clock, 4), stages, breaks)


class _Collections:
    """Accounts garbage collection to a stage of its own."""

    def __init__(self) -> None:
        self.stage: Any = None

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.stage = logs.stage("garbage collection")
            self.stage.__enter__()
        elif self.stage is not None:
            self.stage.__exit__(None, None, None)
            self.stage = None


if __name__ == "__main__":
    print(json.dumps(asdict(_first_call(sys.argv[1], int(sys.argv[2])))))
