"""A compiled optimizer step with a learning rate scheduler: the rate changes in every step.

The rate may be a float or a tensor. Either is an argument of compiled code, not a constant in it, so a new value compiles
nothing. The log says what is compiled again, and what quickfuse cannot capture and leaves to plain Python.

    python examples/scheduler.py
"""

from __future__ import annotations

import argparse

import torch

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--size", type=int, default=256, help="each of ten layers is a size x size matrix")
arguments = parser.parse_args()


def train(rate: float | torch.Tensor) -> None:
    """Five steps in which LinearLR raises the learning rate from a third of `rate` to `rate`."""
    size, device = arguments.size, arguments.device
    model = torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False, device=device) for _ in range(10)))
    model(torch.rand(size, device=device)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)

    @quickfuse.compile
    def step() -> None:
        optimizer.step()
        scheduler.step()

    for _ in range(5):
        step()
        print(f"learning rate {float(optimizer.param_groups[0]['lr']):.4f}, compiled {step.graph_count} times")


quickfuse.set_logs(recompiles=True, graph_breaks=True)
print("with a float:")
train(0.01)
print("with a tensor:")
train(torch.tensor(0.01))
