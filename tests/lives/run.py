"""The long run of programs in which something changes between calls.

    python tests/lives/run.py --count 1000 --first 0     # each failure is printed as it is found
    python tests/lives/run.py --first 123 --show         # prints a program
    python tests/lives/run.py --first 123 --reduce 60    # checks one, and makes it small if it fails
"""

from __future__ import annotations

import argparse
import collections
import itertools
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))


def main() -> int:
    options = _options()
    import torch

    from lives.check import Report, check
    from lives.generate import program

    torch.set_num_threads(1)
    if options.show:
        print(program(next(_seeds(options))).source)
        return 0
    kinds: collections.Counter[str] = collections.Counter()
    events: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    failed, begun = [], time.monotonic()
    for seed in _seeds(options):
        drawn, start = program(seed), time.process_time()
        try:
            report = check(drawn.source, options.plain, options.defaults)
        except Exception:
            report = Report("checker", traceback.format_exc())
        kinds[report.kind] += 1
        events.update(drawn.features)
        reasons.update(line for line in report.logged if "operator by operator" in line or "graph break" in line)
        seconds = time.process_time() - start
        if report.kind not in ("right", "invalid") or options.invalid and report.kind == "invalid":
            failed.append(seed)
            print(f"\n=== seed {seed}: {report.kind}, {seconds:.1f} s: {report.text}", flush=True)
            if options.reduce:
                print(_smaller(drawn.source, report, options.reduce, options.defaults), flush=True)
        elif seconds > 60:
            print(f"\n=== seed {seed}: took {seconds:.1f} s", flush=True)
        if kinds.total() % 50 == 0:
            print(f"... {kinds.total()}, to {seed}, {time.monotonic() - begun:.0f} s, {dict(kinds)}", flush=True)
    print(f"{options.count} programs, {time.monotonic() - begun:.0f} s: {dict(kinds)}; failed: {failed}")
    if options.features:
        print(events.most_common())
    if options.reasons:
        print(*(f"{count} times: {line}" for line, count in reasons.most_common()), sep="\n")
    return int(bool(failed))


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    """The seeds of the programs to run, in order."""
    from lives.generate import program

    seeds = itertools.count(options.first)
    wanted = seeds if not options.having else (s for s in seeds if not program(s).features.isdisjoint(options.having))
    return itertools.islice(wanted, options.count)


def _smaller(source: str, report: object, seconds: float, defaults: bool) -> str:
    from lives.check import check
    from lives.prelude import Stop
    from lives.shorten import shortened

    def fails(smaller: str) -> bool:
        try:
            found = check(smaller, defaults=defaults)
        except (Exception, Stop):
            return False
        return (found.kind, found.what) == (report.kind, report.what)  # type: ignore[attr-defined]

    return shortened(source, fails, seconds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--reduce", type=float, default=0.0, metavar="SECONDS", help="time to make a failure small")
    parser.add_argument("--having", nargs="+", default=(), metavar="FEATURE", help="only programs with one of these")
    parser.add_argument("--show", action="store_true", help="only print the program")
    parser.add_argument("--plain", action="store_true", help="compare eager with eager, to test the generator")
    parser.add_argument("--defaults", action="store_true", help="with quickfuse's settings as users have them")
    parser.add_argument("--invalid", action="store_true", help="print programs that eager refuses, too")
    parser.add_argument("--features", action="store_true", help="count what occurred")
    parser.add_argument("--reasons", action="store_true", help="say what is not compiled, and why")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
