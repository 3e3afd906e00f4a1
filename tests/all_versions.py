"""Run the tests on each supported interpreter that is found with the newest PyTorch, and on the oldest interpreter with the
oldest PyTorch: `make test-all`.

    python tests/all_versions.py [--only 3.13 ...] [--torch 2.15] [--fresh] [--keep] [--python COMMAND] [arguments of pytest]

Each combination gets an environment of its own in `build/versions`, which is removed after its run: with CUDA it takes 6 GB.
`--python` runs in an environment that is there already.

Each test's outcome is kept in `build/versions` as soon as it is known. A run that was stopped goes on where it was, and one
that had ended runs the tests that failed and new ones; `--fresh` forgets the outcomes. After each combination its row in
`benchmarks/results/versions.md` is written; rows of others stay as they are.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src" / "quickfuse")]

import support  # noqa: E402  # without the rest of the package, which needs PyTorch

from interpreters import interpreters  # noqa: E402

BUILD = ROOT / "build" / "versions"
RESULTS = ROOT / "benchmarks" / "results" / "versions.md"
HEADER = """# Tests on each Python and PyTorch

Written by `make test-all`. When a combination is run again, its tests that failed and new ones are, and its row is replaced.
The last column has the commit at which the tests ran, and how many of them ran at later ones.

| Python | PyTorch | Triton | tests | passed | failed | skipped | not run | minutes | day | commit |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""
_SAY = """import platform, torch
try:
    from triton import __version__ as triton
except ImportError:
    triton = "none"
print(platform.python_version(), torch.__version__.split('+')[0], triton)"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on each Python and PyTorch.")
    parser.add_argument("--only", action="append", help="this Python only, such as 3.13; may be given several times")
    parser.add_argument("--torch", help="this PyTorch only, such as 2.15")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes so far")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--python", help="run in this environment")
    options, chosen = parser.parse_known_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a run that is ended has its row too
    if options.python:
        return 0 if _run(options.python, chosen, options.fresh) else 1
    (major, oldest), (_, after) = support.TORCH_VERSIONS
    found = interpreters()
    supported = [version for version in found if support.within(version, support.PYTHON_VERSIONS)]
    good = True
    for version in supported:
        name = f"{version[0]}.{version[1]}"
        if name not in (options.only or [name]):
            continue
        releases = [f"{major}.{oldest}"] * (version == min(supported)) + [f"{major}.{after - 1}"]
        for release in [options.torch] if options.torch else releases:
            folder = BUILD / f"{name}-{release}"
            python = _environment(folder, found[version], release)
            good &= python is not None and _run(str(python), chosen, options.fresh)
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _environment(folder: Path, command: str, release: str) -> Path | None:
    """An environment with a PyTorch, the one that is there if it was finished; None where PyTorch cannot be installed."""
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.exists():
        return python
    steps = [
        [command, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", f"torch=={release}.*", "--editable", f"{ROOT}[bench,test]"],
    ]
    for step in steps:
        print("+", *step, flush=True)
        if subprocess.run(step).returncode:
            return None
    stamp.touch()
    return python


@dataclass
class Outcomes:
    """What is known of the tests of one combination."""

    #: Those that the last run of all tests found; empty before.
    collected: list[str] = field(default_factory=list)
    #: The last outcome of each.
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def done(self) -> list[str]:
        return [test for test, found in self.tests.items() if found["outcome"] != "failed"]

    def count(self, outcome: str) -> int:
        return sum(found["outcome"] == outcome for found in self.tests.values())

    def commits(self) -> str:
        counts = collections.Counter(found["commit"] for found in self.tests.values())
        first = next(iter(dict.fromkeys(found["commit"] for found in self.tests.values())), "")
        return ", ".join([first, *(f"{count} at {commit}" for commit, count in counts.items() if commit != first)])


def read_outcomes(folder: Path) -> Outcomes:
    collected, outcomes = folder / "all.txt", folder / "outcomes.jsonl"
    found = Outcomes(collected.read_text().splitlines() if collected.exists() else [])
    for line in outcomes.read_text().splitlines() if outcomes.exists() else []:
        result = json.loads(line)
        found.tests[result["test"]] = result
    if found.collected:  # others are no longer there
        found.tests = {test: found.tests[test] for test in found.collected if test in found.tests}
    return found


def _run(python: str, chosen: list[str], fresh: bool) -> bool:
    """Run the tests there that are not done, and write down what came out. Returns whether all of them passed."""
    version, release, triton = subprocess.check_output([python, "-c", _SAY], text=True, cwd=ROOT).split()
    folder = BUILD / f"outcomes-{version}-{release}"
    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "done.txt").write_text("".join(f"{test}\n" for test in read_outcomes(folder).done()))
    (folder / "collected.txt").unlink(missing_ok=True)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes", *chosen]
    print("+", *command, flush=True)
    paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    where = {"PYTHONPATH": os.pathsep.join(paths), "TEST_OUTCOMES": str(folder), "TEST_COMMIT": _commit()}
    try:
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **where}).returncode
    finally:  # a run that is interrupted has its row too
        _note_collected(folder, _is_selection(chosen))
        found = read_outcomes(folder)
        _write([version, release, triton, *_numbers(found), datetime.date.today().isoformat(), found.commits()])
    return status in (0, 5) and not found.count("failed")  # 5: nothing was left to run


def _note_collected(folder: Path, is_selection: bool) -> None:
    """Keep which tests there are. Those of a selection are added to those of the last run of all tests."""
    collected, known = folder / "collected.txt", folder / "all.txt"
    if not collected.exists() or (is_selection and not known.exists()):
        return
    tests = collected.read_text().splitlines()
    before = known.read_text().splitlines() if is_selection else []
    known.write_text("".join(f"{test}\n" for test in dict.fromkeys([*before, *tests])))


def _is_selection(chosen: list[str]) -> bool:
    """Whether these arguments of pytest choose some of the tests."""
    choices = ("-k", "-m", "--ignore", "--deselect")
    return any(argument.startswith(choices) or (ROOT / argument.split("::")[0]).exists() for argument in chosen)


def _numbers(found: Outcomes) -> list[str]:
    """How many tests there are, passed, failed, were skipped and were not run, and the minutes."""
    counts = [found.count(outcome) for outcome in ("passed", "failed", "skipped")]
    minutes = sum(result["seconds"] for result in found.tests.values()) / 60
    tests = [len(found.collected), *counts, len(found.collected) - sum(counts)] if found.collected else ["?", *counts, "?"]
    return [*map(str, tests), f"{minutes:.0f}"]


def _commit() -> str:
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return said.stdout.strip() or "unknown"


def _write(row: list[str]) -> None:
    """Add the row to the table, in place of one with the same versions."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    table = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines if line.startswith("| 3.")]
    rows = {tuple(cells[:2]): cells for cells in [*table, row]}
    text = "".join(f"| {' | '.join(cells)} |\n" for _, cells in sorted(rows.items()))
    RESULTS.write_text(HEADER + text)


if __name__ == "__main__":
    sys.exit(main())
