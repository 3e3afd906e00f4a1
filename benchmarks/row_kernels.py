"""Kernels that go through rows on a GPU, as shares of a copy's bandwidth: `python benchmarks/row_kernels.py`.

Each function reduces rows of some length along the last axis, of as many rows as make 67 million elements. The time is that
of the kernel by CUDA events, the least of three times ten calls, beside eager's. `--compile K/N` only compiles a share of
the kernels, for N processes to do so at a time before one measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

import quickfuse
from quickfuse.launch import shared_shapes

ELEMENTS = 1 << 26
LENGTHS = (512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192)
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

#: Each with how many tensors of all elements it reads and writes.
FUNCTIONS: dict[str, tuple[Function, int]] = {
    "layer norm": (lambda x, w, g: F.layer_norm(x, w.shape, w, w), 2),
    "RMS norm": (lambda x, w, g: F.rms_norm(x, w.shape, w), 2),
    "softmax": (lambda x, w, g: torch.softmax(x, -1), 2),
    "std": (lambda x, w, g: x.std(-1), 1),
    "x / norm": (lambda x, w, g: x / x.norm(dim=-1, keepdim=True), 2),
    "sum": (lambda x, w, g: x.sum(-1), 1),
    "sum of x * y": (lambda x, w, g: (x * g).sum(-1), 2),
}
#: Those of which the gradient by `x` is taken, too, which reads one more tensor.
DIFFERENTIATED = ("layer norm", "RMS norm", "softmax")


def gradient_of(function: Function) -> Function:
    def gradient(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x, w, g), x, g)[0]

    return gradient


def microseconds(call: Callable[[], Any], calls: int = 10, rounds: int = 3) -> float:
    call(), call()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / calls * 1e3)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="", metavar="K/N", help="only compile every N-th kernel, from the K-th on")
    options = parser.parse_args()
    every = [
        (name, function, tensors, dtype, length)
        for name, function, tensors in (
            *((name, function, tensors) for name, (function, tensors) in FUNCTIONS.items()),
            *((f"d {name}", gradient_of(FUNCTIONS[name][0]), 3) for name in DIFFERENTIATED),
        )
        for dtype in (torch.bfloat16, torch.float32)
        for length in LENGTHS
    ]
    bandwidth = 0.0
    if options.compile:
        first, step = map(int, options.compile.split("/"))
        every = every[first::step]
    else:
        source = torch.empty(1 << 28, device="cuda")
        copy = torch.empty_like(source)
        bandwidth = 2 * source.nbytes / microseconds(lambda: copy.copy_(source))
        print(
            f"{torch.cuda.get_device_name()}, a copy {bandwidth / 1e6:.2f} TB/s; shares of it, ours and eager's", flush=True
        )
    for name, function, tensors, dtype, length in every:
        x = torch.randn(ELEMENTS // length, length, device="cuda", dtype=dtype)
        w, g = torch.randn(length, device="cuda", dtype=dtype), torch.randn_like(x)
        quickfuse.reset()
        shared_shapes._compiled.clear()  # a shape that was chosen for another length might do
        compiled = quickfuse.compile(function)
        with torch.set_grad_enabled(name.startswith("d ")):
            compiled(x, w, g)
            if not options.compile:
                least = tensors * x.nbytes / bandwidth
                shares = [least / microseconds(partial(f, x, w, g)) for f in (compiled, function)]
                print(f"{name:14} {str(dtype)[6:]:9} {length:5}: {shares[0]:5.0%} {shares[1]:5.0%}", flush=True)


if __name__ == "__main__":
    main()
