"""The numbers of a run, as data and as JSON."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from quickfuse.bench.cold import ColdResult
from quickfuse.bench.variants import OURS
from quickfuse.bench.workloads import Workload, from_dict, to_dict

SCHEMA = 1


@dataclass
class VariantResult:
    """One variant: its first calls, and the microseconds per call of each round (none if it did not run)."""

    name: str
    cold: ColdResult
    rounds_us: list[float] = field(default_factory=list)
    calls_per_round: int = 0

    @property
    def median_us(self) -> float | None:
        return statistics.median(self.rounds_us) if self.rounds_us else None

    @property
    def spread_us(self) -> tuple[float, float] | None:
        """The 10th and the 90th percentile."""
        if len(self.rounds_us) < 2:
            return None
        deciles = statistics.quantiles(self.rounds_us, n=10, method="inclusive")
        return deciles[0], deciles[-1]

    @property
    def cold_seconds(self) -> float | None:
        return self.cold.calls[0] if self.cold.calls else None


@dataclass
class Report:
    """All variants of one workload.

    `copy_gb_per_s` is the median over the rounds, if it was measured. `busy_cores` is how many cores other programs
    kept at work when the run began.
    """

    workload: Workload
    machine: dict[str, Any]
    variants: list[VariantResult]
    copy_gb_per_s: float | None = None
    cold_timeout: float = 300.0
    busy_cores: float | None = None

    def get(self, name: str) -> VariantResult | None:
        return next((variant for variant in self.variants if variant.name == name), None)

    def gb_per_s(self, variant: VariantResult) -> float | None:
        """The bytes that must move, over the time that the variant takes."""
        if variant.median_us is None or not self.workload.shows_bandwidth:
            return None
        return self.workload.bytes_moved / variant.median_us / 1e3

    def percent_of_copy(self, variant: VariantResult) -> float | None:
        rate = self.gb_per_s(variant)
        return None if rate is None or self.copy_gb_per_s is None else 100 * rate / self.copy_gb_per_s

    def ratio(self, variant: VariantResult) -> float | None:
        """How many times as long as quickfuse the variant takes."""
        ours = self.get(OURS)
        if ours is None or ours.median_us is None or variant.median_us is None:
            return None
        return variant.median_us / ours.median_us

    def to_dict(self) -> dict[str, Any]:
        """JSON data: what was measured, and for readers' convenience what follows from it."""
        return {
            "schema": SCHEMA,
            "workload": {**to_dict(self.workload), "title": self.workload.title},
            "machine": self.machine,
            "bytes_moved": self.workload.bytes_moved,
            "copy_gb_per_s": _round(self.copy_gb_per_s),
            "cold_timeout": self.cold_timeout,
            "busy_cores": _round(self.busy_cores),
            "variants": {variant.name: self._variant_dict(variant) for variant in self.variants},
        }

    def _variant_dict(self, variant: VariantResult) -> dict[str, Any]:
        spread = variant.spread_us
        return {
            "median_us": _round(variant.median_us),
            "p10_us": _round(spread and spread[0]),
            "p90_us": _round(spread and spread[1]),
            "cold_seconds": _round(variant.cold_seconds),
            "gb_per_s": _round(self.gb_per_s(variant)),
            "percent_of_copy": _round(self.percent_of_copy(variant)),
            "times_quickfuse": _round(self.ratio(variant)),
            "calls_per_round": variant.calls_per_round,
            "rounds_us": [_round(value) for value in variant.rounds_us],
            "cold": asdict(variant.cold),
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Report:
        """The inverse of `to_dict`.

        Raises:
            ValueError: for a file of another schema.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"result file of schema {data.get('schema')}, expected {SCHEMA}")
        workload = {name: value for name, value in data["workload"].items() if name != "title"}
        variants = [
            VariantResult(name, ColdResult(**result["cold"]), result["rounds_us"], result["calls_per_round"])
            for name, result in data["variants"].items()
        ]
        return Report(
            from_dict(workload),
            data["machine"],
            variants,
            data["copy_gb_per_s"],
            data["cold_timeout"],
            data["busy_cores"],
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_dict(), indent=1) + "\n")

    @staticmethod
    def read(path: Path) -> Report:
        return Report.from_dict(json.loads(path.read_text()))


def _round(value: float | None) -> float | None:
    """Five digits: more would be noise."""
    return None if value is None else float(f"{value:.5g}")
