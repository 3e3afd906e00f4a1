"""Functions run as suspended frames, in every way that the driver knows, against the same functions run natively."""

from __future__ import annotations

import random
import sys

import pytest

from drive.frame_harness import FINISH, PERFORM, Outcome, begin, observe, run
from drive.subjects import SUBJECTS
from quickfuse.drive.program import program_of
from quickfuse.ir.frame import FrameState

CASES = [pytest.param(f, make, id=f"{f.__name__}-{k}") for k, (f, make) in enumerate(SUBJECTS)]


def expect_same(got: Outcome, native: Outcome, how: str) -> None:
    assert str(got) == str(native), how


def native_outcome(function, make) -> Outcome:
    return observe(function, make)


@pytest.mark.parametrize(("function", "make"), CASES)
def test_every_instruction_performed(function, make):
    expected = native_outcome(function, make)
    got = observe(lambda *args: run(begin(function, args), lambda step, frames: PERFORM), make)
    expect_same(got, expected, "performed")
    assert sys.exc_info()[1] is None


@pytest.mark.parametrize(("function", "make"), CASES)
def test_every_instruction_performed_with_calls_as_frames(function, make):
    expected = native_outcome(function, make)
    got = observe(lambda *args: run(begin(function, args), lambda step, frames: PERFORM, inline=".py"), make)
    expect_same(got, expected, "performed, with calls as frames")


@pytest.mark.parametrize("inline", ["", "subjects.py"], ids=["", "calls as frames"])
@pytest.mark.parametrize(("function", "make"), CASES)
def test_finished_natively_after_any_number_of_steps(function, make, inline):
    expected = native_outcome(function, make)
    for steps in range(1000):
        went_on = False

        def policy(step: int, frames: list[FrameState], steps: int = steps) -> str:
            nonlocal went_on
            went_on = went_on or step == steps
            return FINISH if step == steps else PERFORM

        got = observe(lambda *args: run(begin(function, args), policy, inline), make)  # noqa: B023
        expect_same(got, expected, f"finished after {steps} steps")
        if not went_on:
            break
    else:
        raise AssertionError("too many steps")


@pytest.mark.parametrize(("function", "make"), CASES)
def test_native_stretches(function, make):
    """Natively from any instruction to some other one, several times in a run."""
    expected = native_outcome(function, make)
    chance = random.Random(function.__name__)
    for attempt in range(30):
        density = chance.choice([0.05, 0.2, 0.6])
        taken = []

        def policy(step: int, frames: list[FrameState]) -> str | int:
            if chance.random() > density:  # noqa: B023
                return PERFORM
            frame = frames[-1]
            end = chance.randrange(len(program_of(frame.code).units))
            taken.append((step, frame.position, end))  # noqa: B023
            return end

        got = observe(lambda *args: run(begin(function, args), policy, inline=".py" if attempt % 2 else ""), make)  # noqa: B023
        expect_same(got, expected, f"native stretches {taken}")
