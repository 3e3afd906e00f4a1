"""A pointwise function of several operators as one kernel, and what the compiler made of it.

    python examples/pointwise.py
    QUICKFUSE_LOGS=kernels python examples/pointwise.py
"""

from __future__ import annotations

import argparse

import torch

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--size", type=int, default=1000)
arguments = parser.parse_args()


@quickfuse.compile
def wave(x: torch.Tensor, y: torch.Tensor, amplitude: float) -> torch.Tensor:
    return amplitude * torch.sin(x) + torch.cos(y)


x, y = (torch.randn(arguments.size, arguments.size, device=arguments.device) for _ in range(2))

quickfuse.set_logs(graph=True, loops=True)  # printed when the first call compiles
wave(x, y, 0.5)
quickfuse.set_logs(graph=False, loops=False)

for amplitude in (0.5, 2.0, 3.0):
    expected = amplitude * torch.sin(x) + torch.cos(y)
    difference = (wave(x, y, amplitude) - expected).abs().max().item()
    print(f"amplitude {amplitude}: largest difference to eager {difference:.1e}")

print(f"compiled {wave.graph_count} time, to {wave.specialisations[0].kernels} kernel")
