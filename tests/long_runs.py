"""The command line of long runs of programs drawn by seed, each of which is Python source with a judge of its own.

A child process runs them, so that one that crashes is a failure like others.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from on_device import placed

#: How many programs a process runs before another one takes over, so that memory does not grow.
PROCESS_SIZE = 200
#: What CUDA says from a wrong index in a kernel on, as of a class that does not exist.
DEAD_GPU = ("device-side assert", "illegal memory access", "unspecified launch failure")


class LongRun:
    """`program(seed)` has a source and features; `check(source, plain, defaults, mode)` makes a report of it."""

    def __init__(self, description: str | None, program: Callable[[int], Any], check: Callable[..., Any]) -> None:
        self.program, self.check = program, check
        self.options = _options(description)
        self.failed: list[int] = []
        self.kinds: collections.Counter[str] = collections.Counter()
        self.features: collections.Counter[str] = collections.Counter()
        self.reasons: collections.Counter[str] = collections.Counter()
        self.begun = time.monotonic()

    def run(self) -> int:
        options = self.options
        seeds = [*self._seeds()]
        if options.show:
            print(placed(self.program(seeds[0]).source, options.device))
            return 0
        while seeds:
            done = self._in_a_child(seeds[:PROCESS_SIZE])
            seeds = seeds[done:]
        print(f"{options.count} programs, {time.monotonic() - self.begun:.0f} s: {dict(self.kinds)}; failed: {self.failed}")
        if options.features:
            print(self.features.most_common())
        if options.reasons:
            print(*(f"{count} times: {line}" for line, count in self.reasons.most_common()), sep="\n")
        return int(bool(self.failed))

    def _seeds(self) -> Iterator[int]:
        """The seeds of the programs to run, in order."""
        having, seeds = self.options.having, itertools.count(self.options.first)
        wanted = seeds if not having else (s for s in seeds if not self.program(s).features.isdisjoint(having))
        return itertools.islice(wanted, self.options.count)

    def _in_a_child(self, seeds: list[int]) -> int:
        """Run programs in a process of its own; returns how many are done, of which the last one may have crashed.

        A fork, but for a GPU, which forks of a process that has asked for one cannot use.
        """
        how = multiprocessing.get_context("fork" if self.options.device == "cpu" else "spawn")
        reading, writing = how.Pipe(duplex=False)
        child = how.Process(target=self._answer, args=(seeds, writing))
        child.start()
        writing.close()
        done = 0
        with contextlib.suppress(EOFError):
            while done < len(seeds):
                self._count(seeds[done], **reading.recv())
                done += 1
        child.join()
        if done < len(seeds) and child.exitcode:
            self._count(seeds[done], "crash", f"the process ended with {child.exitcode}", [], 0.0)
            done += 1
        return done

    def _answer(self, seeds: list[int], answers: Any) -> None:
        for seed in seeds:
            result = self._result(seed)
            answers.send(result)
            if any(words in result["text"] for words in DEAD_GPU):
                break  # no other program can use it in this process
        answers.close()
        os._exit(0)  # without what libraries do at the end

    def _result(self, seed: int) -> dict[str, Any]:
        options, start, smaller = self.options, time.process_time(), ""
        source = placed(self.program(seed).source, options.device)
        try:
            report = self._checked(source)
        except Exception:
            return {"kind": "checker", "text": traceback.format_exc(), "reasons": [], "seconds": 0.0}
        if options.reduce and self._is_failure(report.kind):
            smaller = "\n" + self._smaller(source, report)
        reasons = [line for line in report.logged if "operator by operator" in line or "graph break" in line]
        return {
            "kind": report.kind, "text": report.text + smaller, "reasons": reasons, "seconds": time.process_time() - start
        }  # fmt: skip

    def _checked(self, source: str) -> Any:
        def checked() -> Any:
            return self.check(source, self.options.plain, self.options.defaults, self.options.mode)

        if not self.options.shadow:
            return checked()
        from gpu_shadow import shadowed

        found: list[str] = []
        with shadowed(found):
            report = checked()
        if found and report.kind in ("right", "invalid", "documented"):
            report.kind, report.text = "shadow", found[0]
            report.what = found[0].rstrip().rpartition("\n")[2][:60]
        return report

    def _is_failure(self, kind: str) -> bool:
        return kind not in ("right", "invalid", "documented") or kind in self.options.also

    def _count(self, seed: int, kind: str, text: str, reasons: list[str], seconds: float) -> None:
        self.kinds[kind] += 1
        self.features.update(self.program(seed).features)
        self.reasons.update(reasons)
        if self._is_failure(kind):
            self.failed.append(seed)
            print(f"\n=== seed {seed}: {kind}, {seconds:.1f} s: {text}", flush=True)
        elif seconds > 60:
            print(f"\n=== seed {seed}: took {seconds:.1f} s", flush=True)
        if self.kinds.total() % 50 == 0:
            print(
                f"... {self.kinds.total()}, to {seed}, {time.monotonic() - self.begun:.0f} s, {dict(self.kinds)}", flush=True
            )

    def _smaller(self, source: str, report: Any) -> str:
        from lives.prelude import Stop
        from lives.shorten import shortened

        def fails(smaller: str) -> bool:
            try:
                found = self._checked(smaller)
            except (Exception, Stop):
                return False
            return (found.kind, found.what) == (report.kind, report.what)

        return shortened(source, fails, self.options.reduce)


def _options(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--reduce", type=float, default=0.0, metavar="SECONDS", help="time to make a failure small")
    parser.add_argument("--having", nargs="+", default=(), metavar="FEATURE", help="only programs with one of these")
    parser.add_argument("--show", action="store_true", help="only print the program")
    parser.add_argument("--plain", action="store_true", help="compare eager with eager, to test the generator")
    parser.add_argument("--defaults", action="store_true", help="with quickfuse's settings as users have them")
    parser.add_argument("--device", default="cpu", help="where the programs have their tensors: cpu or cuda")
    parser.add_argument("--shadow", action="store_true", help="lower what is compiled for a GPU, too, and run that here")
    parser.add_argument("--mode", help="of quickfuse.compile, such as reduce-overhead")
    parser.add_argument("--also", nargs="+", default=(), metavar="KIND", help="print these, too: invalid, documented")
    parser.add_argument("--features", action="store_true", help="count what occurred")
    parser.add_argument("--reasons", action="store_true", help="say what is not compiled, and why")
    return parser.parse_args()
