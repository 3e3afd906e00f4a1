"""A whole training step, compiled, beside the same in eager: forward, backward, optimizer and learning rate scheduler.

The rate changes in every step, and causes no compilation.

    python examples/training_step.py
    QUICKFUSE_LOGS=graph_breaks,recompiles python examples/training_step.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=10)
arguments = parser.parse_args()


def trainer() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A training step of a new small model; the same model each time."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss.detach()

    return step


eager, compiled = trainer(), quickfuse.compile(trainer())
x = torch.randn(64, 8, device=arguments.device)
y = x.sum(1, keepdim=True).sin()
for number in range(arguments.steps):
    loss, expected = compiled(x, y).item(), eager(x, y).item()
    print(f"step {number}: loss {loss:.5f}, eager {expected:.5f}, {compiled.graph_count} graphs")
