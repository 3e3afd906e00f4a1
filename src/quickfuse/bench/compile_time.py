"""Where quickfuse's first call spends its time, by stage of the pipeline."""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from quickfuse.bench.cold import ColdResult, measure_cold
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.report import SCHEMA
from quickfuse.bench.run import Progress
from quickfuse.bench.variants import OURS
from quickfuse.bench.workloads import Workload, to_dict


@dataclass
class CompileTime:
    """The first calls of several fresh processes."""

    workload: Workload
    machine: dict[str, Any]
    runs: list[ColdResult]

    @property
    def failure(self) -> str:
        """What went wrong in one line, or nothing."""
        return next((run.reason for run in self.runs if run.status != "measured"), "")

    @property
    def total(self) -> float:
        return statistics.median(run.calls[0] for run in self.runs)

    @property
    def stages(self) -> dict[str, float]:
        """Median seconds of each stage, in the order in which they first ran, and what is in none of them."""
        names = list(dict.fromkeys(name for run in self.runs for name in run.stages))
        medians = {name: statistics.median(run.stages.get(name, 0.0) for run in self.runs) for name in names}
        return {**medians, "the rest": max(0.0, self.total - sum(medians.values()))}

    def to_table(self) -> Table:
        table = Table(
            title=f"first call: {self.workload.title}, {self.workload.device}", title_justify="left", box=box.SIMPLE
        )
        table.add_column("stage")
        table.add_column("seconds", justify="right")
        table.add_column("share", justify="right")
        for name, seconds in self.stages.items():
            table.add_row(name, f"{seconds:.3f}", f"{100 * seconds / self.total:.0f}%")
        table.add_section()
        table.add_row("first call", f"{self.total:.3f}", "")
        for name in ("import_torch", "import_quickfuse"):
            seconds = statistics.median(getattr(run, name) for run in self.runs)
            table.add_row(name.replace("_", " ") + " (not counted)", f"{seconds:.3f}", "")
        return table

    def write(self, path: Path) -> None:
        data = {
            "schema": SCHEMA,
            "workload": {**to_dict(self.workload), "title": self.workload.title, "measures": "compile-time"},
            "machine": self.machine,
            "seconds": round(self.total, 4),
            "stages": {name: round(seconds, 4) for name, seconds in self.stages.items()},
            "runs": [asdict(run) for run in self.runs],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, indent=1) + "\n")


def measure(
    workload: Workload, *, repeats: int, timeout: float, progress: Progress = lambda what, fraction: None
) -> CompileTime:
    """Compile the workload in `repeats` fresh processes. Stops at the first that fails."""
    runs: list[ColdResult] = []
    with tempfile.TemporaryDirectory(prefix="quickfuse-bench-", ignore_cleanup_errors=True) as folder:
        for number in range(repeats):
            progress(f"process {number + 1} of {repeats}", number / repeats)
            runs.append(measure_cold(workload, OURS, Path(folder) / str(number), timeout))
            if runs[-1].status != "measured":
                break
    return CompileTime(workload, describe_machine(workload.device), runs)
