"""Programs whose batches have other sizes from one to the next: what a run takes in all, with its compilations.

`python benchmarks/varying_sizes.py [--steps N] [--peer] [NAME ...]` runs each program for N steps by eager and by compiled
code, in turns of one step each, on equal data and from equal weights, and prints the processor time of each, in all, with
what compiling took. The losses of both are compared. `--peer` runs torch.compile as well.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import quickfuse

Batch = tuple[torch.Tensor, torch.Tensor]

#: Losses of so many steps are compared: later on, training from weights that differ by a rounding error differs by more.
COMPARED = 50


class Transformer(nn.Module):
    """Next tokens, of sequences of 20 to 60."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layer = [nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(2)]
        self.layers = nn.ModuleList(layer)
        self.head = nn.Linear(64, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h)
        return self.head(h).flatten(0, 1)


class Classifier(nn.Module):
    """Texts, padded to the longest of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, 32, padding_idx=0)
        self.query = nn.Linear(32, 32)
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = x == 0
        h = self.embed(x)
        weights = (self.query(h) * h).sum(-1).masked_fill(mask, -1e9).softmax(1)
        return self.net((weights.unsqueeze(-1) * h).sum(1))


class Detector(nn.Module):
    """Images of a few scales: what is found at each place of two grids."""

    def __init__(self) -> None:
        super().__init__()

        def block(i: int, o: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

        self.stem, self.deep, self.deeper = block(3, 16), block(16, 32), block(32, 64)
        self.lateral = nn.Conv2d(64, 32, 1)
        self.head = nn.Conv2d(32, 6, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.deep(self.stem(x))
        b = self.lateral(self.deeper(a))
        a = a + F.interpolate(b, size=a.shape[2:], mode="nearest")
        return torch.cat([self.head(level).flatten(2).transpose(1, 2) for level in (a, b)], 1).flatten(0, 1)


class Perceptron(nn.Sequential):
    """Batches of 64, the last one of each pass of 17."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 64), nn.GELU(), nn.BatchNorm1d(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 5))


def tokens(k: int, g: torch.Generator) -> Batch:
    n = int(torch.randint(20, 61, (), generator=g))
    x = torch.randint(100, (8, n + 1), generator=g)
    return x[:, :-1].contiguous(), x[:, 1:].flatten()


def texts(k: int, g: torch.Generator) -> Batch:
    lengths = torch.randint(5, 80, (16,), generator=g)
    x = torch.randint(1, 500, (16, int(lengths.max())), generator=g)
    x[torch.arange(x.shape[1]) >= lengths[:, None]] = 0
    return x, torch.randint(5, (16,), generator=g)


def images(k: int, g: torch.Generator) -> Batch:
    scale = (48, 64, 80, 96, 112, 128, 72, 88)[int(torch.randint(8, (), generator=g))]
    a, b = scale // 4, scale // 8
    return torch.randn(2, 3, scale, scale, generator=g), torch.randint(6, (2 * (a * a + b * b),), generator=g)


def rows(k: int, g: torch.Generator) -> Batch:
    n = 17 if k % 12 == 11 else 64
    return torch.randn(n, 20, generator=g), torch.randint(5, (n,), generator=g)


PROGRAMS: dict[str, tuple[type[nn.Module], Callable[[int, torch.Generator], Batch]]] = {
    "transformer": (Transformer, tokens), "classifier": (Classifier, texts),
    "detector": (Detector, images), "sampler": (Perceptron, rows),
}  # fmt: skip


def whole_step(net: nn.Module, compile_: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        adam.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        adam.step()
        return loss.detach()

    return compile_(step)


def backward_outside(net: nn.Module, compile_: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model = compile_(net)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        adam.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        adam.step()
        return loss.detach()

    return step


def evaluation(net: nn.Module, compile_: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    model = compile_(net.eval())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return F.cross_entropy(model(x), y)

    return step


WAYS = {"whole step": whole_step, "backward outside": backward_outside, "evaluation": evaluation}


def measure(name: str, way: str, steps: int, compile_: Callable[..., Any]) -> tuple[float, float]:
    """The seconds that eager and compiled code take."""
    cls, data = PROGRAMS[name]
    torch.manual_seed(0)
    net = cls()
    twin = copy.deepcopy(net)
    ours, eager = WAYS[way](net, compile_), WAYS[way](twin, lambda function: function)
    g = torch.Generator().manual_seed(1)
    taken = [0.0, 0.0]
    for k in range(steps):
        x, y = data(k, g)
        begun = time.process_time()
        want = eager(x, y)
        between = time.process_time()
        got = ours(x, y)
        taken[1] += time.process_time() - between
        taken[0] += between - begun
        if k < COMPARED:
            torch.testing.assert_close(got, want, rtol=0.01, atol=0.01)
    return taken[0], taken[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--ways", nargs="*", default=[*WAYS])
    parser.add_argument("names", nargs="*", default=[*PROGRAMS])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    peer = f" {'torch.compile s':>16} {'ratio':>6}" if asked.peer else ""
    print(f"{'program':<12} {'':<17} {'eager s':>8} {'quickfuse s':>12} {'ratio':>6}{peer}")
    for name in asked.names:
        for way in asked.ways:
            eager, ours = measure(name, way, asked.steps, quickfuse.compile)
            line = f"{name:<12} {way:<17} {eager:8.2f} {ours:12.2f} {ours / eager:6.2f}"
            if asked.peer:
                torch.compiler.reset()
                eager, theirs = measure(name, way, asked.steps, torch.compile)
                line += f" {theirs:16.2f} {theirs / eager:6.2f}"
            print(line, flush=True)
            quickfuse.reset()


if __name__ == "__main__":
    main()
