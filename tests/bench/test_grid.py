"""Measurements in processes of their own: models and operators as a GPU's suites, tried on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quickfuse.bench import grid, grid_models, grid_operators, traffic
from quickfuse.bench.grid import Limits, Results
from quickfuse.bench.workloads import ModelWorkload
from quickfuse.ir.kernel import KernelCall


def lstm(variants: list[str]) -> list[grid.Task]:
    size = {"batch": 2, "pixels": 32, "tokens": 3}
    return grid_models.tasks(["lstm"], ["train"], ["float32"], variants, "cpu", 0.01, size)


@pytest.mark.usefixtures("forked_interpreters")
def test_models_are_measured_and_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    shown: list[str] = []
    tasks = lstm(["eager", "quickfuse"])
    show = lambda task, row: shown.append(grid_models.shown(task, row))  # noqa: E731
    assert grid.run(tasks, Results.of_file(path, "cpu"), Limits(jobs=2), show)
    results = Results.of_file(path, "cpu")
    assert sorted(row["task"]["variant"] for row in results.rows) == ["eager", "quickfuse"]
    assert all(row["us"] > 0 and row["first_call_s"] > 0 for row in results.rows), results.rows
    assert not grid_models.different(results.rows) and not grid_models.failures(results.rows)
    assert any("as fast as eager" in line for line in grid_models.summary(results.rows))
    assert len(grid_models.table(results.rows)) == 2 and len(shown) == 2
    assert grid.run(tasks, results, Limits(), show) and len(shown) == 2  # nothing is measured again


@pytest.mark.usefixtures("forked_interpreters")
def test_an_operator_is_measured(tmp_path: Path) -> None:
    tasks = grid_operators.tasks(["softmax"], ["float32"], ["eager", "quickfuse"], "cpu", 0.01, 1024)
    results = Results(tmp_path / "operators.json")
    assert grid.run(tasks, results, Limits(), lambda task, row: None)
    (row,) = json.loads((tmp_path / "operators.json").read_text())["rows"]
    assert len(row["rows"]) == 6 and all(set(one["us"]) == {"eager", "quickfuse"} for one in row["rows"])
    assert len(grid_operators.table([row])) == 7
    assert not any("wrong" in line for line in grid_operators.summary([row]))


def test_failures_and_a_spent_budget_are_told(tmp_path: Path) -> None:
    results = Results(None)
    assert not grid.run(lstm(["eager"]), results, Limits(total=1), lambda task, row: None) and not results.rows
    assert grid.run(lstm(["eager"]), results, Limits(ready=0.1), lambda task, row: None)
    assert grid_models.failures(results.rows) == ["lstm train float32, eager: not ready after 0.1 s"]


@pytest.mark.parametrize(("us", "expected"), [(2.0, "2.00 times"), (0.5, "slower: lstm train float32 0.50")])
def test_summaries_compare_modes(us: float, expected: str) -> None:
    rows: list[dict[str, Any]] = [
        {"task": task, "us": us if task["variant"] == "torch.compile" else 1.0, "first_call_s": 1.0}
        for task in lstm(["torch.compile", "quickfuse"])
    ]
    assert any(expected in line for line in grid_models.summary(rows))


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_kernels_of_a_model_on_a_gpu_are_shown_without_one(mode: str) -> None:
    function, args = traffic.function_of(ModelWorkload("gpt", mode, "cpu", "float32", 2, 32, 16))
    schedules = traffic.on_gpu(function, *args)
    assert len(schedules) == (1 if mode == "eval" else 2)
    kernels = [step for schedule in schedules for step in schedule.steps if isinstance(step, KernelCall)]
    assert kernels and all(kernel.device.type == "cuda" for kernel in kernels)
    works = traffic.kernel_work(schedules[0])
    assert sum(work.moved for work in works) > 0 and [*works] == sorted(works, key=lambda work: -work.moved)
    assert len(traffic.lines_of(works, "gpt")) == 1 + len(works)
