"""Random training programs in which something changes between calls, against eager. `run.py` makes the long runs."""

from __future__ import annotations

import pytest

import turns
from lives.check import check
from lives.generate import program

SEEDS = range(32)


@pytest.mark.skipif(turns.IS_ON, reason="a call that runs in plain Python is one that compiles nothing")
@pytest.mark.parametrize("seed", SEEDS)
def test_life(seed: int) -> None:
    """All that can be seen after each call and event is eager's, and nothing is compiled again without need."""
    source = program(seed, turns=3).source
    report = check(source)
    if report.kind not in ("right", "invalid"):
        pytest.fail(f"{report.kind}: {report.text}\n\n{source}", pytrace=False)


def test_a_seed_is_a_program() -> None:
    """The same seed gives the same source, or a report of a failure would be worth nothing."""
    assert program(7).source == program(7).source


def test_variety() -> None:
    """Events, other batches and surroundings of all kinds occur in a few hundred programs."""
    features = frozenset().union(*(program(seed).features for seed in range(600)))
    for feature in ("eval", "weights tied", "model copied", "spectral norm", "tensor hook", "a hook that stops", "thread",
                    "shorter", "mislabelled", "pruned", "learning rate", "reset", "adversarial",
                    "second_order", "adapter", "adapters merged", "schedule steps often", "module pushed", "momentum",
                    "a hook that removes itself", "raising", "mixed", "functional", "closures", "stacked",
                    "interrupted", "loaders", "objects", "callbacks", "stateful", "several_tasks", "own_optimizers",
                    "wrapped", "ensembles", "late",
                    "message_passing", "experts", "fitting", "actor_critic", "diffusion", "trunk", "scores",
                    "stateless"):  # fmt: skip
        assert feature in features


LIFE = """
import torch
from torch import nn


def life(compile, seen, reset):
    model = nn.Linear(4, 4)
    step = compile(lambda x: model(x).sum())
    seen.watch(lambda: dict(model=model))
    for _ in range(3):
        with seen("step", call=True):
            seen(step(torch.ones(2, 4)))
    with seen("event"{quiet}):
        {event}
    with seen("step", call=True):
        seen(step(torch.ones(2, 4)))
"""


@pytest.mark.parametrize(
    ("event", "quiet", "kind"),
    [("model.weight.data.mul_(2)", True, "right"), ("model.double()", True, "right"), ("model.half()", False, "right"),
     ("model.weight.requires_grad_(False)", False, "right"), ("model.weight.requires_grad_(False)", True, "recompiles")],
)  # fmt: skip
def test_finds_recompilations(event: str, quiet: bool, kind: str) -> None:
    assert check(LIFE.format(event=event, quiet=", quiet=True" * quiet)).kind == kind


@pytest.mark.parametrize("change", ["sum() * (1 + 1e-6)", "sum().detach()", "sum() + len(model(x).chunk(9)) / 0"])
def test_finds_a_difference(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A compiler that is slightly wrong does not pass."""
    from lives import check as checks
    from lives.execute import execute

    source = LIFE.format(event="pass", quiet="")
    monkeypatch.setattr(checks, "_compiled", lambda *_: execute(source.replace("sum()", change)))
    assert checks.check(source).kind in ("wrong", "exception")
