"""What follows from the numbers, and how it is shown."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import update_readme
from bench_reports import optimizer_report, pointwise_report
from quickfuse.bench import render
from quickfuse.bench.plot import plot
from quickfuse.bench.report import SCHEMA, Report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def report() -> Report:
    return optimizer_report()


def test_rates_and_ratios(report: Report) -> None:
    ours, eager = report.get("quickfuse"), report.get("eager")
    assert ours is not None and eager is not None
    assert ours.median_us == pytest.approx(5_000)
    assert ours.spread_us == pytest.approx((4_600, 5_400))
    assert report.gb_per_s(ours) == pytest.approx(7 * 4 * 10 * 1024**2 / 5e-3 / 1e9)
    assert report.percent_of_copy(ours) == pytest.approx(97.87, abs=0.01)
    assert report.ratio(eager) == pytest.approx(4.0)


def test_what_was_not_measured_has_no_numbers(report: Report) -> None:
    compiled = report.get("torch.compile")
    assert compiled is not None
    assert compiled.median_us is compiled.spread_us is compiled.cold_seconds is None
    assert report.gb_per_s(compiled) is report.percent_of_copy(compiled) is report.ratio(compiled) is None


def test_json_schema(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "new" / "result.json")
    data = json.loads((tmp_path / "new" / "result.json").read_text())
    assert data["schema"] == SCHEMA
    assert {
        "workload",
        "machine",
        "bytes_moved",
        "copy_gb_per_s",
        "cold_timeout",
        "busy_cores",
        "variants",
    } <= data.keys()
    assert {"date", "cpu", "cores", "threads", "gpu", "python", "torch", "triton", "llvmlite"} <= data["machine"].keys()
    assert data["workload"]["title"] == "Adam, 10 x 1024x1024, float32"
    for name in ("eager", "quickfuse"):
        variant = data["variants"][name]
        assert variant["cold"]["status"] == "measured"
        assert len(variant["rounds_us"]) == 5
        for key in ("median_us", "p10_us", "p90_us", "cold_seconds", "gb_per_s", "percent_of_copy", "times_quickfuse"):
            assert isinstance(variant[key], float), key
    assert data["variants"]["torch.compile"]["median_us"] is None


def test_json_comes_back_as_it_was_written(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "result.json")
    again = Report.read(tmp_path / "result.json")
    assert again == report
    assert again.to_dict() == report.to_dict()


def test_files_of_another_schema_are_refused(report: Report) -> None:
    with pytest.raises(ValueError, match="schema 99, expected"):
        Report.from_dict({**report.to_dict(), "schema": 99})


def test_table_has_a_row_for_what_ran_or_timed_out(report: Report) -> None:
    text = _print(render.to_table(report))
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert rows[-3:] == ["quickfuse", "eager", "torch.compile"]
    assert "over 300 s" in text
    assert "4.00" in text


def test_table_of_small_tensors_has_no_bandwidth() -> None:
    text = _print(render.to_table(pointwise_report()))
    assert "GB/s" not in text
    assert "us/call" in text
    assert "50 ms" in text


def test_notes_say_what_is_missing_in_one_line_each(report: Report) -> None:
    notes = render.notes(report)
    assert "fused: left out, no fused Adam" in notes
    assert "jax: failed, RuntimeError: no" in notes
    assert "torch.compile: left out of the steady state, first call not finished after 300 s" in notes
    assert "quickfuse says: [graph_breaks] fn: an unknown call (and 1 more)" in notes
    assert "other programs kept 1.5 cores busy when this began: the times are noisy" in notes
    assert "largest difference from eager after 5 calls: 1.5e-08" in notes
    assert not any("\n" in note for note in notes)


def test_summary_is_the_tutorials_printout(report: Report) -> None:
    assert render.summary_lines(report) == ["eager runtime: 20000.0us", "compiled runtime: 5000.0us"]


def test_plot_is_a_picture(report: Report, tmp_path: Path) -> None:
    plot([report, pointwise_report()], tmp_path / "new" / "plot.png")
    assert (tmp_path / "new" / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_readme_says_what_the_result_files_say() -> None:
    text = update_readme.README.read_text()
    assert update_readme.block_names(text)
    assert update_readme.update(text, update_readme.RESULTS) == text, "run: python benchmarks/update_readme.py"


def test_the_page_about_export_says_what_its_results_say() -> None:
    text = update_readme.EXPORT_PAGE.read_text()
    assert update_readme.block_names(text) == ["export"]
    assert update_readme.update(text, update_readme.RESULTS) == text, "run: python benchmarks/update_readme.py"


def test_plots_of_the_readme_are_there() -> None:
    for name in update_readme.block_names(update_readme.README.read_text()):
        if not name.startswith("operators") and update_readme.read_reports(name, update_readme.RESULTS):
            assert (ROOT / "docs" / "images" / f"{name}.png").exists()


def test_readme_table_has_a_row_for_each_file(report: Report, tmp_path: Path) -> None:
    report.write(tmp_path / "optimizer-cpu-1.json")
    report.write(tmp_path / "optimizer-cpu-2.json")
    text = "before\n<!-- results:optimizer-cpu -->\nold\n<!-- /results:optimizer-cpu -->\nafter\n"
    updated = update_readme.update(text, tmp_path)
    assert updated.startswith("before\n<!-- results:optimizer-cpu -->\n| work | eager | torch.compile | quickfuse |")
    assert updated.endswith("<!-- /results:optimizer-cpu -->\nafter\n")
    row = "| Adam, 10 x 1024x1024, float32 | 20 ms (0.5 s) | - (over 300 s) | **5 ms (0.5 s)** | 4.89 ms |"
    assert updated.count(row) == 2
    assert "![optimizer-cpu](docs/images/optimizer-cpu.png)" in updated
    assert update_readme.update(updated, tmp_path) == updated


def test_readme_admits_that_there_are_no_results(tmp_path: Path) -> None:
    text = "<!-- results:optimizer-gpu -->\n<!-- /results:optimizer-gpu -->\n"
    assert "No results are committed yet" in update_readme.update(text, tmp_path)


def _print(table: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
