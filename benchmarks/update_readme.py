"""Write the tables and plots of README.md from the result files: `python benchmarks/update_readme.py [--check]`.

A pair of markers `<!-- results:NAME -->` and `<!-- /results:NAME -->` holds the table of all files
`benchmarks/results/NAME*.json`, one row a file, and a plot of them in `docs/images/NAME.png`; for models with kernels,
memory and geometric means, for operators without a plot. The block of docs/export.md is written likewise. `--check` changes
nothing and fails if a page is not what the result files say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from quickfuse.bench import export, operators
from quickfuse.bench.machine import show_machine
from quickfuse.bench.render import geometric_means, show_cold
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.variants import OURS
from quickfuse.bench.workloads import ModelWorkload

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
#: The page of one block without a plot.
EXPORT_PAGE = ROOT / "docs" / "export.md"

_BLOCK = re.compile(r"(<!-- results:(?P<name>[\w-]+) -->\n).*?(<!-- /results:(?P=name) -->)", re.DOTALL)
_COLUMNS = ("eager", "fused", "torch.compile", "jax", "quickfuse")
_NOTHING = "*No results are committed yet.*"


def update(text: str, results: Path) -> str:
    """The README `text` with every block rendered anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{_block(match['name'], results)}\n{match[3]}", text)


def block_names(text: str) -> list[str]:
    return [match["name"] for match in _BLOCK.finditer(text)]


def read_reports(name: str, results: Path) -> list[Report]:
    """The reports of one block, in the order of their file names."""
    return [Report.read(path) for path in sorted(results.glob(f"{name}*.json"))]


def markdown_table(reports: Sequence[Report]) -> str:
    """One row for each report; only the columns that any of them has."""
    names = [name for name in _COLUMNS if any(_measured(report.get(name)) for report in reports)]
    with_copy = any(report.copy_gb_per_s is not None for report in reports)
    head = ["work", *names, *["a copy of as many bytes"] * with_copy]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for report in reports:
        cells = [_cell(report, report.get(name)) for name in names]
        rows.append([report.workload.title, *cells, *[_copy_cell(report)] * with_copy])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(name: str, reports: Sequence[Report]) -> None:
    from quickfuse.bench.plot import plot

    plot(reports, ROOT / _image(name))


def model_table(reports: Sequence[Report]) -> str:
    """Kernels and memory of models: how many are launched, how many of them differ, and megabytes."""
    kinds = [kind for kind in ("saved", "peak") if any(kind in v.cold.memory for r in reports for v in r.variants)]
    names = [name for name in _COLUMNS if any(_measured(report.get(name)) for report in reports)]
    head = ["work", "kernels launched", "distinct", "operators called"]
    head += [f"{kind}, {name}" for kind in kinds for name in names]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for report in reports:
        ours = report.get(OURS)
        counts = ours.cold.counts if ours is not None else {}
        numbers = [counts.get(key) for key in ("kernel launches", "distinct kernels", "operator calls")]
        cells = ["-" if number is None else str(number) for number in numbers]
        for kind in kinds:
            for variant in map(report.get, names):
                size = None if variant is None else variant.cold.memory.get(kind)
                cells.append("-" if size is None else f"{size / 1e6:.3g} MB")
        rows.append([report.workload.title, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def operator_table(result: operators.Rows) -> str:
    rows = [["operator", "size", "eager, us", "torch.compile, us", "quickfuse, us", "times as fast as torch.compile"],
            ["---", *["---:"] * 5], *result.cells()]  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _operator_block(name: str, results: Path) -> str:
    parts = []
    for path in sorted(results.glob(f"{name}*.json")):
        result = operators.Rows.read(path)
        parts += [operator_table(result), f"Medians; {result.summary()}. {show_machine(result.machine)}."]
    return "\n\n".join(parts) or _NOTHING


def _block(name: str, results: Path) -> str:
    if name.startswith("operators"):
        return _operator_block(name, results)
    if name == "export":
        return export.Result.read(results / "export.json").markdown()
    reports = read_reports(name, results)
    if not reports:
        return _NOTHING
    machines = dict.fromkeys(show_machine(report.machine) for report in reports)
    unit = reports[0].workload.unit
    caption = f"Median time per {unit}; in brackets the first {unit} in a fresh process with empty caches."
    parts = [markdown_table(reports), f"{caption} {'; '.join(machines)}."]
    if isinstance(reports[0].workload, ModelWorkload):
        memory = "Memory that a call holds at the most (peak), and what it keeps for the backward pass (saved)."
        parts += [f"{'; '.join(geometric_means(reports))}.", model_table(reports), memory]
    return "\n\n".join([*parts, f"![{name}]({_image(name).as_posix()})"])


def _image(name: str) -> Path:
    return Path("docs", "images", f"{name}.png")


def _measured(variant: VariantResult | None) -> bool:
    return variant is not None and variant.cold.status in ("measured", "timeout")


def _cell(report: Report, variant: VariantResult | None) -> str:
    if variant is None or not _measured(variant):
        return "-"
    time = "-" if variant.median_us is None else _show_duration(variant.median_us)
    text = f"{time} ({show_cold(report, variant)})"
    return f"**{text}**" if variant.name == "quickfuse" else text


def _copy_cell(report: Report) -> str:
    if report.copy_gb_per_s is None:
        return "-"
    return _show_duration(report.workload.bytes_moved / report.copy_gb_per_s / 1e3)


def _show_duration(microseconds: float) -> str:
    return f"{microseconds:.3g} us" if microseconds < 1000 else f"{microseconds / 1000:.3g} ms"


def main(arguments: Sequence[str]) -> int:
    stale = 0
    for page in (README, EXPORT_PAGE):
        before = page.read_text()
        after = update(before, RESULTS)
        if "--check" not in arguments:
            page.write_text(after)
        elif before != after:
            print(f"{page.name} differs from benchmarks/results; run: python benchmarks/update_readme.py")
            stale = 1
    for name in block_names(README.read_text()) if "--check" not in arguments else ():
        reports = [] if name.startswith("operators") else read_reports(name, RESULTS)
        if reports:
            draw(name, reports)
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
