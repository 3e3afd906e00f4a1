"""Run PyTorch's whole database of operators through capture, and print what is captured, what is not, and why.

    python tests/capture/operators_report.py [--samples 4] [--only NAME ...] [--dtypes float32 int64 ...] [--verbose]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from operator_cases import FORMS, OPERATORS, VARIANTS, Outcome, cases, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=None, help="names of operators, or beginnings of names with a *")
    parser.add_argument("--dtypes", nargs="*", default=["float32"])
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--variants", nargs="*", default=["plain"], choices=VARIANTS)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--verbose", action="store_true", help="print every case that does not run as in eager")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    counts: Counter[str] = Counter()
    reasons: dict[str, set[str]] = defaultdict(set)
    captured: dict[str, int] = Counter()
    wrong: dict[str, list[str]] = defaultdict(list)
    names = [n for n in OPERATORS if options.only is None or any(_matches(n, wanted) for wanted in options.only)]
    for name in names:
        for dtype in (getattr(torch, d) for d in options.dtypes):
            if dtype not in OPERATORS[name].supported_dtypes("cpu"):
                continue
            for variant in options.variants:
                for case in cases(name, dtype, options.samples, tuple(options.forms), variant):
                    outcome = run(case, options.backend)
                    _count(outcome, counts)
                    captured[name] += outcome.captured
                    for reason in outcome.reasons if not outcome.eager_raises else ():
                        reasons[reason].add(name)
                    wrong[name] += [f"{case.label}: {e}\n      {case.source}" for e in outcome.errors]
    _print(names, counts, captured, reasons, {n: e for n, e in wrong.items() if e}, options.verbose)
    print(f"{time.perf_counter() - start:.0f} s")


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def _count(outcome: Outcome, counts: Counter[str]) -> None:
    counts["cases"] += 1
    counts["not as in eager"] += bool(outcome.errors)
    counts["eager raises"] += outcome.eager_raises
    counts["captured"] += outcome.captured
    counts["natively"] += bool(outcome.reasons) and not outcome.eager_raises


def _print(
    names: list[str],
    counts: Counter[str],
    captured: dict[str, int],
    reasons: dict[str, set[str]],
    wrong: dict[str, list[str]],
    verbose: bool,
) -> None:
    for reason, operators in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"{len(operators):4} {reason}\n       {', '.join(sorted(operators)[: None if verbose else 12])}")
    for name, found in wrong.items():
        print(f"WRONG {name} ({len(found)})")
        for line in found[: None if verbose else 2]:
            print(f"    {line[:400]}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    never = [n for n in names if not captured[n]]
    print(f"{len(names) - len(never)} of {len(names)} operators captured; never: {', '.join(never)}")


if __name__ == "__main__":
    main()
