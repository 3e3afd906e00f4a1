"""What a graph break costs: one Python statement in each layer that no graph can hold, beside the same layers without it.

The figure is what a compiled function takes longer with the statement than without, less what eager takes longer, for each
break. torch.compile stands beside it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from quickfuse import config
from quickfuse.bench.figures import Figure, Figures
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.run import Progress
from quickfuse.bench.steady import Timed
from quickfuse.compile import compile as compile_function

LAYERS = 12

#: Microseconds that a break may cost beyond its Python.
LIMIT = 10.0

_WIDTH = 8
_FEWEST_ROUNDS = 20
_TURN = 0.005
_WARM_UP_CALLS = 5


class _Layer(torch.nn.Module):
    def __init__(self, number: int, speaks: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(_WIDTH, _WIDTH)
        self.number, self.speaks = number, speaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.linear(x))
        if self.speaks:
            print("layer", self.number)
        return x


def _print_in_a_loop(layers: int, breaks: bool) -> Callable[..., Any]:
    weights = [torch.randn(_WIDTH, _WIDTH) / _WIDTH for _ in range(layers)]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for number, weight in enumerate(weights):
            x = torch.relu(x @ weight)
            if breaks:
                print("layer", number)
        return x

    return forward


def _print_in_each_layer(layers: int, breaks: bool) -> Callable[..., Any]:
    return torch.nn.Sequential(*[_Layer(number, breaks) for number in range(layers)])


def _clock_in_a_loop(layers: int, breaks: bool) -> Callable[..., Any]:
    weight = torch.randn(_WIDTH, _WIDTH) / _WIDTH

    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.relu(x @ weight)
            if breaks:
                time.perf_counter()
        return x

    return forward


def _branch_in_a_loop(layers: int, breaks: bool) -> Callable[..., Any]:
    weight = torch.eye(_WIDTH)

    def forward(x: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.tanh(x @ weight)
            if breaks and x.sum() > 1e9:
                x = x / 2
        return x

    return forward


PROGRAMS: dict[str, Callable[[int, bool], Callable[..., Any]]] = {
    "print in a loop": _print_in_a_loop,
    "print in each layer": _print_in_each_layer,
    "a clock in a loop": _clock_in_a_loop,
    "a branch on a tensor in a loop": _branch_in_a_loop,
}


@dataclass
class _Side:
    """One program with and without breaks, in one mode."""

    with_breaks: Timed
    without: Timed

    def cost(self) -> float:
        """Microseconds that the breaks of one call take."""
        return self.with_breaks.rounds[-1] - self.without.rounds[-1]


def measure(
    *, layers: int = LAYERS, seconds: float, peer: bool = True, progress: Progress = lambda what, fraction: None
) -> Figures:
    """Time all programs, with and without breaks, in turns, about `seconds` each."""
    figures = []
    with torch.no_grad(), _always_compiled():
        for number, (name, program) in enumerate(PROGRAMS.items()):
            progress(name, number / len(PROGRAMS))
            figures.append(_cost(name, program, layers, seconds, peer))
    return Figures(f"the cost of each of {layers} graph breaks in a call", "breaks", describe_machine("cpu"), figures)


def _cost(name: str, program: Callable[..., Any], layers: int, seconds: float, peer: bool) -> Figure:
    graphs: list[torch.fx.GraphModule] = []

    def counting(graph: torch.fx.GraphModule, examples: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    modes: dict[str, Callable[[Any], Any]] = {"eager": lambda fn: fn, "compiled": compile_function}
    if peer:
        modes["torch.compile"] = torch.compile
    x = torch.randn(2, _WIDTH)
    with _unprinted():
        sides = {mode: _side(program, layers, make, x) for mode, make in modes.items()}
        compile_function(program(layers, True), backend=counting)(x)
        started = time.perf_counter()
        rounds: list[float] = []
        while len(rounds) < _FEWEST_ROUNDS or time.perf_counter() - started < seconds:
            for side in sides.values():
                for timed in (side.with_breaks, side.without):
                    timed.rounds.append(timed.turn(timed.calls) / timed.calls * 1e6)
            costs = {mode: side.cost() for mode, side in sides.items()}
            rounds.append(max(0.0, costs["compiled"] - costs["eager"]) / layers)
    best = {mode: min(side.with_breaks.rounds) - min(side.without.rounds) for mode, side in sides.items()}
    notes: dict[str, float] = {"graphs": len(graphs)}
    if peer:
        notes["torch_compile"] = round((best["torch.compile"] - best["eager"]) / layers, 2)
    return Figure(name, "us/break", rounds, LIMIT, max(0.0, best["compiled"] - best["eager"]) / layers, notes)


def _side(program: Callable[..., Any], layers: int, make: Callable[[Any], Any], x: torch.Tensor) -> _Side:
    made = [Timed(make(program(layers, breaks)), (x,), lambda: None) for breaks in (True, False)]
    for timed in made:
        for _ in range(_WARM_UP_CALLS):
            timed.fn(x)
        timed.calibrate(_TURN)
    return _Side(*made)


@contextlib.contextmanager
def _always_compiled() -> Iterator[None]:
    """What is compiled in here stays so, though plain Python may be faster."""
    before, config.measure_short_calls = config.measure_short_calls, False
    try:
        yield
    finally:
        config.measure_short_calls = before


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    """What the programs print goes nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
