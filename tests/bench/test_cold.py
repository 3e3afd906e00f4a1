"""First calls in fresh processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from quickfuse.bench import cold, jax_peer
from quickfuse.bench.cold import ColdResult, measure_cold
from quickfuse.bench.step import Missing
from quickfuse.bench.workloads import OptimizerWorkload, PointwiseWorkload

TINY = OptimizerWorkload("2", (8, 8))


@pytest.mark.usefixtures("forked_interpreters")
def test_eager_is_measured_in_a_fresh_process(tmp_path: Path) -> None:
    result = measure_cold(TINY, "eager", tmp_path, timeout=120)
    assert result.status == "measured", result.reason
    assert len(result.calls) == cold.FIRST_CALLS
    assert all(seconds > 0 for seconds in result.calls)
    assert result.import_torch is not None and result.import_quickfuse is not None
    assert result.difference == 0.0


def test_a_first_call_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    result = measure_cold(TINY, "eager", tmp_path, timeout=0.01)
    assert result == ColdResult("timeout", "first call not finished after 0.01 s")


@pytest.mark.usefixtures("forked_interpreters")
def test_a_process_that_dies_is_a_failure_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold, "to_dict", lambda workload: {"benchmark": "no such benchmark"})
    result = measure_cold(TINY, "eager", tmp_path, timeout=120)
    assert result.status == "failed"
    assert "no such benchmark" in result.reason


def test_a_crash_is_a_failure_with_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crash = tmp_path / "crash.py"
    crash.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setattr(cold, "_CHILD", crash)
    result = measure_cold(TINY, "eager", tmp_path, timeout=120)
    assert result == ColdResult("failed", "ended by SIGSEGV")


def test_what_goes_wrong_in_the_process_is_its_answer() -> None:
    imports = {"torch": 1.0, "quickfuse": 0.5}
    task = {"workload": cold.to_dict(OptimizerWorkload("1", (2, 2), "RMSprop")), "variant": "fused"}
    answer = cold.answer_task(task, imports)
    assert answer["status"] == "missing"
    assert answer["reason"].startswith("no fused RMSprop")
    answer = cold.answer_task({**task, "variant": "nvfuser"}, imports)
    assert answer["status"] == "failed"
    assert answer["reason"].startswith("ValueError: unknown variant 'nvfuser'; known are eager")
    assert answer["import_torch"] == 1.0


def test_results_are_compared_with_eager() -> None:
    for workload in (TINY, PointwiseWorkload()):
        task = {"workload": cold.to_dict(workload), "variant": "eager"}
        assert cold.answer_task(task, {"torch": 0.0, "quickfuse": 0.0})["difference"] == 0.0


def test_errors_are_told_in_one_line() -> None:
    assert cold.explain(RuntimeError("first\nsecond")) == "RuntimeError: first"
    assert cold.explain(RuntimeError("InvalidCxxCompiler: no g++")) == "needs a C++ compiler, and none was found"


def test_a_missing_jax_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_peer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match=r"not installed \(pip install jax optax\)"):
        jax_peer.prepare(TINY)
