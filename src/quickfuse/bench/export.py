"""Exporting, beside `torch.export`: seconds for real models, in fresh processes, and which programs each accepts."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from quickfuse.bench import zoo
from quickfuse.bench.export_programs import PROGRAMS, exported, verdict
from quickfuse.bench.machine import describe_machine, show_machine
from quickfuse.bench.report import SCHEMA
from quickfuse.bench.run import Progress

#: After so many seconds a peer is given up.
PATIENCE = 300.0
#: A model that one exports in less is exported in a second fresh process: the faster of the two counts.
SHORT = 3.0
#: How often each exports a model, in turn, for the medians, and after how many seconds of a model there are no more turns.
ROUNDS = 5
ENOUGH = 6.0


def _vision(name: str, size: int = 224, **settings: Any) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        return getattr(zoo.vision_models(), name)(**settings), torch.randn(1, 3, size, size)

    return make


def _of_zoo(name: str) -> Callable[[], tuple[Any, Any]]:
    def make() -> tuple[Any, Any]:
        found = zoo.build(name)
        return found.model, found.input

    return make


#: Models of the benchmark, and more of torchvision's.
MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    **{name: _of_zoo(name) for name in zoo.MODELS},
    **{
        name: _vision(name)
        for name in (
            "alexnet vgg11_bn squeezenet1_1 googlenet mobilenet_v2 shufflenet_v2_x1_0 mnasnet1_0 efficientnet_b0 "
            "regnet_y_400mf convnext_tiny swin_t resnext50_32x4d wide_resnet50_2"
        ).split()
    },
    "inception_v3": _vision("inception_v3", 299),
}  # fmt: skip


@dataclass
class Row:
    """A model's export, by who exports: seconds of the first one in a fresh process, and the median of more that took
    turns in one process; `failed` has reasons."""

    model: str
    first: dict[str, float] = field(default_factory=dict)
    median: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def cells(self) -> list[str]:
        """What a table says: seconds of each, and quickfuse's share of the peer's."""
        found = [self.model]
        for seconds in (self.first, self.median):
            found += [_seconds(seconds.get(who)) for who in WHO]
            found.append(f"{seconds[WHO[0]] / seconds[WHO[1]]:.2f}" if len(seconds) == 2 else "-")
        return found


@dataclass
class Result:
    """What was found. `accepted` has a verdict for each program, by who exports."""

    machine: dict[str, Any]
    rows: list[Row]
    accepted: dict[str, dict[str, str]]

    def to_table(self) -> Table:
        table = Table(title="Seconds to export: the first time, and medians", title_justify="left", box=box.SIMPLE)
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for row in self.rows:
            table.add_row(*row.cells())
        return table

    def summary(self) -> str:
        """Geometric means of the shares, and the largest ones."""
        parts = []
        for name, found in (("first", [row.first for row in self.rows]), ("median", [row.median for row in self.rows])):
            shares = [seconds[WHO[0]] / seconds[WHO[1]] for seconds in found if len(seconds) == 2]
            if shares:
                mean = statistics.geometric_mean(shares)
                parts.append(f"{name}: {mean:.2f} of the peer's time (geometric mean; {max(shares):.2f} at most)")
        return "; ".join(parts)

    def notes(self) -> list[str]:
        """What each accepts, one program in a line, and failures."""
        lines = []
        for name, found in self.accepted.items():
            lines.append(f"{name}: " + ", ".join(f"{who} {what}" for who, what in found.items()))
        failures = [f"{row.model}, {who}: {why}" for row in self.rows for who, why in row.failed.items()]
        return [self.summary(), *lines, *failures]

    def markdown(self) -> str:
        """The tables, for the documentation."""
        times = [list(HEADINGS), ["---", *["---:"] * (len(HEADINGS) - 1)], *[row.cells() for row in self.rows]]
        programs = [["program", *WHO], ["---"] * 3]
        programs += [[name, *[found.get(who, "-") for who in WHO]] for name, found in self.accepted.items()]
        tables = ["\n".join(f"| {' | '.join(cells)} |" for cells in rows) for rows in (times, programs)]
        return f"{tables[0]}\n\n{self.summary()}. {show_machine(self.machine)}.\n\n{_PROGRAMS}\n\n{tables[1]}"

    def write(self, path: Path) -> None:
        data = {
            "schema": SCHEMA, "workload": {"title": "Export", "measures": "export"}, "machine": self.machine,
            "rows": [asdict(row) for row in self.rows], "accepted": self.accepted,
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Result:
        data = json.loads(path.read_text())
        return cls(data["machine"], [Row(**row) for row in data["rows"]], data["accepted"])


WHO = ("quickfuse", "torch.export")
HEADINGS = ("model", "quickfuse, first", "torch.export", "share", "quickfuse, median", "torch.export", "share")
_PROGRAMS = (
    'What came of small programs in the same run. "Wrong" is another result than eager\'s without an error, "refused" an '
    "error:"
)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def measure(
    names: list[str], *, peer: bool = True, rounds: int = ROUNDS, progress: Progress = lambda what, fraction: None
) -> Result:
    """Export each model by each who exports in processes of their own, and then up to `rounds` times in turn in one.

    On an idle core it takes about eight minutes for all models."""
    who = WHO if peer else WHO[:1]
    rows = []
    for k, name in enumerate(names):
        row = Row(name)
        for one in [*who, *who]:
            progress(f"{name}, {one}", k / len(names))
            found: dict[str, float] = {}
            if one in row.failed or row.first.get(one, 0.0) > SHORT:
                continue
            _note(_child(f"answer({[one]!r}, {name!r}, 0)"), [one], row, found)
            if one in found:
                row.first[one] = min(found[one], row.first.get(one, PATIENCE))
        progress(f"{name}, in turn", (k + 0.5) / len(names))
        _note(_child(f"answer({list(who)!r}, {name!r}, {rounds})"), who, row, row.median)
        rows.append(row)
    progress("programs", 1.0)
    verdicts = {one: _child(f"answer_programs({one!r})") for one in who}
    accepted = {name: {one: verdicts[one].get(name, "failed") for one in who} for name in PROGRAMS}
    return Result(describe_machine("cpu"), rows, accepted)


def _note(found: dict[str, Any], who: Sequence[str], row: Row, seconds: dict[str, float]) -> None:
    """Put the medians of what a child process measured into a row, or the reason why there are none."""
    for one in who:
        if "failed" in found:
            row.failed[one] = found["failed"]
        else:
            seconds[one] = statistics.median(found[one])


def _child(call: str) -> dict[str, Any]:
    """What a function of this module prints in a fresh process."""
    code = f"from quickfuse.bench import export; export.{call}"
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {PATIENCE:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"failed": (done.stderr.splitlines() or ["no answer"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def answer(who: Sequence[str], name: str, rounds: int) -> None:
    """Export a model once by each, and then up to `rounds` times in turn; print the seconds, without the first if there are
    more."""
    model, example = MODELS[name]()
    model.eval()
    seconds: dict[str, list[float]] = {one: [] for one in who}
    began = time.perf_counter()
    for count in range(rounds + 1):
        if count > 1 and time.perf_counter() - began > ENOUGH:
            break
        for one in who:
            start = time.perf_counter()
            exported(one, model, (example,))
            seconds[one].append(time.perf_counter() - start)
    print(json.dumps({one: found[1:] or found for one, found in seconds.items()}))


def answer_programs(who: str) -> None:
    """Print what came of each of the small programs."""
    print(json.dumps({name: verdict(who, name) for name in PROGRAMS}))
