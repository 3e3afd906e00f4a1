"""A function that cannot be one graph: what becomes of it, and how to write it so that it can.

    python examples/breaks.py
"""

from __future__ import annotations

import argparse

import torch

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
arguments = parser.parse_args()


def normalise(x: torch.Tensor, history: list[float]) -> torch.Tensor:
    """Two breaks: a branch depends on a tensor's value, and a value goes to Python."""
    scale = x.abs().max()
    if scale > 1:
        x = x / scale
    history.append(round(scale.tolist(), 3))
    return torch.sin(x) + 1


def normalise_in_one(x: torch.Tensor, history: list[torch.Tensor]) -> torch.Tensor:
    """The same without: the value stays a tensor, and both sides of the branch are computed."""
    scale = x.abs().max()
    x = torch.where(scale > 1, x / scale, x)
    history.append(scale)
    return torch.sin(x) + 1


x = torch.linspace(-3, 3, 1000, device=arguments.device)
print(quickfuse.explain(normalise)(x, []))

numbers: list[float] = []
tensors: list[torch.Tensor] = []
with_breaks = quickfuse.compile(normalise)
in_one = quickfuse.compile(normalise_in_one, fullgraph=True)  # a break would be an error
for factor in (0.1, 1, 10):
    torch.testing.assert_close(with_breaks(x * factor, numbers), normalise(x * factor, []))
    torch.testing.assert_close(in_one(x * factor, tensors), normalise(x * factor, []))

print(f"with breaks: {with_breaks.graph_count} graphs, history {numbers}")
print(f"without:     {in_one.graph_count} graph, history {[round(value.item(), 3) for value in tensors]}")
