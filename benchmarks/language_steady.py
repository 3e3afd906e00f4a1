"""`python benchmarks/language_steady.py [part of a file's name ...]`: the programs of tests/language, beside eager.

For each program that calls more than five operators: the ratio of compiled time to eager time after warm-up, the least of
passes over all its calls, which take turns of being first, and whether calls are left to Python. `--always-compiled` leaves
none of them to Python, `--copies` runs a second copy of each program in place of a compiled one, which shows how far times
can be trusted, and `--profile NAME` shows where the time of one program's compiled calls goes.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import cProfile
import gc
import io
import pstats
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Passes and calls before time is taken: enough for `quickfuse.pipeline.trials` to decide.
WARM_UP, WARM_UP_CALLS = 8, 96
TESTS = Path(__file__).parent.parent / "tests"
sys.path[:0] = [str(TESTS)]

import torch  # noqa: E402

import quickfuse  # noqa: E402
from language import harness  # noqa: E402


class Program:
    """One program with its arguments, in a module of its own; `wrap` makes what is called."""

    def __init__(self, path: str, name: str, wrap: Callable[[Any], Any]) -> None:
        self.case = harness.load(path).CASES[name]
        function, self.calls = self.case.function, self.case.calls
        if self.case.is_factory:
            function, self.calls = function()
        self.called = wrap(function)

    @property
    def warm_up(self) -> int:
        """How many passes come before those that are timed."""
        return max(WARM_UP, -(-WARM_UP_CALLS // len(self.calls)))

    def run(self) -> float:
        """Seconds of one pass over all calls, without the making of their arguments."""
        total = 0.0
        for k, arguments in enumerate(self.calls):
            made = copy.deepcopy(arguments) if type(arguments) is tuple and not self.case.is_factory else arguments
            made = made if type(made) is tuple else made()
            keywords = made[-1] if made and type(made[-1]) is harness.Keywords else {}
            positional = made[:-1] if keywords else made
            torch.manual_seed(k)
            begun = time.process_time()
            with contextlib.suppress(Exception):
                result = self.called(*positional, **keywords)
                if self.case.then is not None:
                    self.case.then(result)
            total += time.process_time() - begun
        return total


def measured(path: str, name: str, passes: int, wrap: Callable[[Any], Any]) -> tuple[int, float, float, bool]:
    """The operators of one pass in eager mode, the least seconds of a pass, eager and compiled, and whether it is left to
    Python."""
    counter = Program(path, name, lambda function: function)
    with harness.Operators() as mode:
        counter.run()
    if mode.count <= 5:
        return mode.count, 0.0, 0.0, False
    eager = Program(path, name, lambda function: function)
    quickfuse.reset()
    compiled = Program(path, name, wrap)
    for _ in range(compiled.warm_up):
        eager.run()
        compiled.run()
    times: tuple[list[float], list[float]] = ([], [])
    gc.collect()
    gc.disable()
    for turn in range(passes):
        for which in (turn % 2, 1 - turn % 2):
            times[which].append((eager, compiled)[which].run())
    gc.enable()
    trial = getattr(compiled.called, "trial", None)
    return mode.count, min(times[0]), min(times[1]), trial is not None and trial.native


def profile(path: str, name: str) -> None:
    """Print what takes the time of a program's compiled calls."""
    compiled = Program(path, name, quickfuse.compile)
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(compiled.warm_up):
            compiled.run()
        profiler = cProfile.Profile()
        profiler.enable()
        for _ in range(200):
            compiled.run()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--profile", help="the name of a program")
    parser.add_argument("--always-compiled", action="store_true")
    parser.add_argument("--copies", action="store_true")
    options = parser.parse_args()
    quickfuse.config.measure_short_calls = not (options.always_compiled or options.profile)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    wrap = (lambda function: function) if options.copies else quickfuse.compile
    rows = []
    for path in sorted((TESTS / "language").glob("test_*.py")):
        if options.files and not any(part in path.stem for part in options.files):
            continue
        for name in getattr(harness.load(str(path)), "CASES", {}):
            if options.profile:
                if name == options.profile:
                    profile(str(path), name)
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                count, eager, compiled, native = measured(str(path), name, options.passes, wrap)
            if count > 5:
                rows.append((compiled / eager, path.stem.removeprefix("test_"), name, count, eager, compiled))
                shown = f"{rows[-1][0]:5.2f}  {rows[-1][1]:20} {name:40} {count:4} operators"
                left = "  left to Python" if native else ""
                print(f"{shown}  eager {eager * 1e6:7.0f} us  compiled {compiled * 1e6:7.0f} us{left}", flush=True)
    if rows:
        slower = sum(row[0] > 1 for row in rows)
        mean = statistics.geometric_mean([row[0] for row in rows])
        much = sum(row[0] > 1.05 for row in rows)
        print(f"{slower} of {len(rows)} programs are slower than eager, {much} by more than 5%; mean ratio {mean:.2f}")


if __name__ == "__main__":
    main()
