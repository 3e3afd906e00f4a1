"""Training steps of a spiking network: `python benchmarks/custom_functions.py`.

Two linear layers with a membrane each, ten steps in time, a `torch.autograd.Function` with a surrogate gradient in each. The
whole step with SGD is compiled; processor time of one thread, by turns with eager, the median of seven rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import quickfuse


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (1 + 10 * x.abs()) ** 2


def make(width: int, in_place: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    first, second = nn.Linear(width, 2 * width), nn.Linear(2 * width, 10)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        one, two, loss = torch.zeros(len(x), 2 * width), torch.zeros(len(x), 10), torch.zeros(())
        for _ in range(10):
            one = 0.9 * one + first(x)
            spikes = Spike.apply(one - 1)
            one = one - spikes.detach()
            two = 0.9 * two + second(spikes)
            if in_place:
                loss += nn.functional.cross_entropy(two, y)
            else:
                loss = loss + nn.functional.cross_entropy(two, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def seconds(step: Callable[..., torch.Tensor], *args: torch.Tensor) -> float:
    start = time.process_time()
    for _ in range(10):
        step(*args)
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    quickfuse.config.measure_short_calls = False  # or what is slower would be left to Python
    for batch, width in ((8, 16), (64, 64), (128, 256)):
        x, y = torch.randn(batch, width), torch.randint(10, (batch,))
        for in_place in (False, True):
            eager, compiled = make(width, in_place), quickfuse.compile(make(width, in_place))
            start = time.process_time()
            compiled(x, y)
            first = time.process_time() - start
            seconds(compiled, x, y), seconds(eager, x, y)
            ratio = statistics.median(seconds(compiled, x, y) / seconds(eager, x, y) for _ in range(7))
            how = "loss += ..." if in_place else "loss = loss + ..."
            print(f"{batch:4} x {width:4}, {how:18} {ratio:.2f} of eager's time, first call {first:.2f} s", flush=True)


if __name__ == "__main__":
    main()
