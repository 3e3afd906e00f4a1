"""Small programs around `optimizer.step()`, run compiled on one side and by eager PyTorch on an equal other side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from optim.step_twins import EXACT, SHAPES, check_optimizers, compile_step, compiled_count, difference

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "AdamW-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
}
adam = OPTIMIZERS["Adam"]


class Side:
    """Parameters, an optimizer over them, and whatever else a program keeps in `seen`."""

    def __init__(self, make: Make) -> None:
        generator = torch.Generator().manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
        self.optimizer = make(self.parameters)
        self.seen: list[Any] = []


def fresh_gradients(side: Side, step: int, missing: Any = ()) -> None:
    generator = torch.Generator().manual_seed(100 + step)
    for k, parameter in enumerate(side.parameters):
        gradient = torch.randn(parameter.shape, generator=generator)
        parameter.grad = None if k in missing else gradient


Program = Callable[[Side], Callable[[], Any]]


def lockstep(
    program: Program, make: Make = adam, steps: int = 5, most: int = 2,
    least: int = 1, before: Callable[[Side, int], None] = fresh_gradients, **settings: Any,
) -> tuple[Side, Side, Any]:  # fmt: skip
    """Run a program compiled and in eager; `before` each call both sides are prepared outside compiled code.

    From `least` to `most` graphs, where the program must be one graph (`fullgraph`, unless it says otherwise).
    """
    mine, theirs = Side(make), Side(make)
    compiled, eager = compile_step(program(mine), **settings), program(theirs)
    for step in range(steps):
        before(mine, step)
        before(theirs, step)
        expected, found = eager(), compiled()
        assert not (problem := difference(found, expected, EXACT, f"step {step}: the result")), problem
        check_sides(mine, theirs, step)
    count = compiled_count(compiled)
    whole = settings.get("fullgraph", True)
    assert not whole or least <= count <= most, f"{count} specialisations, expected {least} to {most}"
    return mine, theirs, compiled


def check_sides(mine: Side, theirs: Side, step: int = -1) -> None:
    for name in ("parameters", "seen"):
        problem = difference(getattr(mine, name), getattr(theirs, name), EXACT, f"step {step}: {name}")
        assert not problem, problem
    for a, b in zip(mine.parameters, theirs.parameters, strict=True):
        assert not (problem := difference(a.grad, b.grad, EXACT, f"step {step}: a gradient")), problem
    check_optimizers(mine.optimizer, theirs.optimizer)


def just_step(side: Side) -> Callable[[], Any]:
    return lambda: side.optimizer.step()
