"""Bar charts of reports: steady time and first call, a row of panels for each workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quickfuse.bench.machine import show_machine
from quickfuse.bench.render import show_cold, show_us
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.variants import OURS

_OURS_COLOR, _PEER_COLOR, _LINE_COLOR = "#c2410c", "#94a3b8", "#0f172a"


def plot(reports: Sequence[Report], path: Path) -> None:
    """Write a PNG (or whatever the suffix says) with one row of two panels for each report.

    Raises:
        ModuleNotFoundError: without matplotlib, which the extra `bench` brings.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = [
        [variant for variant in report.variants if variant.cold.status in ("measured", "timeout")] for report in reports
    ]
    layout = ConstrainedLayoutEngine(wspace=0.06, hspace=0.06)
    figure = Figure(figsize=(10, 0.9 + sum(0.9 + 0.36 * len(row) for row in rows)), layout=layout)
    FigureCanvasAgg(figure)
    panels = figure.subplots(
        len(reports), 2, squeeze=False, gridspec_kw={"height_ratios": [1 + len(row) for row in rows]}
    )
    for report, row, (steady, cold) in zip(reports, rows, panels, strict=True):
        _steady_panel(steady, report, [variant for variant in row if variant.rounds_us])
        _cold_panel(cold, report, row)
    figure.supxlabel(show_machine(reports[0].machine), fontsize=8, color="#475569")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No creation date: the same numbers shall give the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None} if path.suffix == ".png" else None)


def _steady_panel(axes: Any, report: Report, variants: list[VariantResult]) -> None:
    """Bars from zero, with a line from the 10th to the 90th percentile and the copy's time as a limit."""
    medians = [variant.median_us or 0.0 for variant in variants]
    spreads = [variant.spread_us or (median, median) for variant, median in zip(variants, medians, strict=True)]
    axes.barh([variant.name for variant in variants], medians, color=_colors(variants), height=0.7)
    for row, spread in enumerate(spreads):
        axes.plot(spread, [row, row], color=_LINE_COLOR, linewidth=1, solid_capstyle="butt")
    ends = [max(median, spread[1]) for median, spread in zip(medians, spreads, strict=True)]
    _label(axes, ends, [show_us(median) for median in medians])
    right = 1.15 * max([*ends, 1e-9])
    if report.copy_gb_per_s is not None:
        limit = report.workload.bytes_moved / report.copy_gb_per_s / 1e3
        right = max(right, 1.05 * limit)
        _limit_line(axes, limit, align="left" if limit < right / 2 else "right")
    axes.set_xlim(0, right)
    _finish(axes, len(variants), f"{report.workload.title}: us per {report.workload.unit}")


def _limit_line(axes: Any, limit: float, align: str) -> None:
    axes.axvline(limit, color=_LINE_COLOR, linestyle=":", linewidth=1)
    top = axes.get_xaxis_transform()
    axes.text(limit, 1.01, "a copy of as many bytes", transform=top, fontsize=7, ha=align, va="bottom")


def _cold_panel(axes: Any, report: Report, variants: list[VariantResult]) -> None:
    """Points and not bars: a logarithmic axis has no zero for a bar to start from."""
    seconds = [variant.cold_seconds or report.cold_timeout for variant in variants]
    names = [variant.name for variant in variants]
    axes.scatter(seconds, names, color=_colors(variants), s=60, zorder=2)
    axes.grid(axis="y", color="#e2e8f0", zorder=0)
    _label(axes, seconds, [show_cold(report, variant) for variant in variants], gap=9)
    axes.set_xscale("log")
    axes.set_xlim(min([*seconds, 1.0]) / 2, 8 * max([*seconds, 1e-9]))
    _finish(axes, len(variants), "first call, seconds (logarithmic)")


def _label(axes: Any, positions: list[float], labels: list[str], gap: float = 5) -> None:
    for row, (position, label) in enumerate(zip(positions, labels, strict=True)):
        text = axes.annotate(label, (position, row), (gap, 0), textcoords="offset points", va="center", fontsize=8)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def _colors(variants: list[VariantResult]) -> list[str]:
    return [_OURS_COLOR if variant.name == OURS else _PEER_COLOR for variant in variants]


def _finish(axes: Any, rows: int, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left", pad=16)
    axes.set_ylim(rows - 0.4, -0.6)
    axes.tick_params(labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)
