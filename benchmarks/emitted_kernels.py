"""Kernels of two versions of the code generator for the CPU, compared in one process.

    python benchmarks/emitted_kernels.py --other ../older/src [--seconds 0.3] [--only softmax]

Both versions compile the same functions; calls of the two alternate, on one thread, so that what else the machine does
slows both down. A ratio above 1 says that this version is faster than the other one. Compile time is compared too: that of
writing LLVM IR and that of LLVM, for all kernels of these functions.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parents[1] / "src"
Case = tuple[Callable[..., Any], list[torch.Tensor]]


def adam(*tensors: torch.Tensor) -> None:
    for p, g, m, v in zip(*[iter(tensors)] * 4, strict=True):
        m.lerp_(g, 0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        p.addcdiv_(m, v.sqrt() / 0.9 + 1e-8, value=-1e-5)


def layer_norm_backward(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
    normal, grad = centred * scale, g * w
    inner = (grad * normal).mean(-1, keepdim=True)
    return (grad - grad.mean(-1, keepdim=True) - normal * inner) * scale, (g * normal).sum(0), g.sum(0)


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    x, y, w = torch.randn(512, 768), torch.randn(512, 768), torch.randn(768)
    wide, rows = torch.randn(64, 8192), torch.randn(20000, 10)
    images = torch.randn(8, 64, 28, 28)
    last = images.contiguous(memory_format=torch.channels_last)
    index, picked = torch.randint(0, 1000, (2000,)), torch.randint(0, 64, (4096,))
    table, source = torch.randn(1000, 128), torch.randn(2000, 128)
    members = [t for k in range(60) for t in (torch.randn(32, 33 + k), torch.randn(32, 33 + k) * 1e-3,
                                              torch.zeros(32, 33 + k), torch.rand(32, 33 + k) + 1)]  # fmt: skip
    return {
        "pointwise": (lambda x, y: (x * y + 1).relu() - y * 0.5, [x, y]),
        "broadcast": (lambda x, w: torch.tanh(x) * w + w, [x, w]),
        "gelu": (F.gelu, [x]),
        "bfloat16": (lambda x, y: x * y + x, [x.bfloat16(), y.bfloat16()]),
        "bool and bytes": (lambda x, y: ((x > y) & (x > 0)).to(torch.uint8), [x, y]),
        "softmax": (lambda x: x.softmax(-1), [x]),
        "softmax of short rows": (lambda x: x.softmax(-1), [rows]),
        "softmax float64": (lambda x: x.softmax(-1), [wide.double()]),
        "log softmax of columns": (lambda x: x.log_softmax(0), [x]),
        "layer norm": (lambda x, w: F.layer_norm(x, (768,), w, w), [x, w]),
        "layer norm backward": (layer_norm_backward, [x, w, y]),
        "row sums": (lambda x: x.sum(-1), [wide]),
        "row maxima": (lambda x: x.amax(-1), [wide]),
        "column sums": (lambda x: x.sum(0), [wide]),
        "short column sums": (lambda x: x.sum(0), [rows]),
        "column moments": (lambda x: torch.var_mean(x, 0), [x]),
        "argmax": (lambda x: x.argmax(-1), [wide]),
        "cumsum of rows": (lambda x: x.cumsum(-1), [x]),
        "cumsum of columns": (lambda x: x.cumsum(0), [x]),
        "index_add": (lambda t, i, s: t.index_add(0, i, s), [table, index, source]),
        "gather": (lambda x, i: x[i] * 2, [wide[:, :512].contiguous(), picked]),
        "embedding": (lambda t, i: F.embedding(i, t) + 1, [table, index]),
        "adam": (adam, members),
        "batch norm statistics": (lambda x: torch.var_mean(x, (0, 2, 3)), [images]),
        "batch norm statistics, channels last": (lambda x: torch.var_mean(x, (0, 2, 3)), [last]),
        "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [images]),
        "batch norm, channels last": (lambda x: F.batch_norm(x, None, None, training=True), [last]),
        "transpose": (lambda x: x.t().contiguous() + 1, [x]),
        "to channels last": (lambda x: (x * 2).contiguous(memory_format=torch.channels_last), [images]),
        "max pooling": (lambda x: F.max_pool2d(x, 3, 2, 1), [images]),
    }  # fmt: skip


class Version:
    """One version of the package, with what it compiles."""

    def __init__(self, source: Path) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "quickfuse"]:
            del sys.modules[name]
        sys.path.insert(0, str(source))
        self.package = importlib.import_module("quickfuse")
        assert str(source) in str(self.package.__file__)
        kernels = importlib.import_module("quickfuse.pipeline.kernels")
        self.cpu = importlib.import_module("quickfuse.launch.cpu")
        self.emit = kernels.emit_cpu
        self.bodies: list[Any] = []
        self.of_case: dict[str, list[str]] = {}
        kernels.emit_cpu = self._recorded
        self.calls: dict[str, Callable[[], Any]] = {}
        self.results: dict[str, Any] = {}
        for name, (function, inputs) in cases().items():
            count = len(self.bodies)
            compiled = self.package.compile(function, fullgraph=True)
            self.results[name] = compiled(*inputs)
            for _ in range(3):
                compiled(*inputs)
            self.of_case[name] = [self.emit(body, "kernel") for body in self.bodies[count:]]
            self.calls[name] = lambda compiled=compiled, inputs=inputs: compiled(*inputs)
        sys.path.remove(str(source))

    def _recorded(self, body: Any, name: str) -> str:
        self.bodies.append(body)
        return self.emit(body, name)

    def emit_all(self) -> list[str]:
        return [self.emit(body, f"kernel{k}") for k, body in enumerate(self.bodies)]

    def load_all(self, sources: list[str]) -> None:
        for k, source in enumerate(sources):
            self.cpu.load(source, [f"kernel{k}_block" if f"@kernel{k}_block(" in source else f"kernel{k}"])


def alternate(
    one: Callable[[], Any], two: Callable[[], Any], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """The time of each, in seconds: the mean of the best quarter of calls in turns."""
    start = time.perf_counter()
    one()
    rounds = max(int(seconds / 2 / (time.perf_counter() - start + 1e-7)), 5)
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            call = (one, two)[which]
            start = clock()
            call()
            times[which].append(clock() - start)
    return tuple(statistics.fmean(sorted(t)[: max(len(t) // 4, 1)]) for t in times)  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, required=True, help="the src folder of the version to compare with")
    parser.add_argument("--seconds", type=float, default=0.4, help="how long to measure each function")
    parser.add_argument("--only", default="", help="part of the names of the functions to measure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    other, this = Version(options.other.resolve()), Version(HERE)
    logs = []
    for name in this.calls:
        if options.only in name:
            before, now = alternate(other.calls[name], this.calls[name], options.seconds)
            logs.append(math.log(before / now))
            print(f"{before / now:6.3f}  {1e6 * before:9.1f} us -> {1e6 * now:9.1f} us  {name}", flush=True)
    print(f"{math.exp(statistics.fmean(logs)):6.3f}  geometric mean; least {math.exp(min(logs)):.3f}")
    for what, one, two in (
        ("IR written", other.emit_all, this.emit_all),
        ("LLVM", lambda: other.load_all(other.emit_all()), lambda: this.load_all(this.emit_all())),
    ):
        before, now = alternate(one, two, 20 * options.seconds, time.process_time)
        print(f"{before / now:6.3f}  {1e3 * before:9.2f} ms -> {1e3 * now:9.2f} ms  {what}, "
              f"{len(other.bodies)} and {len(this.bodies)} kernels")  # fmt: skip


if __name__ == "__main__":
    main()
