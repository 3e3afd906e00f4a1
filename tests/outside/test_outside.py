"""Random programs around compiled functions, against eager. `run.py` makes the long runs."""

from __future__ import annotations

import pytest

from lives import check as checks
from lives.execute import execute
from outside.generate import program
from outside.judge import check

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_program(seed: int) -> None:
    """All that can be seen after each step is eager's, but for what the documents say."""
    source = program(seed).source
    report = check(source)
    if report.kind not in ("right", "invalid", "documented"):
        pytest.fail(f"{report.kind}: {report.text}\n\n{source}", pytrace=False)


def test_a_seed_is_a_program() -> None:
    """The same seed gives the same source, or a report of a failure would be worth nothing."""
    assert program(7).source == program(7).source


def test_variety() -> None:
    """All that may happen does, in a few hundred programs."""
    from outside.scripts import ACTIONS, BLOCKS

    features = frozenset().union(*(program(seed).features for seed in range(400)))
    assert {*ACTIONS, *BLOCKS, "module", "compiled twice", "compiled inside", "complex", "break", "dataclass"} <= features


PROGRAM = """
import torch
from outside.prelude import *


def life(compile, seen, reset):
    leaf, outs, notes = torch.ones(3, requires_grad=True), [], {}
    seen.watch(lambda: dict(leaf=leaf, outs=outs, notes=notes))
    with seen("call"):
        outs[:] = made = [leaf.tanh(), leaf.sin()]
        pass
    with seen("backward"):
        together(outs)
"""


@pytest.mark.parametrize(
    "change",
    ["with torch.no_grad(): made[0].mul_(1 + 1e-6)", "outs[0] = made[0].detach()", "outs.pop()",
     "made[0].register_hook(lambda g: g * 2)", "made[0].retain_grad()"],
)  # fmt: skip
def test_finds_a_difference(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A compiler that is slightly wrong does not pass."""
    monkeypatch.setattr(checks, "_compiled", lambda *_: execute(PROGRAM.replace("pass", change)))
    assert check(PROGRAM).kind == "wrong"
