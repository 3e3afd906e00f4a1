"""Run the tests on each supported interpreter that is found, with the oldest and the newest PyTorch: `make test-all`.

    python tests/all_versions.py [--only 3.13] [--torch 2.15] [--keep] [--python COMMAND] [arguments of pytest]

Each combination gets an environment of its own in `build/versions`, which is removed after its run: with CUDA it takes 6 GB.
`--python` runs in an environment that is there already. What came out is written to `benchmarks/results/versions.md`, where
the rows of other combinations stay as they are.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src" / "quickfuse")]

import support  # noqa: E402  # without the rest of the package, which needs PyTorch

from interpreters import interpreters  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "versions.md"
HEADER = """# Tests on each Python and PyTorch

Written by `make test-all`. A row is replaced when its combination is run again.

| Python | PyTorch | tests | passed | failed | skipped | minutes | day |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
_SAY = "import platform, torch; print(platform.python_version(), torch.__version__.split('+')[0])"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests on each Python and PyTorch.")
    parser.add_argument("--only", help="this Python only, such as 3.13")
    parser.add_argument("--torch", help="this PyTorch only, such as 2.15")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--python", help="run in this environment")
    options, chosen = parser.parse_known_args()
    if options.python:
        return _run(options.python, chosen)
    (major, oldest), (_, after) = support.TORCH_VERSIONS
    releases = [options.torch] if options.torch else [f"{major}.{oldest}", f"{major}.{after - 1}"]
    failed = 0
    for version, command in interpreters().items():
        name = f"{version[0]}.{version[1]}"
        if not support.within(version, support.PYTHON_VERSIONS) or options.only not in (None, name):
            continue
        for release in releases:
            folder = ROOT / "build" / "versions" / f"{name}-{release}"
            python = _environment(folder, command, release)
            failed += 1 if python is None else _run(str(python), chosen)
            if not options.keep:
                shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _environment(folder: Path, command: str, release: str) -> Path | None:
    """A new environment with a PyTorch; None where that cannot be installed."""
    python = folder / "bin" / "python"
    steps = [
        [command, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", f"torch=={release}.*", "--editable", f"{ROOT}[bench,test]"],
    ]
    for step in steps:
        print("+", *step, flush=True)
        if subprocess.run(step).returncode:
            return None
    return python


def _run(python: str, chosen: list[str]) -> int:
    """Run the tests there and write down what came out. Returns pytest's exit status."""
    said = subprocess.run([python, "-c", _SAY], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    version, release = said.split()
    start = time.monotonic()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    print("+", *command, flush=True)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        last = ""
        for line in running.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    tests = " ".join(argument for argument in chosen if not argument.startswith("-")) or "all"
    minutes = f"{(time.monotonic() - start) / 60:.0f}"
    numbers = [counts.get("passed", 0), counts.get("failed", 0) + counts.get("error", 0), counts.get("skipped", 0)]
    found = [*map(str, numbers), minutes] if counts else ["?", "?", "?", "did not end"]
    _write([version, release, tests, *found, datetime.date.today().isoformat()])
    return running.returncode


def _write(row: list[str]) -> None:
    lines = RESULTS.read_text().splitlines()[6:] if RESULTS.exists() else []
    rows = {tuple(cells[:3]): cells for line in lines if (cells := [cell.strip() for cell in line.strip("| ").split("|")])}
    rows[tuple(row[:3])] = row
    text = "".join(f"| {' | '.join(cells)} |\n" for _, cells in sorted(rows.items()))
    RESULTS.write_text(HEADER + text)


if __name__ == "__main__":
    sys.exit(main())
