"""A report for people: a table, and a line for whatever they should know about the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from rich import box
from rich.table import Table

from quickfuse.bench.cold import FIRST_CALLS
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.variants import OURS

_NONE = "-"

#: Up to this many cores at work for other programs, a machine counts as idle.
_QUIET = 0.25


def to_table(report: Report) -> Table:
    """One row for each variant that ran or timed out, fastest first."""
    workload = report.workload
    table = Table(
        title=f"{workload.title}, {workload.device}", title_justify="left", box=box.SIMPLE, collapse_padding=True
    )
    table.add_column("variant", no_wrap=True)
    headings = [f"us/{workload.unit}", "10-90%", "first call"]
    if workload.shows_bandwidth:
        headings += ["GB/s", "% copy"]
    for heading in [*headings, "x quickfuse"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for variant in sorted(report.variants, key=lambda one: one.median_us or float("inf")):
        if variant.cold.status in ("measured", "timeout"):
            table.add_row(*_row(report, variant), style="bold" if variant.name == OURS else "")
    return table


def notes(report: Report) -> list[str]:
    """Each in one line: peers that are missing or failed, what quickfuse logged, noise, copy bandwidth, accuracy."""
    lines = []
    for variant in report.variants:
        cold = variant.cold
        if cold.status == "missing":
            lines.append(f"{variant.name}: left out, {cold.reason}")
        elif cold.status == "failed":
            lines.append(f"{variant.name}: failed, {cold.reason}")
        elif cold.status == "timeout":
            lines.append(f"{variant.name}: left out of the steady state, {cold.reason}")
        if cold.messages:
            more = f" (and {len(cold.messages) - 1} more)" if len(cold.messages) > 1 else ""
            lines.append(f"{variant.name} says: {cold.messages[0].splitlines()[0]}{more}")
    if report.busy_cores is not None and report.busy_cores > _QUIET:
        lines.append(f"other programs kept {report.busy_cores:.1f} cores busy when this began: the times are noisy")
    if report.copy_gb_per_s is not None:
        lines.append(
            f"a copy moves {report.copy_gb_per_s:.0f} GB/s in the same rounds; {report.workload.title} must move "
            f"{report.workload.bytes_moved / 1e6:.1f} MB per {report.workload.unit}"
        )
    if any((report.percent_of_copy(variant) or 0) > 100 for variant in report.variants):
        lines.append("more than 100% of a copy: data that stays in caches, or that is updated in place, is faster")
    ours = report.get(OURS)
    if ours is not None and ours.cold.difference is not None:
        lines.append(f"largest difference from eager after {FIRST_CALLS} calls: {ours.cold.difference:.1e}")
    return [*lines, *model_notes(report)]


def model_notes(report: Report) -> list[str]:
    """How many kernels there are, and what memory the variants need."""
    lines = []
    ours = report.get(OURS)
    if ours is not None and ours.cold.counts:
        lines.append(", ".join(f"{number} {name}" for name, number in ours.cold.counts.items()))
    for kind, what in (("peak", "memory at the most"), ("saved", "memory kept for the backward pass")):
        sizes = {v.name: v.cold.memory[kind] for v in report.variants if kind in v.cold.memory}
        if sizes:
            lines.append(f"{what}: " + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()))
    return lines


def geometric_means(reports: Sequence[Report]) -> list[str]:
    """How many times as long as quickfuse each peer takes, over all workloads of a kind."""
    lines = []
    for unit in dict.fromkeys(report.workload.unit for report in reports):
        alike = [report for report in reports if report.workload.unit == unit]
        for name in dict.fromkeys(v.name for report in alike for v in report.variants if v.name != OURS):
            steady, first = [], []
            for report in alike:
                peer, ours = report.get(name), report.get(OURS)
                if peer is None or ours is None or (ratio := report.ratio(peer)) is None:
                    continue
                steady.append(ratio)
                if peer.cold_seconds and ours.cold_seconds:
                    first.append(peer.cold_seconds / ours.cold_seconds)
            if steady and first:
                lines.append(
                    f"{name} takes {geometric_mean(steady):.2f} times as long per {unit}, and {geometric_mean(first):.1f} "
                    f"times for the first (geometric means of {len(steady)})"
                )
    return lines


def summary_lines(report: Report) -> list[str]:
    """Eager beside compiled, as PyTorch's tutorial on compiled optimizers prints them."""
    pairs = (("eager runtime", report.get("eager")), ("compiled runtime", report.get(OURS)))
    return [f"{label}: {variant.median_us}us" for label, variant in pairs if variant is not None and variant.rounds_us]


def show_us(microseconds: float | None) -> str:
    """Three digits at least."""
    if microseconds is None:
        return _NONE
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


def show_cold(report: Report, variant: VariantResult) -> str:
    if variant.cold.status == "timeout":
        return f"over {report.cold_timeout:g} s"
    seconds = variant.cold_seconds
    if seconds is None:
        return _NONE
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"


def _row(report: Report, variant: VariantResult) -> list[str]:
    spread = variant.spread_us
    cells = [
        variant.name,
        show_us(variant.median_us),
        _NONE if spread is None else f"{show_us(spread[0])}-{show_us(spread[1])}",
        show_cold(report, variant),
    ]
    if report.workload.shows_bandwidth:
        rate, percent = report.gb_per_s(variant), report.percent_of_copy(variant)
        cells += [_NONE if rate is None else f"{rate:.3g}", _NONE if percent is None else f"{percent:.0f}"]
    ratio = report.ratio(variant)
    return [*cells, _NONE if ratio is None else f"{ratio:.2f}"]
