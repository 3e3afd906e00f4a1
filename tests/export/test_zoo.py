"""Exported models run in a process without the library that defined them. `make export-zoo` does it with many more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import quickfuse
from export.run_zoo import MODES
from export.zoo_cases import distance_of, write_case
from vision import vision_models

#: Normalisation and depthwise convolutions; attention and stochastic depth; channels that are shuffled.
MODELS = ("mobilenet_v3_small", "swin_t", "shufflenet_v2_x0_5")


def compared(files: list[Path]) -> list[dict[str, Any]]:
    """What a fresh process finds in files."""
    script = Path(__file__).with_name("compare_files.py")
    environment = os.environ | {"PYTHONPATH": str(Path(quickfuse.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, files)], capture_output=True, text=True, timeout=500, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_interpreters")
def test_models_of_torchvision_without_torchvision(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    files = []
    for name in MODELS:
        torch.manual_seed(0)
        model, example = getattr(vision_models(), name)(num_classes=10), torch.randn(2, 3, 64, 64)
        for mode in MODES:
            files.append(tmp_path / f"{name}-{mode}.qfx")
            write_case(files[-1], model, (example,), {}, mode)
    torch.set_num_threads(before)
    found = compared(files)
    assert [Path(entry["file"]) for entry in found] == files
    assert {entry["outcome"] for entry in found} <= {"equal", "close"}, found
    assert all(entry["values"] and entry["gradients"] for entry in found)


@pytest.mark.usefixtures("forked_interpreters")
def test_a_wrong_result_is_found(tmp_path: Path) -> None:
    """The comparison itself: with other contents of a weight, a case is wrong."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    files = []
    for kind in ("values", "gradients", "buffers"):
        files.append(tmp_path / f"{kind}.qfx")
        write_case(files[-1], model, (torch.randn(3, 4),), {}, "training")
        wanted = torch.load(files[-1].with_suffix(".pt"))
        first = next(t for t in wanted[kind].values() if t.is_floating_point())
        first.view(-1)[0] += 0.01
        torch.save(wanted, files[-1].with_suffix(".pt"))
    files.append(tmp_path / "nothing.qfx")
    assert [entry["outcome"] for entry in compared(files)] == ["wrong", "wrong", "wrong", "error"]


def test_distances() -> None:
    x = torch.tensor([1.0, float("nan"), float("inf"), -2.0])
    assert distance_of(x, x.clone()) == 0 == distance_of(None, None)
    assert distance_of(x + torch.tensor([0.0, 0, 0, 0.5]), x) == pytest.approx(0.25)
    for other in (None, x.double(), x[:3], x.nan_to_num(), -x):
        assert distance_of(other, x) == float("inf")
    assert distance_of(torch.tensor([1, 2]), torch.tensor([1, 3])) == float("inf")
