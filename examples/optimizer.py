"""Time the step of an optimizer, eager and compiled: Adam over a chain of linear layers.

    python examples/optimizer.py
    python examples/optimizer.py --device cpu --size 256 --layers 20
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
import torch.utils.benchmark as benchmark

import quickfuse


def microseconds(function: Callable[[], object]) -> float:
    """The mean time of a call. The timer waits for the GPU before it reads the clock."""
    timer = benchmark.Timer(stmt="function()", globals={"function": function}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange().mean * 1e6


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--layers", type=int, default=10)
parser.add_argument("--size", type=int, default=1024, help="each layer is a size x size matrix")
arguments = parser.parse_args()

if arguments.device == "cuda" and torch.cuda.get_device_capability() < (7, 0):
    print("This GPU is too old: kernels need compute capability 7.0 or higher. Try --device cpu.")
    sys.exit(0)

shape = (arguments.size, arguments.size)
model = torch.nn.Sequential(
    *(torch.nn.Linear(*shape, bias=False, device=arguments.device) for _ in range(arguments.layers))
)
model(torch.rand(arguments.size, device=arguments.device)).sum().backward()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@quickfuse.compile
def step() -> None:
    optimizer.step()


for _ in range(5):  # the first call compiles
    step()

print(f"eager runtime: {microseconds(optimizer.step):.1f}us")
print(f"compiled runtime: {microseconds(step):.1f}us")
