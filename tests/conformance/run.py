"""Run PyTorch's whole database of operators through the default backend: `make conformance`.

    python tests/conformance/run.py [--gradients] [--only NAME ...] [--dtypes float32 ...] [--shard 1/4] [--fresh]
        [--device cuda]

Each operator and type is one line in build/conformance/*.jsonl as soon as it is done, so that a run that was stopped goes
on where it was. The operators run in a process of their own, which is given up after a time limit. In the end, and with
`--report` at once, the tables under benchmarks/results are written.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

DTYPES = ("float32", "bfloat16", "int64", "bool")
BUILD = ROOT / "build" / "conformance"


def main() -> None:
    options = _options()
    if options.worker:
        _work()
        return
    build = BUILD / options.device
    out = build / ("gradients.jsonl" if options.gradients else "forward.jsonl")
    if options.fresh:
        out.unlink(missing_ok=True)
    if not options.report:
        _run_all(options, out)
    from table import write

    write(build, ROOT / "benchmarks" / "results", options.device)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gradients", action="store_true", help="compare gradients instead of results alone")
    parser.add_argument("--only", nargs="*", help="names of operators, or beginnings of names with a *; they run again")
    parser.add_argument("--dtypes", nargs="*", default=None, choices=DTYPES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--shard", default="1/1", help="which part of the operators: 1/4 to 4/4")
    parser.add_argument("--samples", type=int, default=None, help="at most so many samples of each operator")
    parser.add_argument("--seconds", type=float, default=1200, help="the time limit of one operator")
    parser.add_argument("--fresh", action="store_true", help="forget the results so far")
    parser.add_argument("--report", action="store_true", help="only write the tables")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_all(options: argparse.Namespace, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(options)
    done = set() if options.only else {(r["operator"], r["dtype"]) for r in records(out)}
    todo = [job for job in jobs if (job["operator"], job["dtype"]) not in done]
    print(f"{len(todo)} of {len(jobs)} operators and types to run", flush=True)
    worker = Worker()
    for number, job in enumerate(todo):
        record = worker.run(job, options.seconds)
        with out.open("a") as file:
            file.write(json.dumps(record) + "\n")
        for line in record["wrong"]:
            print(f"WRONG {line}", flush=True)
        if options.only or number % 50 == 49:
            print(f"{number + 1}/{len(todo)} {job['operator']} {job['dtype']} {record['how']}", flush=True)
    worker.stop()


def _jobs(options: argparse.Namespace) -> list[dict[str, Any]]:
    warnings.simplefilter("ignore")
    import torch
    from measure import supported

    from operator_cases import OPERATORS

    part, parts = map(int, options.shard.split("/"))
    names = [n for n in OPERATORS if not options.only or any(_matches(n, wanted) for wanted in options.only)]
    dtypes = options.dtypes or (("float32",) if options.gradients else DTYPES)
    return [
        {
            "operator": name,
            "dtype": dtype,
            "gradients": options.gradients,
            "samples": options.samples,
            "device": options.device,
        }
        for name in names[part - 1 :: parts]
        for dtype in dtypes
        if supported(name, getattr(torch, dtype), options.gradients, options.device)
    ]


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


def records(path: Path) -> list[dict[str, Any]]:
    """The results so far, the last one of each operator and type."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = {(r["operator"], r["dtype"]): r for r in map(json.loads, lines)}
    return list(found.values())


class Worker:
    """A process that runs operators, one after the other; a new one after one that crashed or took too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the worker is used

    def run(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        start = time.perf_counter()
        if self._process is None:
            self._process = self._started()
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        line = process.stdout.readline() if ready else ""
        if line:
            return {**json.loads(line), "most_samples": job["samples"]}
        if ready:
            process.wait()  # it has ended by itself
        self.stop()
        what = f"crashed with {process.returncode}: {self._last_words()}" if ready else f"took more than {seconds:.0f} s"
        name = f"{job['operator']} {job['dtype']}"
        return {
            **{key: job[key] for key in ("operator", "dtype", "gradients")}, "cases": 1, "how": {}, "reasons": {},
            "externs": {}, "wrong": [f"{name}: {what}"], "wrong_cases": 1, "seconds": time.perf_counter() - start,
        }  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _last_words(self) -> str:
        """The last line that the process wrote to its standard error."""
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["no message"])[-1][:200]

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-u", str(Path(__file__).resolve()), "--worker"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True)


def _work() -> None:
    """Read operators from standard input, one JSON object a line, and write their records."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what operators print is no answer
    import torch

    torch.backends.cudnn.allow_tf32 = False  # which of cuDNN's algorithms round products so is not ours to say
    from measure import measure  # after which PyTorch's settings are for reading only

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = json.loads(line)
        record = measure(job["operator"], getattr(torch, job["dtype"]), job["gradients"], job["samples"], job["device"])
        answers.write(json.dumps(record.as_json()) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
