"""Many measurements on a GPU, each in a process of its own: `quickfuse bench models|operators --device cuda`.

Compilers take far longer than what they compile, and time on a GPU may be scarce. So several processes (`grid_child`) get
ready at a time, and one after the other measures while all others are stopped by a signal. Results are written as they come,
and a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quickfuse.bench.cold import cache_environment
from quickfuse.bench.machine import describe_machine

SCHEMA = 1

#: The program of each process.
_CHILD = Path(__file__).resolve().with_name("grid_child.py")

#: Seconds that work which stopped processes have given to the GPU may still take.
_DRAINING = 0.2

#: One measurement: what `grid_child` is told. `suite` and the names in `key` are in the result, too.
Task = dict[str, Any]
Row = dict[str, Any]


@dataclass
class Results:
    """The rows of a run. `path`: a JSON file that is written after each, or None."""

    path: Path | None
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @staticmethod
    def of_file(path: Path | None, device: str) -> Results:
        """What a run before has left, or nothing."""
        results = Results(path, describe_machine(device))
        if path is not None and path.exists():
            results.rows = json.loads(path.read_text())["rows"]
        return results

    def has(self, task: Task) -> bool:
        return any(row["task"] == task for row in self.rows)

    def add(self, task: Task, found: Row) -> None:
        self.rows.append({"task": task, **found})
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            beside = self.path.with_suffix(".part")
            beside.write_text(json.dumps({"schema": SCHEMA, "machine": self.about, "rows": self.rows}, indent=1) + "\n")
            beside.replace(self.path)


@dataclass
class Limits:
    """`ready`: seconds until a process has made its first calls. `total`: seconds for all of a run; 0: no bound. `jobs`: how
    many processes there are at a time."""

    ready: float = 120.0
    total: float = 0.0
    jobs: int = 1


def run(tasks: Sequence[Task], results: Results, limits: Limits, show: Callable[[Task, Row], None]) -> bool:
    """Measure those of the tasks that have no result yet. Returns whether there was time for all of them."""
    ends = time.monotonic() + (limits.total or 1e9)
    left = [task for task in tasks if not results.has(task)]
    late = threading.Event()
    with tempfile.TemporaryDirectory(prefix="quickfuse-bench-", ignore_cleanup_errors=True) as folder:
        runner = _Runner(Path(folder), ends)

        def one(task: Task) -> None:
            if time.monotonic() > ends - 5:
                late.set()
                return
            found = runner.measure(task, limits.ready)
            if found.get("failed") == _OUT_OF_TIME:
                late.set()
                return
            with runner.writing:
                results.add(task, found)
                show(task, found)

        with ThreadPoolExecutor(limits.jobs) as pool:
            for future in [pool.submit(one, task) for task in left]:
                future.result()
    return not late.is_set()


_OUT_OF_TIME = "the time for the whole run is over"


class _Runner:
    """Runs tasks from several threads."""

    def __init__(self, folder: Path, ends: float) -> None:
        self.folder, self.ends = folder, ends
        #: Held while a process measures, starts, or ends: nothing else goes on meanwhile.
        self.alone = threading.Lock()
        self.writing = threading.Lock()
        self.running: dict[int, list[tuple[float, float]]] = {}  # process -> when it was stopped
        self.number = 0

    def measure(self, task: Task, limit: float) -> Row:
        child = self._start(task)
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read_lines, args=(child, lines), daemon=True).start()
        try:
            ready = self._wait(child, lines, limit)
            if "failed" in ready:
                return ready
            with self._others_stopped(child.pid):
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                found = self._wait(child, lines, limit)
            if "begin" in ready:
                stopped = sum(_overlap(span, (ready["begin"], ready["end"])) for span in self.running[child.pid])
                found["first_call_s"] = round(ready["end"] - ready["begin"] - stopped, 4)
            return found
        finally:
            with self.alone:
                del self.running[child.pid]
                _end(child)

    def _start(self, task: Task) -> subprocess.Popen[str]:
        with self.alone:
            self.number += 1
            caches = self.folder / str(self.number)
            caches.mkdir()
            search_path = [str(_CHILD.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment = {**os.environ, **cache_environment(caches), "PYTHONPATH": os.pathsep.join(search_path)}
            # -P: the script's own folder holds modules with everyday names, which must not shadow others.
            command = [sys.executable, "-P", str(_CHILD), json.dumps(task)]
            with open(caches / "errors.txt", "wb") as errors:
                child = subprocess.Popen(
                    command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                    start_new_session=True,
                )  # fmt: skip
            self.running[child.pid] = []
            return child

    def _wait(self, child: subprocess.Popen[str], lines: queue.Queue[str], limit: float) -> Row:
        """The next answer of a process. The time for which it was stopped does not count."""
        begin = time.monotonic()
        while True:
            stopped = sum(end - start for start, end in self.running[child.pid] if start >= begin)
            if time.monotonic() > self.ends:
                return {"failed": _OUT_OF_TIME}
            if time.monotonic() - begin - stopped > limit:
                return {"failed": f"not ready after {limit:g} s"}
            try:
                line = lines.get(timeout=0.2)
            except queue.Empty:
                continue
            if not line:
                return {"failed": f"ended with code {child.wait()}"}
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if isinstance(answer, dict):
                    return answer

    @contextlib.contextmanager
    def _others_stopped(self, pid: int) -> Iterator[None]:
        with self.alone:
            others = [other for other in self.running if other != pid]
            stopped = _families(others)
            _send(stopped, signal.SIGSTOP)
            _wait_for_stops(stopped)
            start = time.perf_counter()  # all are stopped: what finding and stopping them takes is time of theirs
            if others:
                time.sleep(_DRAINING)
            try:
                yield
            finally:
                end = time.perf_counter()
                _send(stopped, signal.SIGCONT)
                for other in others:
                    self.running[other].append((start, end))


def _read_lines(child: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put("")


def _overlap(span: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(span[1], other[1]) - max(span[0], other[0]))


def _families(pids: Sequence[int]) -> list[int]:
    """Processes and all that they started, compilers for example, where the system tells."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    family, new = [], [*pids]
    while new:
        family += new
        found = set(new)
        new = [child for child, parent in parents.items() if parent in found]
    return family


def _send(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, what)


def _wait_for_stops(pids: Sequence[int]) -> None:
    """Wait until processes have stopped, which on a busy machine some do later than they are told to."""
    late = time.perf_counter() + 1
    while any(map(_runs, pids)) and time.perf_counter() < late:
        time.sleep(0.001)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "RSD"
    except (OSError, IndexError):
        return False


def _end(child: subprocess.Popen[str]) -> None:
    _send(_families([child.pid]) if child.poll() is None else [], signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
