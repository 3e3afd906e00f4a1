"""Models and operators as workloads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quickfuse.bench import operators, zoo
from quickfuse.bench.cold import ColdResult, answer_task
from quickfuse.bench.models import memory_bytes
from quickfuse.bench.operators import OPERATORS, Row, Rows, call_of
from quickfuse.bench.render import geometric_means, model_notes
from quickfuse.bench.report import Report, VariantResult
from quickfuse.bench.step import Step
from quickfuse.bench.variants import prepare, wrapper
from quickfuse.bench.workloads import MODES, ModelWorkload, from_dict, to_dict


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> zoo.Example:
        model = torch.nn.Sequential(torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4))
        return zoo.Example(model, torch.randn(5, 8), torch.randint(4, (5,)))

    monkeypatch.setitem(zoo.MODELS, "gpt", make)


@pytest.mark.parametrize("mode", MODES)
def test_variants_of_a_model_agree(mode: str) -> None:
    workload = ModelWorkload("gpt", mode)
    assert from_dict(to_dict(workload)) == workload
    steps = [prepare(workload, variant) for variant in ("eager", "quickfuse")]
    returned = []
    for step in steps:
        fn = step.make()
        for _ in range(2):
            value = fn(*step.args)
        returned.append(value)
        memory = memory_bytes(step, fn)
        assert memory["peak"] > 0 and ("saved" in memory) == (mode == "train")
    torch.testing.assert_close(*returned)
    for one, two in zip(*(step.results() for step in steps), strict=True):
        torch.testing.assert_close(one, two)


def test_the_first_calls_of_a_model_are_reported() -> None:
    workload = ModelWorkload("gpt", "train")
    imports = {"torch": 0.0, "quickfuse": 0.0}
    variants = []
    for name in ("eager", "quickfuse"):
        answer = answer_task({"workload": to_dict(workload), "variant": name}, imports)
        assert answer["status"] == "measured", answer["reason"]
        assert answer["difference"] < 1e-4
        variants.append(VariantResult(name, ColdResult(**answer), [1.0, 1.0], 1))
    report = Report(workload, {}, variants)
    assert Report.from_dict(report.to_dict()) == report
    assert any("kernel launches" in line for line in model_notes(report))
    assert len(geometric_means([report])) == 1


def test_memory_counts_what_lives() -> None:
    def fn(n: int) -> torch.Tensor:
        return torch.ones(n).add(1).sum()

    step = Step(lambda: fn, (1 << 16,), forward=lambda: torch.ones(1 << 14))
    memory = memory_bytes(step, fn)
    assert 2 << 18 <= memory["peak"] < 3 << 18
    assert memory["saved"] == 1 << 16


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("backward", [False, True])
def test_variants_of_an_operator_agree(name: str, backward: bool) -> None:
    row = Row(name, OPERATORS[name].shapes[0], backward)
    results = [fn(*args) for fn, args in (call_of(row, wrapper(variant)) for variant in ("eager", "quickfuse"))]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_operator_results_are_written_and_read(tmp_path: Path) -> None:
    row = Row("softmax", (4, 8), False)
    operators.measure(row, {name: wrapper("eager") for name in ("torch.compile", "quickfuse")}, 0.01)
    rows = Rows({"date": "today"}, [row])
    assert row.speed is not None and "geometric mean of 1" in rows.summary()
    rows.write(tmp_path / "operators.json")
    read = Rows.read(tmp_path / "operators.json")
    assert [one.shape for one in read.rows] == [(4, 8)]
    assert list(read.cells())[0][:2] == ["softmax", "4x8"]
