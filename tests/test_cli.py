"""The command line, with workloads as small as they can be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from quickfuse import doctor, support
from quickfuse.cli import app

TINY = ["--params", "2", "--shape", "8x8", "--device", "cpu"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.usefixtures("forked_interpreters")
def test_optimizer_benchmark_from_end_to_end(tmp_path: Path) -> None:
    json_file, plot_file = tmp_path / "result.json", tmp_path / "plot.png"
    options = ["--peers", "eager,fused", "--seconds", "0.2", "--json", str(json_file), "--plot", str(plot_file)]
    result = invoke("bench", "optimizer", *TINY, *options)
    assert result.exit_code == 0, result.output
    assert "eager runtime: " in result.output and "compiled runtime: " in result.output
    data = json.loads(json_file.read_text())
    assert list(data["variants"]) == ["eager", "fused", "quickfuse"]
    for name, variant in data["variants"].items():
        assert variant["cold"]["status"] == "measured", (name, variant["cold"]["reason"])
        assert variant["median_us"] > 0 and variant["cold_seconds"] > 0
    ours = data["variants"]["quickfuse"]
    assert ours["cold"]["difference"] < 1e-6
    assert ours["cold"]["messages"] == []
    assert data["copy_gb_per_s"] > 0
    assert plot_file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("forked_interpreters")
def test_pointwise_benchmark_from_end_to_end() -> None:
    result = invoke("bench", "pointwise", "--peers", "eager,fused", "--seconds", "0.2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "fused: left out, PyTorch has no fused kernel" in result.output
    assert "compiled runtime: " in result.output


@pytest.mark.usefixtures("forked_interpreters")
def test_compile_time_by_stage(tmp_path: Path) -> None:
    json_file = tmp_path / "result.json"
    result = invoke("bench", "compile-time", *TINY, "--repeats", "1", "--json", str(json_file))
    assert result.exit_code == 0, result.output
    assert "first call" in result.output and "import torch (not counted)" in result.output
    data = json.loads(json_file.read_text())
    assert data["seconds"] > 0
    assert len(data["stages"]) > 1, "no stage of the compiler ran"


@pytest.mark.usefixtures("forked_interpreters")
def test_guards_and_loops(tmp_path: Path) -> None:
    for arguments in (
        ["guards", "--layers", "2", "--params", "2"],
        ["python-loop", "--iterations", "300"],
        ["breaks", "--layers", "2", "--no-peer"],
    ):
        json_file = tmp_path / f"{arguments[0]}.json"
        result = invoke("bench", *arguments, "--seconds", "0.02", "--json", str(json_file))
        assert result.exit_code == 0, result.output
        figures = json.loads(json_file.read_text())["figures"]
        assert len(figures) > 3 and all(figure["median"] > 0 or arguments[0] == "breaks" for figure in figures.values())


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--peers", "eager,nvfuser", "unknown peer 'nvfuser'"),
        ("--shape", "8y8", "no shape"),
        ("--optimizer", "Adan", "unknown optimizer"),
        ("--device", "tpu", "unknown device"),
        ("--params", "none", "no parameter set"),
    ],
)
def test_wrong_options_are_named(option: str, value: str, message: str) -> None:
    result = invoke("bench", "optimizer", option, value)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_an_old_gpu_is_one_clear_line_and_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GeForce GTX 1080")
    result = invoke("bench", "optimizer")
    assert result.exit_code == 0
    assert result.output.count("\n") == 1
    assert "GeForce GTX 1080 has compute capability 6.1" in result.output
    assert "7.0 or higher" in result.output


def test_doctor_says_one_line_about_each_thing() -> None:
    result = invoke("doctor")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    names = ["Python", "PyTorch", "LLVM", "vector math", "threads", "GPU", "Triton"]
    assert [line[3:16].strip() for line in lines] == names
    assert all(": " in line for line in lines)


def test_doctor_says_what_keeps_cpu_kernels_from_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libgomp is gone")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["LLVM"].level == "broken"
    assert findings["LLVM"].meaning == "no CPU kernels: ImportError: libgomp is gone"


def test_doctor_calls_an_unsupported_python_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support.sys, "version_info", (3, 15, 0, "final", 0))
    finding = doctor.find_python()
    assert finding.level == "broken"
    assert "it needs Python 3.11 to 3.14" in finding.meaning


def test_doctor_reports_what_it_could_not_examine(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver mismatch")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["GPU"].meaning == "RuntimeError: driver mismatch"
