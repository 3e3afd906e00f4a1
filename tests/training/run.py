"""The long run of random training steps.

    python tests/training/run.py --count 3000 --seed 0 --jobs 2      # goes on where it stopped; --fresh begins again
    python tests/training/run.py --count 500 --device cuda           # on a GPU
    python tests/training/run.py --seed 123 --show                   # prints a program, which runs by itself
    python tests/training/run.py --seed 123 --reduce 120             # checks one, and makes it small if it fails

Each program is one line in build/training/results.jsonl as soon as it is done. Programs run in processes of their own,
which are given up after a time limit; one that crashes is a failure too. The end lists what failed, by kind.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import queue
import re
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

RESULTS = ROOT / "build" / "training" / "results.jsonl"
#: Seconds that a program may take with everything, before its process is killed.
PATIENCE = 300.0
#: Programs that one process runs before the next takes over, so that memory does not grow.
PROCESS_SIZE = 200
#: What makes a shown program run by itself.
MAIN = """

if __name__ == "__main__":
    import quickfuse

    runs = []
    for compiler in (lambda step: step, quickfuse.compile):
        step, batches, watched = setup(DTYPE)
        torch.set_default_dtype(DTYPE)
        torch.manual_seed(0)
        step = compiler(step)
        for batch in batches[:1]:
            step(*batch)
        torch.set_default_dtype(torch.float32)
        runs.append([*watched["model"].named_parameters()])
    for (name, p), (_, q) in zip(*runs):
        grads = "no gradient" if p.grad is None or q.grad is None else f"gradient by {(p.grad - q.grad).abs().max():.2g}"
        print(f"{name}: parameter off by {(p - q).abs().max():.2g}, {grads}")
"""


def main() -> int:
    options = _options()
    if options.worker:
        _work(options)
        return 0
    if options.show:
        from training.generate import program

        print(program(options.seed, options.twisted).source + MAIN)
        return 0
    return Pool(options).run()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run at a time")
    parser.add_argument("--reduce", type=float, default=0.0, metavar="SECONDS", help="time to make a failing program small")
    parser.add_argument("--alike", type=int, default=2, help="how many failures that look alike are made small")
    parser.add_argument("--show", action="store_true", help="only print the program of --seed")
    parser.add_argument("--twisted", action="store_true", help="with what people write between layers")
    parser.add_argument("--device", default="cpu", help="where the programs run: cpu or cuda")
    parser.add_argument("--plain", action="store_true", help="compare eager with eager, to test the generator")
    parser.add_argument("--fresh", action="store_true", help="forget the results so far")
    parser.add_argument("--results", type=Path, default=RESULTS, help=f"default: {RESULTS.relative_to(ROOT)}")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# the process that starts the others ----------------------------------------------------------------------------


class Pool:
    """Gives seeds to worker processes and collects what they answer."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        if options.fresh:
            options.results.unlink(missing_ok=True)
        options.results.parent.mkdir(parents=True, exist_ok=True)
        wanted = range(options.seed, options.seed + options.count)
        self.records = {r["seed"]: r for r in _read(options.results) if r["seed"] in wanted and options.count > 1}
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        for seed in wanted:
            if seed not in self.records:
                self.todo.put(seed)
        self.lock = threading.Lock()
        self.reduced: collections.Counter[str] = collections.Counter()
        self.started = time.monotonic()

    def run(self) -> int:
        print(f"{self.todo.qsize()} of {self.options.count} programs to run", flush=True)
        threads = [threading.Thread(target=self._serve) for _ in range(self.options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(self.summary())
        return int(any(r["kind"] not in ("right", "invalid") for r in self.records.values()))

    def _serve(self) -> None:
        worker = Worker(self.options)
        while True:
            try:
                seed = self.todo.get_nowait()
            except queue.Empty:
                break
            record = worker.run({"seed": seed, "reduce": 0.0})
            if record["kind"] == "crash" and self._crashes_in_eager(seed):
                record["kind"], record["text"] = "invalid", "eager: the process ends as well"
            alike = (
                re.sub(r"\d+(\.\d+)?(e-?\d+)?|\[.*?\]", "", record["text"])[:70] if record["kind"] != "wrong" else "wrong"
            )
            if (
                self.options.reduce
                and record["kind"] not in ("right", "invalid")
                and self.reduced[alike] < self.options.alike
            ):
                self.reduced[alike] += 1
                record = worker.run({"seed": seed, "reduce": self.options.reduce})
            self._add(record)
        worker.stop()

    def _crashes_in_eager(self, seed: int) -> bool:
        worker = Worker(self.options, plain=True)
        record = worker.run({"seed": seed, "reduce": 0.0})
        worker.stop()
        return bool(record["kind"] == "crash")

    def _add(self, record: dict[str, Any]) -> None:
        with self.lock:
            self.records[record["seed"]] = record
            with self.options.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            if record["kind"] != "right":
                print(f"\n=== seed {record['seed']}: {record['kind']}: {record['text']}", flush=True)
            if len(self.records) % 50 == 0:
                print(
                    f"... {len(self.records)} of {self.options.count}, {time.monotonic() - self.started:.0f} s", flush=True
                )

    def summary(self) -> str:
        records = [self.records[seed] for seed in sorted(self.records)]
        kinds = collections.Counter(r["kind"] for r in records)
        seconds = sorted(r["seconds"] for r in records) or [0.0]
        lines = [
            "",
            f"{len(records)} programs: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common()),
            f"seconds with eager's runs: median {seconds[len(seconds) // 2]:.2f}, longest {seconds[-1]:.1f}; "
            f"{sum(bool(r['excused']) for r in records)} excused for rounding errors that they amplify, "
            f"{sum(bool(r.get('disputed')) for r in records)} as eager's for contiguous images only",
            f"graphs: {dict(sorted(collections.Counter(r['graphs'] for r in records).items()))}",
        ]
        logged = collections.Counter(re.sub(r"\d+", "N", line)[:150] for r in records for line in {*r["logged"]})
        lines += [f"{n:5} logged: {line}" for line, n in logged.most_common(25)]
        for kind in kinds:
            if kind != "right":
                lines.append(f"{kind}: seeds {[r['seed'] for r in records if r['kind'] == kind]}")
        return "\n".join(lines)


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Worker:
    """A process that checks programs, one after the other; a new one after one that crashed or took too long."""

    def __init__(self, options: argparse.Namespace, plain: bool = False) -> None:
        self._flags = ["--plain"] * (options.plain or plain) + ["--twisted"] * options.twisted
        self._device = options.device
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        start = time.perf_counter()
        if self._process is None or self._count >= PROCESS_SIZE:
            self.stop()
            self._process, self._count = self._started(), 0
        self._count += 1
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], PATIENCE + 2 * job["reduce"])
        line = process.stdout.readline() if ready else ""
        if line:
            record = json.loads(line)
            if record["kind"] in ("too slow", "internal error", "exception"):
                self.stop()  # whatever was interrupted must not disturb the next one
            return record
        if ready:
            process.wait()
        self.stop()
        kind, text = ("crash", f"the process ended with {process.returncode}") if ready else ("too slow", "killed")
        return {"seed": job["seed"], "kind": kind, "text": text, "logged": [], "graphs": 0, "excused": [], "disputed": [],
                "seconds": time.perf_counter() - start}  # fmt: skip

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-u", str(Path(__file__).resolve()), "--worker"]
        command += ["--device", self._device, *self._flags]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# the processes that run programs -------------------------------------------------------------------------------


def _work(options: argparse.Namespace) -> None:
    """Read seeds from standard input, one JSON object a line, and write what was found."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print is no answer
    import torch

    from training.check import check
    from training.execute import Program
    from training.generate import program

    torch.backends.cudnn.allow_tf32 = False  # which of cuDNN's algorithms round products so is not ours to say

    torch.set_num_threads(1)
    for line in sys.stdin:
        job = json.loads(line)
        source, start = program(job["seed"], options.twisted).source, time.perf_counter()
        report = check(Program.from_source(source, options.device), compiled=not options.plain)
        record = {
            "seed": job["seed"], "kind": "right", "text": "", "logged": sorted({*report.logged}), "graphs": report.graphs,
            "excused": report.excused[:5], "disputed": report.disputed[:5], "seconds": time.perf_counter() - start,
        }  # fmt: skip
        if report.finding is not None:
            record["kind"], record["text"] = report.finding.kind, report.finding.detail
            if job["reduce"] and report.finding.kind != "invalid":
                from programs.reduce import reduced

                smaller = reduced(
                    source, functools.partial(_still_fails, finding=report.finding, device=options.device), job["reduce"]
                )
                record["text"] += "\n" + smaller
        answers.write(json.dumps(record) + "\n")
        answers.flush()


def _still_fails(source: str, finding: Any, device: str) -> bool:
    """Whether a smaller program fails in the same way. What is left may be no program at all."""
    from training.check import check
    from training.execute import Program

    try:
        found = check(Program.from_source(source, device)).finding
    except Exception:
        return False
    return found is not None and (found.kind, found.what) == (finding.kind, finding.what)


if __name__ == "__main__":
    sys.exit(main())
