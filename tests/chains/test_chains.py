"""Random chains of operators, against eager. `run.py` makes the long runs."""

from __future__ import annotations

import pytest

from chains.generate import program
from chains.judge import check
from gpu_shadow import shadowed
from lives import check as checks
from lives.execute import execute

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_chain(seed: int) -> None:
    """All that can be seen after each call is eager's."""
    source = program(seed).source
    report = check(source)
    if report.kind not in ("right", "invalid"):
        pytest.fail(f"{report.kind}: {report.text}\n\n{source}", pytrace=False)


@pytest.mark.parametrize("seed", [3, 11, 19, 27, 35, 3100223, 4, 12, 20, 75020022])
def test_chain_on_a_gpu_beside(seed: int) -> None:
    """What is compiled can be lowered for a GPU, too, and means the same there. Of 3100223 a stack read past its operand,
    and of 75020022 a gradient was stored to memory of which elements share places."""
    found: list[str] = []
    with shadowed(found):
        check(program(seed).source)
    assert not found, found[0]


def test_a_seed_is_a_program() -> None:
    """The same seed gives the same source, or a report of a failure would be worth nothing."""
    assert program(7).source == program(7).source


PROGRAM = """
from chains.prelude import *


def chain(x):
    y = x.sin()
    return [y, x[1:], y.mul_(2)]


def life(compile, seen, reset):
    step = compile(chain)
    held = {}
    seen.watch(lambda: held)
    with seen("call 0", call=True):
        x = drawn((3, 4), torch.float32, 1, "strided", True)
        found = step(x)
        pass
        backward(found)
        held.update(inputs=[x], results=found, same=same(found, [x]))
"""


@pytest.mark.parametrize(
    "change",
    ["x.data[0].add_(1)", "found[1] = found[1].clone()", "found[0] = found[0].mT.contiguous().mT",
     "found[2] = found[2].detach()", "found[0] = found[2].view_as(x)", "raise ValueError"],
)  # fmt: skip
def test_finds_a_difference(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A compiler that is slightly wrong does not pass."""
    monkeypatch.setattr(checks, "_compiled", lambda *_: execute(PROGRAM.replace("pass", change)))
    assert check(PROGRAM).kind in ("wrong", "exception")
