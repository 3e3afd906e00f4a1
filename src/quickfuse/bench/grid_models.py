"""Models at the sizes of a GPU, as tasks of `grid`: `quickfuse bench models --device cuda`."""

from __future__ import annotations

import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import quickfuse
from quickfuse import logs
from quickfuse.bench import models
from quickfuse.bench.grid import Row, Task
from quickfuse.bench.steady import Timed, interleave
from quickfuse.bench.step import Step
from quickfuse.bench.variants import synchronizer
from quickfuse.bench.workloads import ModelWorkload, from_dict, to_dict

#: How a function is run: the compiler, and after a blank its mode.
VARIANTS = (
    "eager", "eager graph", "torch.compile", "torch.compile reduce-overhead", "quickfuse", "quickfuse reduce-overhead",
)  # fmt: skip

#: What GPUs are measured with.
BATCH, PIXELS, TOKENS = 32, 224, 512

#: How far the first result may be from eager's, relative to it, and the norm of its gradients. Convolutions may round to
#: TF32 in either, and norms of few elements multiply what was rounded.
_TOLERANCE = {"float32": (1e-2, 1e-1), "bfloat16": (5e-2, 3e-1)}


def tasks(
    names: Sequence[str], modes: Sequence[str], dtypes: Sequence[str], variants: Sequence[str], device: str,
    seconds: float, size: dict[str, int],
) -> list[Task]:  # fmt: skip
    """A task for each combination. `size`: as in `zoo.build`."""
    workloads = [ModelWorkload(name, mode, device, dtype, **size) for name in names for mode in modes for dtype in dtypes]
    return [
        {"suite": "models", "workload": to_dict(workload), "variant": variant, "seconds": seconds}
        for workload in workloads
        for variant in variants
    ]


def wrapper(variant: str) -> Callable[[Any], Any]:
    """What a variant makes of a function or module."""
    name, _, mode = variant.partition(" ")
    if name == "eager":
        return lambda fn: fn
    if name == "torch.compile":
        return lambda fn: torch.compile(fn, mode=mode or None)
    return lambda fn: quickfuse.compile(fn, mode=mode or None)


def measure(task: Task) -> Iterator[Row]:
    """In a process of its own: the first call, then the times."""
    # The peer says nothing about itself here; its errors are results.
    torch._logging.set_logs(all=logging.ERROR)  # type: ignore[attr-defined]
    workload, variant = from_dict(task["workload"]), task["variant"]
    assert isinstance(workload, ModelWorkload)
    step = models.prepare(workload, wrapper(variant), synchronizer(workload.device))
    step.synchronize()
    begin = time.perf_counter()
    fn = step.make()
    value = fn(*step.args)
    step.synchronize()
    end = time.perf_counter()
    found: Row = {"value": _in_short(value, step)}
    for _ in range(4):  # recordings are made in later calls
        fn(*step.args)
    step.synchronize()
    yield {"begin": begin, "end": end}
    fn = _recorded(fn, step) if variant == "eager graph" else fn
    if variant == "torch.compile reduce-overhead":
        fn = _marked(fn)
    cuda = workload.device == "cuda"
    timed = Timed(fn, step.args, step.synchronize)
    timed.warm_up()
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    interleave({variant: timed}, task["seconds"])
    found |= {"us": statistics.median(timed.rounds), "rounds_us": [float(f"{us:.5g}") for us in timed.rounds]}
    if cuda:
        found |= {
            "allocated_gb": torch.cuda.max_memory_allocated() / 1e9,
            "reserved_gb": torch.cuda.max_memory_reserved() / 1e9,
        }
    if variant.startswith("quickfuse"):
        found["counts"] = dict(logs.counts)
    yield found


def _in_short(value: torch.Tensor, step: Step) -> list[float]:
    """Numbers that are the same in all variants: of the result, and of all that was changed."""
    changed = [tensor.detach().double().norm() for tensor in step.collect() if tensor.is_floating_point()]
    return [value.detach().double().norm().item(), *([torch.stack(changed).norm().item()] if changed else [])]


def _recorded(fn: Callable[..., Any], step: Step) -> Callable[..., Any]:
    """The function recorded in a CUDA graph, whose inputs stay where they are."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            fn(*step.args)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn(*step.args)
    return lambda *args: graph.replay()


def _marked(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What torch.compile asks users to do whose results live until the next call."""

    def call(*args: torch.Tensor) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return fn(*args)

    return call


# --- what came out ---


def key_of(row: Row) -> tuple[str, str, str]:
    """Model, mode and dtype."""
    workload = row["task"]["workload"]
    return workload["model"], workload["mode"], workload["dtype"]


def grouped(rows: Sequence[Row]) -> dict[tuple[str, str, str], dict[str, Row]]:
    """The rows of each model, mode and dtype by variant."""
    found: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        found[key_of(row)][row["task"]["variant"]] = row
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each model, mode and dtype: milliseconds a call, seconds of the first call, and allocated gigabytes."""
    present = [variant for variant in VARIANTS if any(row["task"]["variant"] == variant for row in rows)]
    width = max(map(len, present), default=0) + 2
    lines = ["ms a call, s of the first call, GB".ljust(36) + "".join(variant.rjust(width) for variant in present)]
    for key, found in grouped(rows).items():
        lines.append(" ".join(key).ljust(36) + "".join(_cell(found.get(variant)).rjust(width) for variant in present))
    return lines


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if "failed" in row:
        return "failed"
    memory = f" {row['allocated_gb']:.1f}" if "allocated_gb" in row else ""
    return f"{row['us'] / 1e3:.2f} {row.get('first_call_s', 0):.1f}{memory}"


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric means beside the peer in the same mode and eager, and all that is slower or different."""
    lines = []
    by_key = grouped(rows)
    for ours, peer in (
        ("quickfuse", "torch.compile"), ("quickfuse reduce-overhead", "torch.compile reduce-overhead"),
        ("quickfuse", "eager"), ("quickfuse reduce-overhead", "eager graph"),
    ):  # fmt: skip
        pairs = {
            key: (found[peer], found[ours]) for key, found in by_key.items()
            if "us" in found.get(peer, {}) and "us" in found.get(ours, {})
        }  # fmt: skip
        if not pairs:
            continue
        speeds = {key: peer_row["us"] / our_row["us"] for key, (peer_row, our_row) in pairs.items()}
        mean = statistics.geometric_mean(speeds.values())
        in_order = sorted(speeds, key=speeds.__getitem__)
        slower = ", ".join(f"{' '.join(key)} {speeds[key]:.2f}" for key in in_order if speeds[key] < 1) or "none"
        lines.append(f"{ours} is {mean:.2f} times as fast as {peer} ({len(speeds)}); slower: {slower}")
        first = [p["first_call_s"] / max(1e-3, o["first_call_s"]) for p, o in pairs.values() if "first_call_s" in p]
        if first and peer.startswith("torch"):
            mean = statistics.geometric_mean(first)
            lines.append(f"  first calls: {mean:.1f} times as fast, {min(first):.1f} at the least")
    return [*lines, *different(rows), *failures(rows)]


def different(rows: Sequence[Row]) -> list[str]:
    """What the first call returned where that is not what eager returned."""
    lines = []
    for key, found in grouped(rows).items():
        expected = found.get("eager", {}).get("value")
        for variant, row in found.items():
            value = row.get("value")
            if expected is None or value is None:
                continue
            pairs = zip(value, expected, _TOLERANCE.get(key[2], _TOLERANCE["bfloat16"]), strict=False)
            if not all(abs(a - b) <= most * abs(b) for a, b, most in pairs):
                lines.append(f"{' '.join(key)}, {variant}: {value} in place of {expected}")
    return lines


def failures(rows: Sequence[Row]) -> list[str]:
    return [f"{' '.join(key_of(row))}, {row['task']['variant']}: {row['failed']}" for row in rows if "failed" in row]


def shown(task: Task, row: Row) -> str:
    """A row as a line."""
    workload = task["workload"]
    head = f"{workload['model']:<18} {workload['mode']:<5} {workload['dtype']:<8} {task['variant']:<29}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    memory = f" {row['allocated_gb']:6.2f} of {row['reserved_gb']:6.2f} GB" if "allocated_gb" in row else ""
    return f"{head} {row['us'] / 1e3:9.3f} ms  first {row.get('first_call_s', 0):7.2f} s{memory}"
