"""Single operators, forward and backward, beside eager and torch.compile: where a fused loop must be a good one."""

from __future__ import annotations

import json
import logging
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch.nn import functional

from quickfuse.bench.machine import busy_cores, describe_machine
from quickfuse.bench.steady import Timed, interleave

Shape = tuple[int, ...]
Maker = Callable[[Shape], tuple[torch.Tensor, ...]]
Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]

SCHEMA = 1


@dataclass(frozen=True)
class Operator:
    """A function, its operands for a shape, and the shapes to measure it on."""

    function: Callable[..., torch.Tensor]
    operands: Maker
    shapes: tuple[Shape, ...]


def _tensor(shape: Shape) -> tuple[torch.Tensor, ...]:
    return (torch.randn(shape),)


def _scores(shape: Shape) -> tuple[torch.Tensor, ...]:
    return torch.randn(shape), torch.randint(shape[1], shape[:1])


def _normalised(shape: Shape) -> tuple[torch.Tensor, ...]:
    return torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])


def _linear(shape: Shape) -> tuple[torch.Tensor, ...]:
    """(rows, inputs, outputs)"""
    rows, inputs, outputs = shape
    return torch.randn(rows, inputs), torch.randn(outputs, inputs) / math.sqrt(inputs), torch.randn(outputs)


def _gelu_mlp(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


_ROWS = ((32, 128), (512, 1024), (2048, 4096))
_CUBES = ((16, 32, 64), (64, 128, 256))

OPERATORS: dict[str, Operator] = {
    "softmax": Operator(lambda x: torch.softmax(x, -1), _tensor, _ROWS),
    "layer norm": Operator(lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), _normalised, _ROWS),
    "RMS norm": Operator(
        lambda x, w: functional.rms_norm(x, x.shape[-1:], w), lambda shape: _normalised(shape)[:2], _ROWS
    ),
    "cross entropy": Operator(functional.cross_entropy, _scores, _ROWS),
    "linear and GELU": Operator(_gelu_mlp, _linear, ((32, 64, 256), (256, 256, 1024), (512, 512, 2048))),
    "sum over axis 0": Operator(lambda x: x.sum(0), _tensor, (*_ROWS, *_CUBES)),
    "sum over axis 1": Operator(lambda x: x.sum(1), _tensor, (*_ROWS, *_CUBES)),
    "sum over axis 2": Operator(lambda x: x.sum(2), _tensor, _CUBES),
    "sum of a product over all axes": Operator(lambda x: (x * x).sum(), _tensor, _ROWS),
}


@dataclass
class Row:
    """One operator at one size. Microseconds per call, one number for each round; `failed` says what did not run."""

    operator: str
    shape: Shape
    backward: bool
    rounds_us: dict[str, list[float]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def median(self, variant: str) -> float | None:
        rounds = self.rounds_us.get(variant)
        return statistics.median(rounds) if rounds else None

    def to_dict(self) -> dict[str, Any]:
        rounds = {name: [float(f"{value:.5g}") for value in values] for name, values in self.rounds_us.items()}
        return {**asdict(self), "rounds_us": rounds}

    @property
    def speed(self) -> float | None:
        """How many times as fast as torch.compile quickfuse is."""
        ours, theirs = self.median("quickfuse"), self.median("torch.compile")
        return None if ours is None or theirs is None else theirs / ours


@dataclass
class Rows:
    machine: dict[str, Any]
    rows: list[Row]
    busy_cores: float | None = None

    @property
    def speeds(self) -> list[float]:
        return [row.speed for row in self.rows if row.speed is not None]

    def summary(self) -> str:
        if not self.speeds:
            return "nothing to compare"
        slow = sum(speed < 0.9 for speed in self.speeds)
        return (
            f"quickfuse is {statistics.geometric_mean(self.speeds):.2f} times as fast as torch.compile (geometric mean of "
            f"{len(self.speeds)}), {min(self.speeds):.2f} times at the least; {slow} below 0.9"
        )

    def to_table(self) -> Table:
        table = Table(title="operators, us per call", title_justify="left", box=box.SIMPLE)
        table.add_column("operator")
        for heading in ("size", "eager", "torch.compile", "quickfuse", "x"):
            table.add_column(heading, justify="right")
        for cells in self.cells():
            table.add_row(*cells)
        return table

    def cells(self) -> Iterator[list[str]]:
        for row in self.rows:
            times = [row.median(name) for name in ("eager", "torch.compile", "quickfuse")]
            shown = ["-" if time is None else f"{time:.3g}" if time < 1000 else f"{time:.0f}" for time in times]
            name = f"{row.operator}{', backward' if row.backward else ''}"
            yield [name, "x".join(map(str, row.shape)), *shown, "-" if row.speed is None else f"{row.speed:.2f}"]

    def write(self, path: Path) -> None:
        data = {"schema": SCHEMA, "benchmark": "operators", "machine": self.machine, "busy_cores": self.busy_cores,
                "summary": self.summary(), "rows": [row.to_dict() for row in self.rows]}  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")

    @staticmethod
    def read(path: Path) -> Rows:
        data = json.loads(path.read_text())
        rows = [Row(**{**row, "shape": tuple(row["shape"])}) for row in data["rows"]]
        return Rows(data["machine"], rows, data["busy_cores"])


def run(
    names: Sequence[str],
    variants: dict[str, Wrapper],
    seconds: float,
    progress: Callable[[str, float], None] = lambda what, fraction: None,
) -> Rows:
    """Measure operators at all their sizes, about `seconds` for each variant, which take turns."""
    torch._logging.set_logs(all=logging.ERROR)  # type: ignore[attr-defined]
    busy = busy_cores()
    rows = [Row(name, shape, backward) for name in names for shape in OPERATORS[name].shapes for backward in (False, True)]
    for number, row in enumerate(rows):
        progress(f"{row.operator} {row.shape}", number / len(rows))
        measure(row, variants, seconds)
    return Rows(describe_machine("cpu"), rows, busy)


def measure(row: Row, variants: dict[str, Wrapper], seconds: float) -> None:
    """Fill the rounds of a row."""
    timed: dict[str, Timed] = {}
    for name, wrap in variants.items():
        fn, args = call_of(row, wrap)
        one = Timed(fn, args, lambda: None)
        try:
            one.warm_up()
        except Exception as error:  # a peer may fail in any way: that is a result too
            row.failed[name] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        else:
            timed[name] = one
    interleave(timed, seconds)
    row.rounds_us = {name: one.rounds for name, one in timed.items()}


def call_of(row: Row, wrap: Wrapper) -> tuple[Callable[..., Any], tuple[torch.Tensor, ...]]:
    """The function to time, and its arguments: the operator, or with the gradients of all its float operands."""
    torch.manual_seed(0)
    operator = OPERATORS[row.operator]
    args = operator.operands(row.shape)
    compiled = wrap(operator.function)
    if not row.backward:
        return compiled, args
    leaves = tuple([a.requires_grad_() for a in args if a.is_floating_point()])
    upstream = torch.randn_like(operator.function(*args).detach())

    def call(*args: torch.Tensor) -> Any:
        return torch.autograd.grad(compiled(*args), leaves, upstream)

    return call, args
