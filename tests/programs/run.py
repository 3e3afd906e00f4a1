"""The long run of random programs: `python tests/programs/run.py --count 2000 --seed 1 --shard 0/2`.

Prints each difference with its seed and the smallest source found, and at the end how many programs were right, wrong,
raised something of ours, and what share of their operators ran in graphs. Programs run in a child process: one that
crashes is a difference too, and the run goes on.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import functools
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from programs import compare, counting, generate, reduce

#: Programs that one child runs before the next takes over, so that memory does not grow.
CHILD_SIZE = 500


@dataclass
class Report:
    """What one program did."""

    seed: int
    raises: bool = False
    operators: int = 0
    captured: int = 0
    kind: str = "right"
    text: str = ""


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compares eager with eager: what differs then, is a flaw of the generator or of the comparison."""
    return function


def run_program(seed: int, options: argparse.Namespace, reduced: collections.Counter[str]) -> Report:
    """Generate, compare and, if there is a difference of which not enough were reduced before, reduce."""
    found = generate.program(random.Random(seed))
    report = Report(seed, raises=not generate.ends(found.source, may_raise=False))
    graphs = counting.GraphCounter()
    compiler = plain if options.plain else graphs.compile
    difference = compare.compare(found.source, compiler, options.tracebacks)
    if difference is None:
        report.captured = graphs.counter.operators
        report.operators = counting.operators_of(found.source, compare.CALLS)
    if difference is not None:
        report.kind = difference.kind
        source = found.source
        alike = re.sub(r"\[.*?\]|\d+", "", str(difference))[:90]
        reduced[alike] += 1
        if options.reduce and reduced[alike] <= options.alike:
            fails = functools.partial(still_fails, difference=difference, compiler=compiler, may_raise=report.raises)
            source = reduce.reduced(source, fails, options.reduce)
            difference = compare.compare(source, compiler) or difference
        report.text = f"{difference}\n{source}"
    return report


def still_fails(source: str, difference: compare.Difference, compiler: Callable[..., Any], may_raise: bool) -> bool:
    """Whether a smaller program differs in the same way, and only when it is compiled."""
    try:
        if not generate.ends(source, may_raise):
            return False
        found = compare.compare(source, compiler, calls=compare.CALLS[: difference.call + 1])
        return found is not None and found.signature == difference.signature and compare.compare(source, plain) is None
    except Exception:
        return False


def child(seeds: list[int], options: argparse.Namespace, to_parent: Connection) -> None:
    """Run programs, saying before each which one it is."""
    faulthandler.enable()
    torch.set_num_threads(1)
    sys.unraisablehook = lambda unraisable: None  # generators that are thrown away may raise
    reduced: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        to_parent.send(seed)
        to_parent.send(run_program(seed, options, reduced))
    to_parent.send(None)


def run_all(seeds: list[int], options: argparse.Namespace, tell: Callable[[Report], None]) -> None:
    """Run programs in child processes; `tell` gets the reports."""
    context = multiprocessing.get_context("fork")
    while seeds:
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(seeds[:CHILD_SIZE], options, theirs))
        process.start()
        theirs.close()
        running = seeds[0]
        try:
            while (message := ours.recv()) is not None:
                if isinstance(message, Report):
                    tell(message)
                    seeds = seeds[1:]
                else:
                    running = message
        except EOFError:
            process.join()
            source = generate.program(random.Random(running)).source
            tell(Report(running, kind="crash", text=f"the process ended with {process.exitcode}\n{source}"))
            seeds = seeds[1:]
        process.join()


class Summary:
    """Counts reports and prints."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.kinds: collections.Counter[str] = collections.Counter()
        self.reports: list[Report] = []
        self.started = self.printed = time.monotonic()

    def add(self, report: Report) -> None:
        self.kinds[report.kind] += 1
        self.reports.append(report)
        if report.text:
            print(f"\n=== seed {report.seed}: {report.text}", flush=True)
        if time.monotonic() - self.printed > 20:
            self.printed = time.monotonic()
            print(f"... {self}", flush=True)

    def __str__(self) -> str:
        counted = [r for r in self.reports if r.operators]
        operators, captured = sum(r.operators for r in counted), sum(r.captured for r in counted)
        some = sum(1 for r in counted if r.captured)
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        return (
            f"{len(self.reports)} of {self.total} programs in {time.monotonic() - self.started:.0f} s: {kinds}; "
            f"{sum(r.raises for r in self.reports)} raise in eager; "
            f"{captured} of {operators} operators in graphs ({captured / max(operators, 1):.0%}), "
            f"some in {some} of {len(counted)} programs"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many programs, over all shards")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--shard", default="0/1", help="k/n: take every n-th program, from the k-th on")
    parser.add_argument("--reduce", type=float, default=60.0, metavar="SECONDS", help="time to reduce one source; 0: do not")
    parser.add_argument("--alike", type=int, default=2, help="how many differences that look alike are reduced")
    parser.add_argument("--no-tracebacks", dest="tracebacks", action="store_false", help="ignore from where exceptions come")
    parser.add_argument("--plain", action="store_true", help="compare eager with eager, to test the generator")
    options = parser.parse_args()
    shard, shards = map(int, options.shard.split("/"))
    seeds = list(range(options.seed, options.seed + options.count))[shard::shards]
    summary = Summary(len(seeds))
    run_all(seeds, options, summary.add)
    print(f"\n{summary}")
    for kind in summary.kinds:
        if kind != "right":
            print(f"{kind}: seeds {[r.seed for r in summary.reports if r.kind == kind]}")
    return int(set(summary.kinds) != {"right"})


if __name__ == "__main__":
    sys.exit(main())
