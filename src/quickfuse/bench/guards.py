"""What it costs to find out that a specialisation may be used: the guards alone, without the work after them.

The function that is timed is the generated one with nothing after the checks; what a call that does nothing takes is
subtracted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from quickfuse.bench.figures import Figure, Figures
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.run import Progress
from quickfuse.bench.steady import Timed
from quickfuse.emit.glue import MISS, Body, Glue
from quickfuse.ir.segment import Constant
from quickfuse.pipeline.compiled import Compiled
from quickfuse.pipeline.specialise import helpers
from quickfuse.settings import Settings

#: Calls before the timing: what is skipped while nothing changes is known then.
_WARM_UP_CALLS = 8

#: Seconds of one turn, and how many there are at least.
_TURN = 0.001
_FEWEST_ROUNDS = 20
_CALIBRATIONS = 5

#: What users are promised, in microseconds for a call and in nanoseconds for a parameter.
SIN_COS_LIMIT = 1.5
PARAMETER_LIMIT = 60.0


@dataclasses.dataclass
class Case:
    """Guards to be timed. The figure is the time of a call in microseconds, times `scale`, by `count`."""

    name: str
    unit: str
    scale: float
    count: int
    limit: float | None
    compiled: Compiled
    args: tuple[Any, ...]


def measure(*, layers: int, params: int, seconds: float, progress: Progress = lambda what, fraction: None) -> Figures:
    """Time the guards of a small function, of two models and of an optimizer step, taking turns."""
    cases = [_sin_cos(), _linear_layers(layers), _transformer(), _optimizer(params)]
    timed: dict[str, Timed] = {}
    for case in cases:
        checks = guards_alone(case)
        timed[case.name] = Timed(checks, case.args, _nothing)
        timed[f"empty {case.name}"] = Timed(_empty, case.args, _nothing)
        for _ in range(_WARM_UP_CALLS):
            if checks(*case.args) is MISS:
                raise RuntimeError(f"the guards of {case.name} do not hold")
    _take_turns(timed, seconds, progress)
    figures = []
    for case in cases:
        empty = min(timed[f"empty {case.name}"].rounds)
        rounds = [max(0.0, time - empty) * case.scale / case.count for time in timed[case.name].rounds]
        figures.append(Figure(case.name, case.unit, rounds, case.limit))
    return Figures("the time of guards", "guards", describe_machine("cpu"), figures)


def _take_turns(timed: dict[str, Timed], seconds: float, progress: Progress) -> None:
    """Short turns, many of them: a few are undisturbed even where other programs run."""
    for one in timed.values():
        tries = []
        for _ in range(_CALIBRATIONS):  # one that is disturbed finds too few calls
            one.calibrate(_TURN)
            tries.append(one.calls)
        one.calls = max(tries)
    rounds = max(_FEWEST_ROUNDS, round(seconds / len(timed) / _TURN))
    for number in range(rounds):
        for one in timed.values():
            one.rounds.append(one.turn(one.calls) / one.calls * 1e6)
        progress("timing guards", number / rounds)


def guards_alone(case: Case) -> Callable[..., Any]:
    """The generated function of the case's first specialisation, with nothing after the checks."""
    case.compiled(*case.args[len(case.compiled._bound) :])
    specialisation = case.compiled.specialisations[0]
    segment = dataclasses.replace(
        specialisation.segment, result=Constant(None), effects=[], frames=[], pause=None, mutated=frozenset()
    )
    function = case.compiled._plain
    assert function is not None
    check = specialisation.glue.constants["_check"]
    return Glue(segment, Body([], [], {}, repeatable=True), check, helpers(), function.__name__).function(function)


def _sin_cos() -> Case:
    def sin_cos(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.cos(y)

    args = (torch.randn(10, 10), torch.randn(10, 10))
    return Case("sin(x) + cos(y)", "us/call", 1.0, 1, SIN_COS_LIMIT, Compiled(sin_cos, _settings()), args)


def _linear_layers(layers: int) -> Case:
    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(layers)])
    return _model_case(f"{layers} linear layers", model, torch.randn(2, 4))


def _transformer() -> Case:
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return _model_case("a transformer of 6 layers", model, torch.randn(2, 5, 16))


def _model_case(name: str, model: torch.nn.Module, x: torch.Tensor) -> Case:
    count = len(list(model.parameters()))
    compiled = Compiled(model.__call__, _settings())
    return Case(f"{name}, {count} parameters", "ns/parameter", 1e3, count, PARAMETER_LIMIT, compiled, (model, x))


def _optimizer(params: int) -> Case:
    parameters = [torch.nn.Parameter(torch.randn(4)) for _ in range(params)]
    for parameter in parameters:
        parameter.grad = torch.randn(4)
    optimizer = torch.optim.Adam(parameters, foreach=True)
    compiled = Compiled(optimizer.step, _settings())
    return Case(f"Adam, {params} parameters", "ns/parameter", 1e3, params, None, compiled, (optimizer,))


def _settings() -> Settings:
    return Settings(fullgraph=True, dynamic=None, backend="eager", mode=None, options=None)


def _empty(*args: Any) -> None:
    pass


def _nothing() -> None:
    pass
