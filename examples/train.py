"""A small image classifier whose whole training step is compiled, and what it was compiled to.

Forward, backward and the optimizer are one graph: kernels, and calls of PyTorch's convolutions and matrix products.

    python examples/train.py
    QUICKFUSE_LOGS=loops python examples/train.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import quickfuse

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--steps", type=int, default=60)
arguments = parser.parse_args()

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 2)
).to(arguments.device)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


@quickfuse.compile
def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright bar: upright (1) or level (0)."""
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(2, (32,))
    for image, label in zip(images, labels, strict=True):
        (image if label else image.transpose(1, 2))[0, :, torch.randint(8, ())] += 2
    return images.to(arguments.device), labels.to(arguments.device)


for number in range(arguments.steps):
    loss = step(*batch())
    if number % 10 == 9:
        print(f"step {number + 1}: loss {loss.item():.3f}, {step.graph_count} graphs")

print(quickfuse.explain(step)(*batch()))
