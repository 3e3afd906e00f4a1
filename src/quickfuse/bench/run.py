"""A whole run: cold times in fresh processes, then the steady state of all variants in this one."""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from quickfuse.bench import variants
from quickfuse.bench.cold import ColdResult, cache_environment, explain, measure_cold
from quickfuse.bench.machine import busy_cores, describe_machine
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.steady import CopyBandwidth, Timed, interleave
from quickfuse.bench.workloads import Workload

#: What is being done, and how much of the whole is done (0 to 1).
Progress = Callable[[str, float], None]

#: The share of the progress bar that the cold runs take.
_COLD_SHARE = 0.6


def run(
    workload: Workload,
    names: Sequence[str],
    *,
    seconds: float = 5.0,
    cold_timeout: float = 300.0,
    progress: Progress = lambda what, fraction: None,
) -> Report:
    """Measure the variants `names`: each one's first call alone, then about `seconds` each, taking turns."""
    busy = busy_cores()
    with tempfile.TemporaryDirectory(prefix="quickfuse-bench-", ignore_cleanup_errors=True) as folder:
        caches = {name: Path(folder) / name for name in names}
        results = []
        for number, name in enumerate(names):
            progress(f"first call of {name}", _COLD_SHARE * number / len(names))
            results.append(VariantResult(name, measure_cold(workload, name, caches[name], cold_timeout)))
        # What torch.compile compiled a moment ago need not be compiled again for the steady state.
        with _environment(cache_environment(caches.get("torch.compile", Path(folder) / "steady"))):
            copy_rate = _steady(workload, results, seconds, progress)
    return Report(workload, describe_machine(workload.device), results, copy_rate, cold_timeout, busy)


def _steady(workload: Workload, results: list[VariantResult], seconds: float, progress: Progress) -> float | None:
    """Fill the rounds of the results whose cold run went well; returns the bandwidth of a copy in the same rounds."""
    # The peer's remarks on what it compiles would break into the progress bar. Its errors are reported below.
    torch._logging.set_logs(all=logging.ERROR)  # type: ignore[attr-defined]
    timed: dict[str, Timed] = {}
    for result in results:
        if result.cold.status != "measured":
            continue
        progress(f"warming up {result.name}", _COLD_SHARE)
        try:
            timed[result.name] = _warm(workload, result.name)
        except Exception as error:  # a peer may fail in any way: that is a result too
            result.cold = ColdResult("failed", explain(error))
    bandwidth = CopyBandwidth(workload.device) if workload.shows_bandwidth else None
    interleave(timed, seconds, bandwidth, lambda done: progress("taking turns", _COLD_SHARE + (1 - _COLD_SHARE) * done))
    for result in results:
        if result.name in timed:
            result.rounds_us = timed[result.name].rounds
            result.calls_per_round = timed[result.name].calls
    return statistics.median(bandwidth.rounds) if bandwidth is not None else None


def _warm(workload: Workload, name: str) -> Timed:
    step = variants.prepare(workload, name)
    timed = Timed(step.make(), step.args, step.synchronize)
    timed.warm_up()
    return timed


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
