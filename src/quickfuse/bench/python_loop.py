"""Programs whose work is plain Python: compiled, they must take no longer than without, but for a constant.

Each is a function around 100,000 iterations on ints, objects and NumPy values, with a tensor in front and behind; some
have graph breaks in the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from quickfuse.bench.figures import Figure, Figures
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.run import Progress
from quickfuse.bench.steady import Timed
from quickfuse.compile import compile as compile_function
from quickfuse.control import graph_break

ITERATIONS = 100_000

#: How much longer than eager a compiled loop may take.
LIMIT = 1.2

_FEWEST_ROUNDS = 5


def ints(x: torch.Tensor, n: int) -> torch.Tensor:
    state = 7
    for i in range(n):
        state = (state * 31 + i) % 1009
    return x * state


def while_loop(x: torch.Tensor, n: int) -> torch.Tensor:
    state, i = 7, 0
    while i < n:
        state = (state * 31 + i) % 1009
        i += 1
    return x * state


def numpy_values(x: torch.Tensor, n: int) -> torch.Tensor:
    weights, total, state = np.linspace(0.0, 1.0, 8), np.float64(0.0), 7
    for i in range(n):
        state = (state * 31 + i) % 1009
        total = total + weights[state % 8] * 0.5
    return x * float(total)


def _next_state(state: int, i: int) -> int:
    return (state * 31 + i) % 1009


def calls(x: torch.Tensor, n: int) -> torch.Tensor:
    state = 7
    for i in range(n):
        state = _next_state(state, i)
    return x * state


class _Counter:
    def __init__(self) -> None:
        self.state = 7

    def advance(self, i: int) -> None:
        self.state = (self.state * 31 + i) % 1009


def objects(x: torch.Tensor, n: int) -> torch.Tensor:
    counter = _Counter()
    for i in range(n):
        counter.advance(i)
    return x * counter.state


def graph_break_inside(x: torch.Tensor, n: int) -> torch.Tensor:
    weights, total, state = np.linspace(0.0, 1.0, 8), np.float64(0.0), 7
    for i in range(n):
        state = (state * 31 + i) % 1009
        total = total + weights[state % 8]
        if state == 1000:
            graph_break()
    return x * float(total)


def branch_on_a_tensor_inside(x: torch.Tensor, n: int) -> torch.Tensor:
    state = 7
    for i in range(n):
        state = (state * 31 + i) % 1009
        if i % 10_000 == 0:
            x = x * 1.5
            if x.sum() > 1e6:
                x = x / 1e6
    return x * state


PROGRAMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "ints": ints,
    "ints, while": while_loop,
    "ints and NumPy values": numpy_values,
    "calls of functions": calls,
    "methods of an object": objects,
    "NumPy values, a graph break inside": graph_break_inside,
    "a branch on a tensor inside": branch_on_a_tensor_inside,
}


def measure(*, iterations: int = ITERATIONS, seconds: float, progress: Progress = lambda what, fraction: None) -> Figures:
    """Time all programs, eager and compiled in turns, about `seconds` each."""
    figures = []
    for number, (name, program) in enumerate(PROGRAMS.items()):
        progress(name, number / len(PROGRAMS))
        figures.append(_ratio(name, program, iterations, seconds))
    title = f"loops of {iterations} iterations of plain Python, compiled"
    return Figures(title, "python-loop", describe_machine("cpu"), figures)


def _ratio(name: str, program: Callable[..., Any], iterations: int, seconds: float) -> Figure:
    args = (torch.ones(4), iterations)
    eager, compiled = (Timed(fn, args, _nothing) for fn in (program, compile_function(program)))
    for one in (eager, compiled):
        one.warm_up()
    expected, found = eager.fn(*args), compiled.fn(*args)
    if not torch.allclose(expected, found):
        raise RuntimeError(f"{name}: compiled gives {found}, eager {expected}")
    rounds: list[float] = []
    spent = 0.0
    while spent < seconds or len(rounds) < _FEWEST_ROUNDS:
        times = [eager.turn(1), compiled.turn(1)]
        eager.rounds.append(1e3 * times[0])
        compiled.rounds.append(1e3 * times[1])
        rounds.append(times[1] / times[0])
        spent += sum(times)
    notes = {"eager_ms": min(eager.rounds), "compiled_ms": min(compiled.rounds)}
    best = notes["compiled_ms"] / notes["eager_ms"]
    return Figure(name, "x eager", rounds, LIMIT, best, {key: round(value, 3) for key, value in notes.items()})


def _nothing() -> None:
    pass
