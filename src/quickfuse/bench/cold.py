"""The first call: what a user waits for, in a fresh process with empty caches."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from quickfuse import logs
from quickfuse.bench import variants
from quickfuse.bench.models import memory_bytes
from quickfuse.bench.step import Missing
from quickfuse.bench.variants import OURS
from quickfuse.bench.workloads import DTYPES, ModelWorkload, Workload, from_dict, to_dict

#: As many calls as the tutorial on compiled optimizers takes to warm up.
FIRST_CALLS = 5

#: The program of the fresh process.
_CHILD = Path(__file__).resolve().with_name("cold_child.py")

Status = Literal["measured", "missing", "failed", "timeout"]

#: Errors of peers that mean something is not installed: a word of the message, and what to tell the user.
_KNOWN_CAUSES = {
    "InvalidCxxCompiler": "needs a C++ compiler, and none was found",
    "Failed to find C compiler": "needs a C compiler, and none was found",
    "Python.h": "needs the header files of Python (python3-dev), and they were not found",
}


@dataclass
class ColdResult:
    """The first calls of a variant. Seconds; `reason` says in one line what went wrong, unless `status` is measured.

    `calls[0]` counts from wrapping the function to the end of its first call. `stages` is how quickfuse spent it, and
    `messages` what it had to say: graph breaks, recompilations, failures. `difference` is the largest absolute
    difference from eager in the changed tensors after these calls, or None where there is nothing to compare. `counts`
    are `logs.counts` of quickfuse, `memory` the bytes that a call of a model holds.
    """

    status: Status
    reason: str = ""
    calls: list[float] = field(default_factory=list)
    import_torch: float | None = None
    import_quickfuse: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    difference: float | None = None
    counts: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


def cache_environment(folder: Path) -> dict[str, str]:
    """Environment variables that put the caches of all compilers into `folder`."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "QUICKFUSE_CACHE_DIR": str(folder / "quickfuse"),
    }


def measure_cold(workload: Workload, variant: str, caches: Path, timeout: float) -> ColdResult:
    """Run the first calls of a variant in a fresh process, with its caches in the empty folder `caches`."""
    caches.mkdir(parents=True, exist_ok=True)
    task, answer = caches / "task.json", caches / "answer.json"
    task.write_text(json.dumps({"workload": to_dict(workload), "variant": variant}))
    search_path = [str(_CHILD.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **cache_environment(caches), "PYTHONPATH": os.pathsep.join(search_path)}
    # -P: the script's own folder holds modules with everyday names, which must not shadow others.
    command = [sys.executable, "-P", str(_CHILD), str(task), str(answer)]
    with open(caches / "output.txt", "w+b") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            return ColdResult("timeout", f"first call not finished after {timeout:g} s")
        finally:
            _stop(process)
        if answer.exists():
            return ColdResult(**json.loads(answer.read_text()))
        output.seek(0)
        return ColdResult("failed", _why_it_died(code, output.read().decode(errors="replace")))


def answer_task(task: dict[str, Any], imports: dict[str, float]) -> dict[str, Any]:
    """What the fresh process does once it has imported the packages, which took the seconds `imports`."""
    workload, variant = from_dict(task["workload"]), task["variant"]
    try:
        result = _first_calls(workload, variant)
    except Missing as error:
        result = ColdResult("missing", str(error))
    except Exception as error:  # a peer may fail in any way: that is a result too
        result = ColdResult("failed", explain(error))
    result.import_torch, result.import_quickfuse = imports["torch"], imports["quickfuse"]
    return asdict(result)


def explain(error: BaseException) -> str:
    """An error in one line: a known cause in plain words, or its type and the first line of its message."""
    text = f"{type(error).__name__}: {error}"
    for word, cause in _KNOWN_CAUSES.items():
        if word in text:
            return cause
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:200]}"


def _first_calls(workload: Workload, variant: str) -> ColdResult:
    step = variants.prepare(workload, variant)
    step.synchronize()
    result = ColdResult("measured")
    returned = None
    with _collect_messages() as result.messages:
        start = time.perf_counter()
        fn = step.make()
        for _ in range(FIRST_CALLS):
            returned = fn(*step.args)
            step.synchronize()
            now = time.perf_counter()
            result.calls.append(now - start)
            start = now
    if variant == OURS:
        result.stages, result.counts = dict(logs.stage_seconds), dict(logs.counts)
    if variant != "jax":
        result.difference = _difference_from_eager(workload, step.results(), returned)
    if isinstance(workload, ModelWorkload):
        result.memory = memory_bytes(step, fn)
    return result


@contextlib.contextmanager
def _collect_messages() -> Iterator[list[str]]:
    """What quickfuse logs while the context is open, with graph breaks and recompilations."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collector = Collector()
    logs.log.addHandler(collector)
    logs.set_logs(graph_breaks=True, recompiles=True)
    try:
        yield messages
    finally:
        logs.set_logs(graph_breaks=False, recompiles=False)
        logs.log.removeHandler(collector)


def _difference_from_eager(workload: Workload, state: list[torch.Tensor], returned: object) -> float:
    reference = variants.prepare(workload, "eager")
    fn = reference.make()
    expected_return = None
    for _ in range(FIRST_CALLS):
        expected_return = fn(*reference.args)
    pairs = list(zip(state, reference.results(), strict=True))
    if isinstance(returned, torch.Tensor) and isinstance(expected_return, torch.Tensor):
        pairs.append((returned, expected_return))
    wide = torch.float64 if workload_dtype(workload) is torch.float64 else torch.float32
    return max(((a.to(wide) - b.to(wide)).abs().max().item() for a, b in pairs), default=0.0)


def workload_dtype(workload: Workload) -> torch.dtype:
    return DTYPES[getattr(workload, "dtype", "float32")]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started: compilers keep worker processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _why_it_died(code: int, output: str) -> str:
    """In one line: the signal that ended a process, or the last line that it wrote."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = output.strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {code}"
