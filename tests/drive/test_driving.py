"""Functions run as suspended frames, in every way that the driver knows, against the same functions run natively."""

from __future__ import annotations

import gc
import random
import sys

import pytest

from drive.frame_harness import FINISH, PERFORM, begin, observe, run
from drive.subjects import SUBJECTS
from quickfuse.drive.program import program_of
from quickfuse.ir.frame import FrameState


@pytest.fixture(autouse=True, scope="module")
def garbage_of_other_tests():
    """What a destructor of theirs prints would be taken for output of a function that runs here."""
    gc.collect()


CASES = [pytest.param(f, make, id=f"{f.__name__}-{k}") for k, (f, make) in enumerate(SUBJECTS)]


def expect_same(function, make, policy, inline: str, handling: bool, how: str) -> None:
    expected = observe(function, make, handling)
    got = observe(lambda *args: run(begin(function, args), policy, inline), make, handling)
    assert str(got) == str(expected), how
    assert sys.exc_info()[1] is None


@pytest.mark.parametrize(("function", "make"), CASES)
def test_every_instruction_performed(function, make):
    for inline in ("", ".py"):
        for handling in (False, True):
            how = f"calls as frames: {bool(inline)}, in a handler: {handling}"
            expect_same(function, make, lambda step, frames: PERFORM, inline, handling, how)


@pytest.mark.parametrize(("function", "make"), CASES)
def test_finished_natively_after_any_number_of_steps(function, make):
    for inline in ("", "subjects.py"):
        for steps in range(1000):
            went_on = False

            def policy(step: int, frames: list[FrameState], steps: int = steps) -> str:
                nonlocal went_on
                went_on = went_on or step == steps
                return FINISH if step == steps else PERFORM

            expect_same(function, make, policy, inline, steps % 3 == 2, f"finished after {steps} steps, {inline}")
            if not went_on:
                break
        else:
            raise AssertionError("too many steps")


@pytest.mark.parametrize(("function", "make"), CASES)
def test_native_regions(function, make):
    """Natively from any instruction to some other one, several times in a run."""
    chance = random.Random(function.__name__)
    for attempt in range(20):
        density = chance.choice([0.05, 0.2, 0.6])
        taken = []

        def policy(step: int, frames: list[FrameState]) -> str | int:
            if chance.random() > density:  # noqa: B023
                return PERFORM
            frame = frames[-1]
            end = chance.randrange(len(program_of(frame.code).units))
            taken.append((step, frame.position, end))  # noqa: B023
            return end

        inline = ".py" if attempt % 2 else ""
        expect_same(function, make, policy, inline, chance.random() < 0.5, f"native regions {taken}")
