"""Check and time every family of kernels on a GPU: `python benchmarks/gpu_families.py --json result.json`.

1. Each family against eager, values and gradients, in float32 and bfloat16. The judge is float64: an error may be little
   more than eager's own. Workers share the families, so that a kernel that takes the device down fails alone.
2. Some of them at sizes that no cache holds: their time beside eager's, and the share of the bandwidth of a copy that they
   reach if all that they read and write is moved once.

Exits with status 1 if a result is wrong. Takes about three minutes with 16 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

F32, BF16 = torch.float32, torch.bfloat16
#: Where it is checked: on a machine without a GPU, the kernels of the CPU.
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: How many times eager's error, and how many units of rounding of the largest element, an error may be.
MOST_TIMES, MOST_UNITS = 4.0, 8.0
#: Seconds after which a worker is given up, and after which nothing new is checked.
WORKER_SECONDS, CHECK_SECONDS = 60, 150


def normal(*shape: int, scale: float = 1.0) -> Callable[[], torch.Tensor]:
    """Makes a float operand."""
    return lambda: torch.randn(shape, device=DEVICE) * scale


def whole(most: int, *shape: int) -> Callable[[], torch.Tensor]:
    """Makes an operand of integers below `most`."""
    return lambda: torch.randint(0, most, shape, device=DEVICE)


@dataclass
class Family:
    """A function, what makes its operands, and whether floats among them need gradients."""

    fn: Callable[..., Any]
    operands: tuple[Callable[[], torch.Tensor], ...]
    gradients: bool = True


def family(fn: Callable[..., Any], *operands: Callable[[], torch.Tensor], gradients: bool = True) -> Family:
    return Family(fn, operands, gradients)


def batch_norm(x: Any, mean: Any, var: Any, w: Any, b: Any) -> Any:
    return F.batch_norm(x, mean.detach().clone(), var.detach().clone().abs(), w, b, True)


FAMILIES: dict[str, Family] = {
    "pointwise": family(lambda x, y: torch.tanh(x) * y + x.exp(), normal(1000, 37), normal(37)),
    "gelu bias": family(lambda x, b: F.gelu(x + b), normal(300, 768), normal(768)),
    "silu gate": family(lambda x, y: F.silu(x) * y, normal(300, 768), normal(300, 768)),
    "transpose": family(lambda x: x.t().contiguous() * 2, normal(300, 200)),
    "permute": family(lambda x: x.permute(0, 2, 3, 1).contiguous() + 1, normal(4, 33, 28, 28)),
    "sum last": family(lambda x: x.sum(-1), normal(300, 777)),
    "sum first": family(lambda x: x.sum(0), normal(3000, 77)),
    "sum all": family(lambda x: x.sum(), normal(3000, 777)),
    "sum of two axes": family(lambda x: x.sum((0, 2)), normal(16, 33, 784)),
    "mean, amax, amin": family(lambda x: (x.mean(1), x.amax(1), x.amin(1)), normal(300, 777)),
    "argmax, max": family(lambda x: (x.argmax(1), *x.max(1)), normal(300, 777)),
    "any, all, count": family(lambda x: ((x > 2).any(1), (x > -3).all(1), (x > 0).sum(1)), normal(300, 77), gradients=False),
    "prod": family(lambda x: x.prod(1), normal(300, 7)),
    "var, std": family(lambda x: (x.var(1), x.std(0)), normal(300, 777)),
    "norms": family(lambda x: (x.norm(), x.norm(dim=1)), normal(300, 777)),
    "clip by norm": family(
        lambda x, y: (x / (x.norm() + y.norm()), y / (x.norm() + y.norm())), normal(300, 77), normal(999)
    ),
    "logsumexp": family(lambda x: torch.logsumexp(x, 1), normal(300, 777)),
    "softmax": family(lambda x: F.softmax(x, -1), normal(300, 1000)),
    "softmax, long rows": family(lambda x: F.softmax(x, -1), normal(20, 50257)),
    "softmax of columns": family(lambda x: F.softmax(x, 1), normal(8, 100, 300)),
    "masked softmax": family(lambda x, m: F.softmax(x.masked_fill(m > 0.5, -torch.inf), -1), normal(300, 200), normal(200)),
    "log softmax": family(lambda x: F.log_softmax(x, -1), normal(300, 1000)),
    "layer norm": family(lambda x, w, b: F.layer_norm(x, (768,), w, b), normal(300, 768), normal(768), normal(768)),
    "layer norm, odd": family(lambda x, w, b: F.layer_norm(x, (77,), w, b), normal(300, 77), normal(77), normal(77)),
    "layer norm, long": family(lambda x, w: F.layer_norm(x, (20000,), w), normal(30, 20000), normal(20000)),
    "add, layer norm": family(
        lambda x, y, w: F.layer_norm(x + y, (768,), w) + x, normal(300, 768), normal(300, 768), normal(768)
    ),
    "rms norm": family(lambda x, w: F.rms_norm(x, (768,), w), normal(300, 768), normal(768)),
    "group norm": family(lambda x, w, b: F.group_norm(x, 8, w, b), normal(8, 64, 14, 14), normal(64), normal(64)),
    "instance norm": family(lambda x: F.instance_norm(x), normal(8, 64, 14, 14)),
    "batch norm": family(batch_norm, normal(16, 64, 28, 28), normal(64), normal(64), normal(64), normal(64)),
    "batch norm, channels last": family(
        lambda x, m, v, w, b: batch_norm(x.contiguous(memory_format=torch.channels_last), m, v, w, b).relu(),
        normal(16, 64, 28, 28),
        normal(64),
        normal(64),
        normal(64),
        normal(64),
    ),
    "batch norm, evaluation": family(
        lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach().abs() + 1, w, b, False).relu(),
        normal(16, 64, 28, 28),
        normal(64),
        normal(64),
        normal(64),
        normal(64),
    ),
    "cross entropy": family(lambda x, t: F.cross_entropy(x, t), normal(300, 1000), whole(1000, 300)),
    "cross entropy, long": family(lambda x, t: F.cross_entropy(x, t), normal(64, 50257), whole(50257, 64)),
    "losses": family(
        lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y)), normal(300, 77), normal(300, 77)
    ),
    "binary cross entropy": family(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()), normal(999), normal(999)
    ),
    "cat": family(lambda x, y: torch.cat([x, y * 2], 1).relu(), normal(300, 77), normal(300, 99)),
    "stack, pad": family(
        lambda x, y: (torch.stack([x, y]), F.pad(x, (1, 2)), x.roll(3, 1)), normal(300, 77), normal(300, 77)
    ),
    "split, chunk": family(lambda x: (a := x.chunk(3, 1), a[0] * a[1].sigmoid() + a[2])[1], normal(300, 96)),
    "embedding": family(lambda w, i: F.embedding(i, w), normal(1000, 96), whole(1000, 8, 50)),
    "gather": family(lambda x, i: x.gather(1, i), normal(300, 99), whole(99, 300, 20)),
    "index": family(lambda x, i: x[i] + 1, normal(300, 99), whole(300, 500)),
    "index select": family(lambda x, i: x.index_select(1, i), normal(300, 99), whole(99, 50)),
    "index add": family(lambda x, i, y: x.index_add(0, i, y), normal(300, 99), whole(300, 500), normal(500, 99)),
    "scatter add": family(lambda x, i, y: x.scatter_add(1, i, y), normal(300, 99), whole(99, 300, 20), normal(300, 20)),
    "index put": family(lambda x, i, y: x.index_put((i,), y, True), normal(300, 99), whole(300, 50), normal(50, 99)),
    "cumsum": family(lambda x: x.cumsum(1), normal(300, 777, scale=0.1)),
    "cumsum of columns": family(lambda x: x.cumsum(0), normal(777, 300, scale=0.1)),
    "cumsum, long": family(lambda x: x.cumsum(0), normal(100_000, scale=0.01)),
    "cummax, cumprod": family(lambda x: (*x.cummax(1), (1 + x * 0.01).cumprod(1)), normal(30, 77), gradients=False),
    "max pool": family(lambda x: F.max_pool2d(x, 3, 2, 1), normal(8, 16, 28, 28)),
    "avg pool": family(lambda x: F.avg_pool2d(x, 2), normal(8, 16, 28, 28)),
    "adaptive pool": family(lambda x: F.adaptive_avg_pool2d(x, 1), normal(8, 64, 14, 14)),
    "resize": family(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), normal(4, 8, 14, 14)),
    "resize, nearest": family(lambda x: F.interpolate(x, scale_factor=2), normal(4, 8, 14, 14)),
    "triangles": family(lambda x: (x.tril(), x.triu(1)), normal(77, 77)),
    "members": family(lambda a, b, c: [F.softmax(x, -1) for x in (a, b, c)], normal(30, 77), normal(50, 60), normal(2, 999)),
    "attention": family(
        lambda q, k, v: F.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v,
        normal(4, 100, 64, scale=0.3),
        normal(4, 100, 64, scale=0.3),
        normal(4, 100, 64),
    ),
    "linear, gelu": family(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), normal(300, 128), normal(256, 128, scale=0.1), normal(256)
    ),
    "unaligned": family(lambda x: F.softmax(x.reshape(-1)[1 : 1 + 64 * 128].view(64, 128), -1), normal(100, 128)),
}


# ---------------------------------------------------------------------------------------------------------------------
# Checks, in workers


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, (list, tuple)):
        return [leaf for element in value for leaf in leaves(element)]
    return [value]


def results(fn: Callable[..., Any], operands: list[torch.Tensor], gradients: bool) -> list[torch.Tensor]:
    """What a function returns, and the gradients of its floats."""
    inputs = [x.clone().requires_grad_(gradients and x.is_floating_point()) for x in operands]
    out = leaves(fn(*inputs))
    if not gradients:
        return out
    differentiable = [x for x in out if x.requires_grad]
    weights = [torch.cos(torch.arange(x.numel(), device=DEVICE) % 97).view(x.shape).to(x.dtype) for x in differentiable]
    wanted = [x for x in inputs if x.requires_grad]
    grads = torch.autograd.grad(differentiable, wanted, weights, allow_unused=True)
    return [x.detach() for x in out] + [g for g in grads if g is not None]


def difference(got: torch.Tensor, judge: torch.Tensor) -> float:
    """The largest difference; infinite where only one is NaN or infinite."""
    a, b = got.double(), judge.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf)).max()) if a.numel() else 0.0


def compare(ours: list[torch.Tensor], eager: list[torch.Tensor], judge: list[torch.Tensor]) -> str:
    """What is wrong; empty if nothing is."""
    if len(ours) != len(eager):
        return f"{len(ours)} results, eager has {len(eager)}"
    for k, (mine, its, exact) in enumerate(zip(ours, eager, judge, strict=True)):
        if (mine.dtype, mine.shape) != (its.dtype, its.shape):
            return f"result {k} is {mine.dtype} {tuple(mine.shape)}, eager's {its.dtype} {tuple(its.shape)}"
        if not mine.is_floating_point():
            different = int((mine != its).sum())
            if different:
                return f"result {k}: {different} of {mine.numel()} differ"
            continue
        finite = exact[exact.isfinite()].abs()
        largest = float(finite.max()) if finite.numel() else 1.0
        allowed = MOST_TIMES * difference(its, exact) + MOST_UNITS * torch.finfo(mine.dtype).eps * max(largest, 1e-3)
        error = difference(mine, exact)
        if not error <= allowed:
            return f"result {k}: error {error:.3g}, eager's {difference(its, exact):.3g}, largest element {largest:.3g}"
    return ""


def check(name: str, dtype: torch.dtype) -> dict[str, Any]:
    """One family in one type."""
    import quickfuse
    from quickfuse import logs

    torch.manual_seed(0)
    entry = FAMILIES[name]
    operands = [make() for make in entry.operands]
    operands = [x.to(dtype) if x.is_floating_point() else x for x in operands]
    exact = [x.double() if x.is_floating_point() else x for x in operands]
    quickfuse.reset()
    start = time.perf_counter()
    before = dict(logs.counts)
    compiled = quickfuse.compile(entry.fn)
    ours = results(compiled, operands, entry.gradients)
    counts = {name: count - before.get(name, 0) for name, count in logs.counts.items()}
    seconds = time.perf_counter() - start
    again = results(compiled, operands, entry.gradients)  # what is kept between calls is used
    eager = results(entry.fn, operands, entry.gradients)
    judge = results(entry.fn, exact, entry.gradients)
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    wrong = compare(ours, eager, judge) or compare(again, eager, judge)
    return {
        "ok": not wrong, "what": wrong, "first_call_s": round(seconds, 2), "graphs": compiled.graph_count,
        "launches": counts.get("kernel launches", 0), "calls": counts.get("operator calls", 0),
    }  # fmt: skip


def work(jobs: list[str]) -> None:
    """A worker: checks `name/dtype` one after the other, and prints what it finds as lines of JSON."""
    import quickfuse

    quickfuse.config.raise_internal_errors = True
    for job in jobs:
        print(json.dumps({"start": job}), flush=True)
        name, _, kind = job.rpartition("/")
        try:
            found = check(name, getattr(torch, kind))
        except Exception as error:
            text = traceback.format_exc().splitlines()
            found = {"ok": False, "what": f"{type(error).__name__}: {str(error)[:300]}", "traceback": text[-12:]}
        print(json.dumps({"job": job, **found}), flush=True)
        if not found["ok"] and "CUDA error" in found["what"]:
            os._exit(3)  # the device's context is lost


def manage(jobs: list[str], found: dict[str, Any], deadline: float) -> None:
    """Run a worker for some jobs, and another one for what is left if it dies."""
    while jobs and time.perf_counter() < deadline:
        command = [sys.executable, __file__, "--worker", json.dumps(jobs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        left = max(deadline - time.perf_counter(), 1.0)
        errors: list[str] = []
        drain = threading.Thread(target=lambda p=process, e=errors: e.append(p.stderr.read()), daemon=True)
        drain.start()
        stop = threading.Timer(min(left + 10, WORKER_SECONDS + 10 * len(jobs)), process.kill)
        stop.start()
        current = ""
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            if "start" in entry:
                current = entry["start"]
                continue
            found[entry.pop("job")] = entry
            current = ""
        process.wait()
        stop.cancel()
        drain.join(5)
        if current:
            text = (errors or [""])[0][-600:]
            found[current] = {"ok": False, "what": f"the worker ended with status {process.returncode}: {text}"}
        if not current and process.returncode not in (0, 3) and not any(job in found for job in jobs):
            found[jobs[0]] = {"ok": False, "what": f"no worker: {(errors or [''])[0][-600:]}"}
        jobs = [job for job in jobs if job not in found]


def check_all(names: list[str], workers: int) -> dict[str, Any]:
    jobs = [f"{name}/{kind}" for name in names for kind in ("float32", "bfloat16")]
    found: dict[str, Any] = {}
    deadline = time.perf_counter() + CHECK_SECONDS
    shares = [jobs[2 * k :: 2 * workers] + jobs[2 * k + 1 :: 2 * workers] for k in range(workers)]
    threads = [threading.Thread(target=manage, args=(share, found, deadline)) for share in shares if share]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job in jobs:
        found.setdefault(job, {"ok": False, "what": "not checked in time"})
    return {job: found[job] for job in jobs}


# ---------------------------------------------------------------------------------------------------------------------
# Times


@dataclass
class Timing:
    """A function of operands; `passes` is how many bytes have to be moved, from the operands."""

    fn: Callable[..., Any]
    operands: Callable[[torch.dtype], list[torch.Tensor]]
    moved: Callable[[list[torch.Tensor]], int]
    backward: bool = False
    dtypes: tuple[torch.dtype, ...] = (F32, BF16)


def device_normal(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def nbytes(x: torch.Tensor) -> int:
    return x.numel() * x.itemsize


def times(count: float) -> Callable[[list[torch.Tensor]], int]:
    """So many passes over the first operand."""
    return lambda operands: int(count * nbytes(operands[0]))


ROWS, WIDTH = 16384, 4096

TIMINGS: dict[str, Timing] = {
    "gelu bias": Timing(
        lambda x, b: F.gelu(x + b), lambda d: [device_normal(d, ROWS, WIDTH), device_normal(d, WIDTH)], times(2)
    ),
    "softmax": Timing(lambda x: F.softmax(x, -1), lambda d: [device_normal(d, ROWS, WIDTH)], times(2)),
    "softmax, 256 columns": Timing(lambda x: F.softmax(x, -1), lambda d: [device_normal(d, 1 << 18, 256)], times(2)),
    "layer norm": Timing(
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
        lambda d: [device_normal(d, ROWS, WIDTH), device_normal(d, WIDTH), device_normal(d, WIDTH)],
        times(2),
    ),
    "layer norm, 768": Timing(
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        lambda d: [device_normal(d, 65536, 768), device_normal(d, 768), device_normal(d, 768)],
        times(2),
    ),
    "layer norm, forward and backward": Timing(
        lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b),
        lambda d: [device_normal(d, ROWS, WIDTH), device_normal(d, WIDTH), device_normal(d, WIDTH)],
        times(5),
        backward=True,
    ),
    "rms norm": Timing(
        lambda x, w: F.rms_norm(x, (WIDTH,), w), lambda d: [device_normal(d, ROWS, WIDTH), device_normal(d, WIDTH)], times(2)
    ),
    "cross entropy, forward and backward": Timing(
        lambda x, t: F.cross_entropy(x, t),
        lambda d: [device_normal(d, 8192, 50257), torch.randint(0, 50257, (8192,), device="cuda")],
        times(3),
        backward=True,
        dtypes=(BF16,),
    ),
    "cross entropy": Timing(
        lambda x, t: F.cross_entropy(x, t),
        lambda d: [device_normal(d, 8192, 50257), torch.randint(0, 50257, (8192,), device="cuda")],
        times(1),
    ),
    "batch norm, training": Timing(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True),
        lambda d: [device_normal(d, 64, 256, 56, 56), *(torch.rand(256, device="cuda") + 1 for _ in range(4))],
        times(3),
    ),
    "batch norm, forward and backward": Timing(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, True),
        lambda d: [device_normal(d, 64, 256, 56, 56), *(torch.rand(256, device="cuda") + 1 for _ in range(4))],
        times(8),
        backward=True,
    ),
    "batch norm, evaluation": Timing(
        lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, False).relu(),
        lambda d: [device_normal(d, 64, 256, 56, 56), *(torch.rand(256, device="cuda") + 1 for _ in range(4))],
        times(2),
    ),
    "cat": Timing(
        lambda x, y: torch.cat([x, y], 1), lambda d: [device_normal(d, ROWS, 2048), device_normal(d, ROWS, 2048)], times(4)
    ),
    "embedding": Timing(
        lambda w, i: F.embedding(i, w),
        lambda d: [device_normal(d, 50257, 768), torch.randint(0, 50257, (128, 1024), device="cuda")],
        lambda o: 2 * o[1].numel() * 768 * o[0].itemsize,
    ),
    "embedding, forward and backward": Timing(
        lambda w, i: F.embedding(i, w),
        lambda d: [device_normal(d, 50257, 768), torch.randint(0, 50257, (128, 1024), device="cuda")],
        lambda o: 4 * o[1].numel() * 768 * o[0].itemsize,
        backward=True,
    ),
    "transpose": Timing(lambda x: x.t().contiguous(), lambda d: [device_normal(d, 8192, 8192)], times(2)),
    "add of a transpose": Timing(
        lambda x, y: x + y.t(), lambda d: [device_normal(d, 8192, 8192), device_normal(d, 8192, 8192)], times(3)
    ),
    "to channels last": Timing(
        lambda x: x.contiguous(memory_format=torch.channels_last), lambda d: [device_normal(d, 64, 256, 56, 56)], times(2)
    ),
    "sum of rows": Timing(lambda x: x.sum(1), lambda d: [device_normal(d, ROWS, WIDTH)], times(1)),
    "sum of columns": Timing(lambda x: x.sum(0), lambda d: [device_normal(d, ROWS, WIDTH)], times(1)),
    "sum of all": Timing(lambda x: x.sum(), lambda d: [device_normal(d, ROWS, WIDTH)], times(1)),
    "cumsum": Timing(lambda x: x.cumsum(-1), lambda d: [device_normal(d, ROWS, WIDTH)], times(2), dtypes=(F32,)),
    "max pool": Timing(lambda x: F.max_pool2d(x, 2), lambda d: [device_normal(d, 64, 64, 112, 112)], times(1.25)),
    "dropout-like mask, add, norm": Timing(
        lambda x, y, m: F.layer_norm(x + y * m, (WIDTH,)),
        lambda d: [device_normal(d, ROWS, WIDTH), device_normal(d, ROWS, WIDTH), device_normal(d, ROWS, WIDTH)],
        times(4),
    ),
}


def milliseconds(run: Callable[[], Any], turns: int = 12) -> float:
    """The median time of a call on the device."""
    for _ in range(3):
        run()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns)]
    torch.cuda.synchronize()
    for start, end in events:
        torch.cuda._sleep(200_000)  # the host gets ahead
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def copy_bandwidth() -> float:
    """Bytes a second of a copy of 1 GiB, reads and writes counted."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * nbytes(source) / (milliseconds(lambda: target.copy_(source)) / 1000)


def runner(fn: Callable[..., Any], operands: list[torch.Tensor], backward: bool) -> Callable[[], Any]:
    if not backward:

        def forward() -> Any:
            with torch.no_grad():
                return fn(*operands)

        return forward
    statistics_at = 2 if len(operands) == 5 else 0  # those of batch norm are no parameters
    inputs = [x.requires_grad_(x.is_floating_point() and not 1 <= k <= statistics_at) for k, x in enumerate(operands)]
    wanted = [x for x in inputs if x.requires_grad]
    weight = torch.ones_like(fn(*inputs))
    return lambda: torch.autograd.grad(fn(*inputs), wanted, weight)


def time_all(names: list[str], deadline: float) -> tuple[float, dict[str, Any]]:
    import quickfuse

    bandwidth = copy_bandwidth()
    print(
        f"\ncopy: {bandwidth / 1e12:.2f} TB/s\n{'':48}{'ours ms':>10}{'eager ms':>10}{'speed-up':>10}{'share of copy':>15}"
    )
    found: dict[str, Any] = {}
    for name in names:
        timing = TIMINGS[name]
        for dtype in timing.dtypes:
            job = f"{name}/{str(dtype).removeprefix('torch.')}"
            if time.perf_counter() > deadline:
                found[job] = {"what": "not timed in time"}
                continue
            try:
                quickfuse.reset()
                operands = timing.operands(dtype)
                ours = milliseconds(runner(quickfuse.compile(timing.fn), operands, timing.backward))
                eager = milliseconds(runner(timing.fn, operands, timing.backward))
                share = timing.moved(operands) / (ours / 1000) / bandwidth
                found[job] = {"ours_ms": ours, "eager_ms": eager, "speedup": eager / ours, "share": share}
                print(f"{job:48}{ours:10.3f}{eager:10.3f}{eager / ours:10.2f}{share:15.0%}", flush=True)
            except Exception as error:
                found[job] = {"what": f"{type(error).__name__}: {str(error)[:300]}"}
                print(f"{job:48}{found[job]['what']}", flush=True)
            operands = []
            torch.cuda.empty_cache()
    return bandwidth, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=min(8, max(1, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--only", default="", help="families and timings whose names contain this")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--no-checks", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(json.loads(options.worker))
        return
    begin = time.perf_counter()
    checks = {} if options.no_checks else check_all([n for n in FAMILIES if options.only in n], options.workers)
    for job, entry in checks.items():
        numbers = " ".join(f"{k}={v}" for k, v in entry.items() if k not in ("ok", "what", "traceback"))
        print(f"{'ok  ' if entry['ok'] else 'FAIL'} {job:40} {numbers} {entry['what']}")
    wrong = [job for job, entry in checks.items() if not entry["ok"]]
    print(f"{len(checks) - len(wrong)} of {len(checks)} right, after {time.perf_counter() - begin:.0f} s")
    bandwidth, timings = 0.0, {}
    if not options.no_times and DEVICE == "cuda":
        bandwidth, timings = time_all([n for n in TIMINGS if options.only in n], begin + 230)
    if options.json:
        machine = {
            "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else None,
            "torch": torch.__version__,
            "copy_bytes_per_s": bandwidth,
        }
        seconds = round(time.perf_counter() - begin)
        result = {"machine": machine, "seconds": seconds, "checks": checks, "timings": timings}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
