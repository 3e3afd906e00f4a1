"""Time models on a GPU, each variant in a process of its own: `python benchmarks/gpu_models.py --json result.json`.

DenseNet-121 (16 x 128 x 128, float32) and GPT-2 124M (8 x 1024 tokens, bfloat16 autocast), evaluated and trained with
Adam, the whole step in one function; and Adam alone. Variants: eager, quickfuse and torch.compile, both in the default mode
and with `reduce-overhead`. A time is that of a call where many follow each other, the least of three rounds. Memory is the
most that tensors took at a time (without what was allocated while graphs were recorded), and the most that PyTorch had
reserved for them, with what graphs hold.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

CALLS, ROUNDS = 20, 3
#: Seconds after which a variant is given up.
LIMIT = 150
VARIANTS = ("eager", "quickfuse", "quickfuse reduce-overhead", "torch.compile", "torch.compile reduce-overhead")
Call = Callable[[], Any]


def densenet(train: bool) -> Call:
    from quickfuse.bench import zoo

    model = zoo.vision_models().densenet121().cuda()
    x, y = torch.randn(16, 3, 128, 128, device="cuda"), torch.randint(1000, (16,), device="cuda")
    return _training(model, x, y) if train else _evaluation(model, x)


def gpt2(train: bool) -> Call:
    from quickfuse.bench import zoo

    model = zoo.GPT(50257, 1024, 768, 12, 12).cuda()
    tokens = torch.randint(50257, (8, 1025), device="cuda")
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return _training(model, x, y, bfloat16=True) if train else _evaluation(model, x, bfloat16=True)


def adam(count: int, width: int) -> Call:
    parameters = [torch.nn.Parameter(torch.randn(width, width, device="cuda")) for _ in range(count)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    return torch.optim.Adam(parameters).step


WORKLOADS: dict[str, Callable[[], Any]] = {
    "DenseNet-121, evaluation": lambda: densenet(False),
    "DenseNet-121, training step": lambda: densenet(True),
    "GPT-2 124M, evaluation": lambda: gpt2(False),
    "GPT-2 124M, training step": lambda: gpt2(True),
    "Adam, 1000 x 64x64": lambda: adam(1000, 64),
    "Adam, 10 x 1024x1024": lambda: adam(10, 1024),
}


def _evaluation(model: torch.nn.Module, x: torch.Tensor, bfloat16: bool = False) -> Any:
    model.eval()

    def call(x: torch.Tensor) -> Any:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            return model(x)

    return call, x


def _training(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, bfloat16: bool = False) -> Any:
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(True)
        with torch.autocast("cuda", torch.bfloat16, enabled=bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, x, y


def _wrapped(function: Call, variant: str) -> Call:
    name, _, mode = variant.partition(" ")
    if name == "eager":
        return function
    if name == "torch.compile":
        return torch.compile(function, mode=mode or None)
    import quickfuse

    return quickfuse.compile(function, mode=mode or None)


def measure(workload: str, variant: str) -> dict[str, float]:
    """One variant, in this process."""
    torch.manual_seed(0)
    made = WORKLOADS[workload]()
    function, args = (made[0], made[1:]) if isinstance(made, tuple) else (made, ())
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call = _wrapped(function, variant)
    call(*args)
    torch.cuda.synchronize()
    first = time.perf_counter() - begin
    for _ in range(5):
        call(*args)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call(*args)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / CALLS)
    return {
        "ms": 1e3 * min(times), "first call s": first, "allocated GB": torch.cuda.max_memory_allocated() / 1e9,
        "reserved GB": torch.cuda.max_memory_reserved() / 1e9,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--one", nargs=2, help="measure a workload and a variant in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    rows = []
    for workload in given.workloads:
        for variant in given.variants:
            command = [sys.executable, __file__, "--one", workload, variant]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
                found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": done.stderr[-300:]}
            except subprocess.TimeoutExpired:
                found = {"failed": f"more than {LIMIT} s"}
            rows.append({"workload": workload, "variant": variant, **found})
            print(_shown(rows[-1]), flush=True)
            if given.json is not None:
                given.json.write_text(json.dumps({**_about(), "rows": rows}, indent=1) + "\n")


def _about() -> dict[str, str]:
    """The machine, the versions and the date."""
    return {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def _shown(row: dict[str, Any]) -> str:
    head = f"{row['workload']:<28} {row['variant']:<30}"
    if "failed" in row:
        return f"{head} failed: {row['failed']}"
    memory = f"{row['allocated GB']:6.2f} of {row['reserved GB']:6.2f} GB"
    return f"{head} {row['ms']:9.3f} ms  first call {row['first call s']:6.2f} s  {memory}"


if __name__ == "__main__":
    main()
