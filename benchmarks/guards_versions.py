"""The time of guards on each version of Python, beside that on 3.12: it may be 1.3 times as much.

    python benchmarks/guards_versions.py [--rounds 5] [--seconds 2] PYTHON PYTHON ...

Each argument is a command that runs an interpreter with this package and a PyTorch. They take turns, so that a busy machine
slows all of them down; of each figure the least of all turns counts. Writes `benchmarks/results/guards-versions.md`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "guards-versions.md"
LIMIT = 1.3
BASE = "3.12"

#: Of each Python and PyTorch: the unit and the least time of each figure.
Measured = dict[str, dict[str, tuple[str, float]]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    options = parser.parse_args()
    measured: Measured = {}
    for number in range(options.rounds):
        for python in options.pythons:
            found = _turn(python, options.seconds)
            version = f"{found['machine']['python']}, PyTorch {found['machine']['torch']}"
            known = measured.setdefault(version, {})
            for name, figure in found["figures"].items():
                known[name] = figure["unit"], min(figure["least"], known.get(name, ("", figure["least"]))[1])
            print(f"round {number + 1}: {version} measured", flush=True)
    text, worst = table(measured, options.rounds)
    RESULTS.write_text(text)
    print(text)
    return int(worst > LIMIT)


def _turn(python: str, seconds: float) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "guards.json"
        command = [*python.split(), "-m", "quickfuse", "bench", "guards", "--seconds", str(seconds), "--json", str(path)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, cwd=ROOT)
        return json.loads(path.read_text())


def table(measured: Measured, rounds: int) -> tuple[str, float]:
    """The results as Markdown, and the largest ratio to the base's time."""
    versions = sorted(measured, key=lambda version: [int(part) for part in version.split(",")[0].split(".")])
    base = next(version for version in versions if version.startswith(f"{BASE}."))
    today = datetime.date.today().isoformat()
    lines = [
        "# The time of guards on each version of Python",
        "",
        f"Written by `benchmarks/guards_versions.py` on {today}: the least of {rounds} turns, and "
        f"in brackets how many times that of {BASE} it is ({LIMIT} at most).",
        "",
        f"| guards of | unit | {' | '.join(versions)} |",
        f"| --- | --- |{' --- |' * len(versions)}",
    ]
    worst = 0.0
    for name, (unit, basis) in measured[base].items():
        cells = []
        for version in versions:
            time = measured[version][name][1]
            worst = max(worst, time / basis)
            cells.append(f"{time:.3g} ({time / basis:.2f})")
        lines.append(f"| {name} | {unit} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""]), worst


if __name__ == "__main__":
    sys.exit(main())
