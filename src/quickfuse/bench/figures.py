"""A few numbers with limits: for what has no peers to stand beside, only a bound that it must keep."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from quickfuse.bench.report import SCHEMA


@dataclass
class Figure:
    """One number, measured in several rounds. `limit` is what it must not exceed, if there is such a thing.

    `best` is what it takes where nothing else disturbs, where that is not simply the least of the rounds.
    """

    name: str
    unit: str
    rounds: list[float]
    limit: float | None = None
    best: float | None = None
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def least(self) -> float:
        """What it takes where nothing else disturbs: other programs only ever add time."""
        return min(self.rounds) if self.best is None else self.best

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "kept" if self.median <= self.limit else "kept at best" if self.least <= self.limit else "exceeded"


@dataclass
class Figures:
    """What one benchmark found. `measures` is its name in result files."""

    title: str
    measures: str
    machine: dict[str, Any]
    figures: list[Figure]

    def to_table(self) -> Table:
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE)
        table.add_column("what")
        for heading in ("median", "least", "limit"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("unit", no_wrap=True)
        table.add_column("", no_wrap=True)
        for figure in self.figures:
            limit = "-" if figure.limit is None else f"{figure.limit:g}"
            table.add_row(figure.name, f"{figure.median:.3g}", f"{figure.least:.3g}", limit, figure.unit, figure.verdict)
        return table

    def write(self, path: Path) -> None:
        data = {
            "schema": SCHEMA,
            "workload": {"title": self.title, "measures": self.measures},
            "machine": self.machine,
            "figures": {
                figure.name: {
                    "unit": figure.unit, "median": _short(figure.median), "least": _short(figure.least),
                    "limit": figure.limit, **figure.notes, "rounds": [_short(value) for value in figure.rounds],
                }
                for figure in self.figures
            },
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
