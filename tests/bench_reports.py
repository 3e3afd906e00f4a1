"""Reports with made-up numbers."""

from __future__ import annotations

from quickfuse.bench.cold import ColdResult
from quickfuse.bench.machine import describe_machine
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.workloads import OptimizerWorkload, PointwiseWorkload


def measured(name: str, microseconds: float, cold: float = 0.5, **fields: object) -> VariantResult:
    rounds = [microseconds * factor for factor in (0.9, 0.95, 1.0, 1.05, 1.1)]
    return VariantResult(name, ColdResult("measured", calls=[cold, 0.1], **fields), rounds, 7)  # type: ignore[arg-type]


def optimizer_report() -> Report:
    variants = [
        measured("eager", 20_000),
        VariantResult("fused", ColdResult("missing", "no fused Adam")),
        VariantResult("torch.compile", ColdResult("timeout", "first call not finished after 300 s")),
        VariantResult("jax", ColdResult("failed", "RuntimeError: no")),
        measured("quickfuse", 5_000, difference=1.5e-8, messages=["[graph_breaks] fn: an unknown call", "another"]),
    ]
    return Report(OptimizerWorkload(), describe_machine("cpu"), variants, copy_gb_per_s=60.0, busy_cores=1.5)


def pointwise_report() -> Report:
    variants = [measured("eager", 3.2), measured("quickfuse", 4.0, cold=0.05)]
    return Report(PointwiseWorkload(), describe_machine("cpu"), variants)
