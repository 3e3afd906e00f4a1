"""A backend of one's own: it gets each captured graph, and returns what runs in its place.

This one shows the graphs, replaces `x * x` by `torch.square(x)`, and leaves them to PyTorch otherwise.

    python examples/backend.py
"""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable
from typing import Any

import torch

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
arguments = parser.parse_args()


def squaring(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """Rewrite a graph. What is returned takes the graph's inputs, and gives the tuple of its outputs."""
    for node in list(module.graph.nodes):
        if node.target is operator.mul and node.args[0] is node.args[1]:
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.call_function(torch.square, (node.args[0],)))
            module.graph.erase_node(node)
    module.recompile()
    shapes = [tuple(value.shape) for value in example_inputs if isinstance(value, torch.Tensor)]
    print(f"a graph of inputs with shapes {shapes}:", *module.code.strip().splitlines(), sep="\n  ")
    return module.forward


@quickfuse.compile(backend=squaring)
def energy(positions: torch.Tensor, velocities: torch.Tensor) -> torch.Tensor:
    kinetic = (velocities * velocities).sum() / 2
    print("between the graphs, in Python:", kinetic)
    return kinetic + (positions * positions).sum() / 2


positions, velocities = (torch.ones(10, 3, device=arguments.device) for _ in range(2))
print(energy(positions, velocities).item())
