"""Exporting, beside `torch.export`: seconds for real models, in fresh processes, and which programs each accepts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table

from quickfuse.bench import zoo
from quickfuse.bench.export_programs import PROGRAMS, verdict
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.report import SCHEMA
from quickfuse.bench.run import Progress

#: After so many seconds a peer is given up.
PATIENCE = 300.0


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
            "regnet_y_400mf convnext_tiny swin_t resnext50_32x4d wide_resnet50_2 densenet169 efficientnet_v2_s"
        ).split()
    },
    "inception_v3": _vision("inception_v3", 299),
}  # fmt: skip


@dataclass
class Row:
    """A model's export: seconds of the first and of a second one, by who exports; `failed` has reasons."""

    model: str
    first: dict[str, float] = field(default_factory=dict)
    second: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What was found. `accepted` has a verdict for each program, by who exports."""

    machine: dict[str, Any]
    rows: list[Row]
    accepted: dict[str, dict[str, str]]

    def to_table(self) -> Table:
        table = Table(title="Seconds to export, first and again", title_justify="left", box=box.SIMPLE)
        for heading in ("model", "quickfuse", "again", "torch.export", "again", "share"):
            table.add_column(heading, justify="left" if heading == "model" else "right")
        for row in self.rows:
            cells = [_seconds(found.get(who)) for who in WHO for found in (row.first, row.second)]
            share = row.first[WHO[0]] / row.first[WHO[1]] if len(row.first) == 2 else None
            table.add_row(row.model, *cells, "-" if share is None else f"{share:.2f}")
        return table

    def notes(self) -> list[str]:
        """What each accepts, one program in a line, and failures."""
        lines = []
        for name, found in self.accepted.items():
            lines.append(f"{name}: " + ", ".join(f"{who} {what}" for who, what in found.items()))
        return lines + [f"{row.model}, {who}: {reason}" for row in self.rows for who, reason in row.failed.items()]

    def write(self, path: Path) -> None:
        data = {
            "schema": SCHEMA, "workload": {"title": "Export", "measures": "export"}, "machine": self.machine,
            "rows": [asdict(row) for row in self.rows], "accepted": self.accepted,
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")


WHO = ("quickfuse", "torch.export")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def measure(names: list[str], *, peer: bool = True, progress: Progress = lambda what, fraction: None) -> Result:
    """Export each model in a process of its own, by each who exports."""
    who = WHO if peer else WHO[:1]
    rows = []
    for k, name in enumerate(names):
        row = Row(name)
        for one in who:
            progress(f"{name}, {one}", k / len(names))
            found = _child(f"answer({one!r}, {name!r})")
            if "failed" in found:
                row.failed[one] = found["failed"]
            else:
                row.first[one], row.second[one] = found["seconds"]
        rows.append(row)
    progress("programs", 1.0)
    verdicts = {one: _child(f"answer_programs({one!r})") for one in who}
    accepted = {name: {one: verdicts[one].get(name, "failed") for one in who} for name in PROGRAMS}
    return Result(describe_machine("cpu"), rows, accepted)


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


def answer(who: str, name: str) -> None:
    """Export a model twice, and print the seconds."""
    model, example = MODELS[name]()
    model.eval()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        exported(who, model, (example,))
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": seconds}))


def answer_programs(who: str) -> None:
    """Print what came of each of the small programs."""
    print(json.dumps({name: verdict(who, name) for name in PROGRAMS}))


def exported(who: str, model: Any, args: tuple[Any, ...]) -> Any:
    """A model exported by quickfuse or by PyTorch."""
    if who == "quickfuse":
        import quickfuse

        return quickfuse.export(model, args)
    return torch.export.export(model, args)
