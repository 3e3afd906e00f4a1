"""`python tests/language/report.py [part of a file's name ...]`: right, wrong, native and captured operators, by feature.

"unexpected" are cases that compiled other graphs than they should, "native" those of which no operator was captured.

`--backend quickfuse` runs our kernels instead of counting; `--eager` compares eager with eager, as a test of the cases.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from language import harness  # noqa: E402


@dataclass
class Feature:
    """The verdicts on one file of cases."""

    name: str
    verdicts: list[harness.Verdict] = field(default_factory=list)

    @property
    def wrong(self) -> list[harness.Verdict]:
        return [v for v in self.verdicts if v.wrong]

    @property
    def native(self) -> list[harness.Verdict]:
        return [v for v in self.verdicts if v.native and not v.wrong]

    @property
    def unexpected(self) -> list[harness.Verdict]:
        return [v for v in self.verdicts if v.unexpected]

    @property
    def operators(self) -> int:
        return sum(v.operators for v in self.verdicts)

    @property
    def in_graphs(self) -> int:
        return sum(min(v.in_graphs, v.operators) for v in self.verdicts)

    def row(self) -> str:
        return _row(
            self.name, len(self.verdicts), len(self.wrong), len(self.unexpected), len(self.native),
            self.in_graphs, self.operators,
        )  # fmt: skip


def _row(name: str, count: int, wrong: int, unexpected: int, native: int, in_graphs: int, operators: int) -> str:
    share = f"{100 * in_graphs / operators:5.1f}%" if operators else "-"
    captured = f"{in_graphs} of {operators}"
    outcome = f"{count - wrong:5} | {wrong:5} | {unexpected:10} | {native:6}"
    return f"| {name:24} | {count:5} | {outcome} | {captured:19} | {share:6} |"


HEAD = (
    f"| {'feature':24} | cases | right | wrong | unexpected | native | operators in graphs | share  |\n"
    f"| {'-' * 24} | ----: | ----: | ----: | ---------: | -----: | ------------------: | -----: |"
)


def files(parts: list[str] | None = None) -> list[Path]:
    found = [path for path in sorted(HERE.glob("test_*.py")) if "names(globals())" in path.read_text()]
    return [path for path in found if not parts or any(part in path.stem for part in parts)]


def table(features: list[Feature]) -> str:
    cases = [v for feature in features for v in feature.verdicts]
    total = _row(
        "all", len(cases), sum(len(f.wrong) for f in features), sum(len(f.unexpected) for f in features),
        sum(len(f.native) for f in features), sum(f.in_graphs for f in features), sum(f.operators for f in features),
    )  # fmt: skip
    return "\n".join([HEAD, *(feature.row() for feature in features), total])


def share(features: list[Feature]) -> float:
    return sum(f.in_graphs for f in features) / sum(f.operators for f in features)


def collect(path: Path, backend: str = "graphs", only: list[str] | None = None) -> Feature:
    """Run every case of a file."""
    feature = Feature(path.stem.removeprefix("test_"))
    for name in harness.load(str(path)).CASES:
        if not only or name in only:
            feature.verdicts.append(_judge(str(path), name, backend))
    return feature


def counted(path: Path, one_in: int) -> Feature:
    """The operators of one in so many cases of a file."""
    names = [*harness.load(str(path)).CASES][::one_in]
    return Feature(path.stem.removeprefix("test_"), [harness.count(str(path), name) for name in names])


def _judge(path: str, name: str, backend: str) -> harness.Verdict:
    try:
        if backend == "none":
            return _eager_twice(path, name)
        return harness.judge(path, name, backend, counting=backend == "graphs")
    except Exception:
        return harness.Verdict(name, wrong=f"the harness failed:\n{traceback.format_exc()}")


def _eager_twice(path: str, name: str) -> harness.Verdict:
    first, second = harness.run_eager(path, name), harness.run_eager(path, name, counting=True)
    return harness.Verdict(name, harness.compare(first, second), operators=second.operators, in_graphs=second.operators)


def _kind(verdict: harness.Verdict) -> str:
    if verdict.wrong:
        return "WRONG"
    return "graphs" if verdict.unexpected else "native" if verdict.native else "right"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="files whose name contains one of these; file::case for one case")
    parser.add_argument("--backend", default="graphs", help="graphs (counts), quickfuse or eager")
    parser.add_argument("--eager", action="store_true", help="compare eager with eager")
    parser.add_argument("--verbose", action="store_true", help="tell every case, with what ran natively and why")
    options = parser.parse_args()
    faulthandler.enable()
    harness.quickfuse.config.raise_internal_errors = True
    only = [part.split("::")[1] for part in options.parts if "::" in part]
    features = []
    for path in files([part.split("::")[0] for part in options.parts]):
        start = time.perf_counter()
        feature = collect(path, "none" if options.eager else options.backend, only)
        features.append(feature)
        print(f"{feature.name}: {len(feature.verdicts)} cases in {time.perf_counter() - start:.1f} s", flush=True)
        for verdict in feature.verdicts:
            if verdict.wrong or verdict.unexpected or verdict.native or options.verbose:
                kind = _kind(verdict)
                reasons = verdict.messages[:3] if not options.verbose else verdict.messages
                share_text = f"{verdict.in_graphs}/{verdict.operators} in {verdict.graphs} graphs"
                print(f"  {kind:6} {verdict.name} ({share_text})", *filter(None, [verdict.wrong, verdict.unexpected]),
                      *reasons, sep="\n         ", flush=True)  # fmt: skip
    print(table(features))


if __name__ == "__main__":
    main()
