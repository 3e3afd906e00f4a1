"""Random whole training steps, compiled as one function, against eager. `run.py` makes the long runs."""

from __future__ import annotations

import pytest

from training.check import check
from training.execute import Program, Run, execute
from training.generate import program

SEEDS = range(100)


@pytest.mark.parametrize("seed", SEEDS)
def test_step(seed: int) -> None:
    """Loss, parameters, gradients, buffers, optimizer state and averages are eager's after each of three steps."""
    source = program(seed).source
    finding = check(Program.from_source(source)).finding
    if finding is not None:
        pytest.fail(f"{finding}\n\n{source}", pytrace=False)


def test_a_seed_is_a_program() -> None:
    """The same seed gives the same source, or a report of a failure would be worth nothing."""
    assert program(7).source == program(7).source


def test_variety() -> None:
    """What training steps are made of occurs in a few hundred of them."""
    programs = [program(seed) for seed in range(400)]
    features = frozenset().union(*(p.features for p in programs))
    for kind, count in {
        "norm": 24,
        "tokens": 24,
        "images": 9,
        "rows": 12,
        "loss": 34,
        "optimizer": 15,
        "clipping": 9,
    }.items():
        found = {f for f in features if f.startswith(f"{kind}-")}
        assert len(found) >= count, f"{kind}: {len(found)}, {sorted(found)}"


WRONG = """
import torch
from torch import nn

DTYPE = torch.{dtype}
AUTOCAST = False


def setup(dtype):
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(dtype)

    def step(x):
        model.zero_grad()
        loss = model(x).pow(2).mean() * {factor}
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
        return loss.detach()

    return step, [(torch.randn(2, 4).to(dtype),)] * 3, dict(model=model)
"""


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-6), ("float32", 1e-4)])
def test_finds_a_difference(monkeypatch: pytest.MonkeyPatch, dtype: str, off: float) -> None:
    """A compiler that gets a gradient slightly wrong does not pass."""

    def wrong(program: Program, report: object) -> Run:
        return execute(Program.from_source(WRONG.format(dtype=dtype, factor=1 + off)))

    monkeypatch.setattr("training.check._run_compiled", wrong)
    found = check(Program.from_source(WRONG.format(dtype=dtype, factor=1))).finding
    assert found is not None and found.kind == "wrong"
