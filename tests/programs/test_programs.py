"""Random programs, plain against compiled. `run.py` makes the long runs."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from programs.compare import compare, with_eager_backend
from programs.generate import ends, program
from programs.reduce import reduced
from programs.run import still_fails

PROGRAMS = 150
#: Programs cannot be shrunk by drawing other seeds; reduce.py deletes statements instead.
PHASES = (Phase.explicit, Phase.generate)


@given(st.integers(0, 2**32))
@settings(
    max_examples=PROGRAMS, deadline=None, derandomize=True, database=None, phases=PHASES,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_program(seed: int) -> None:
    """A random program does the same compiled."""
    source = program(random.Random(seed)).source
    difference = compare(source)
    if difference is not None:
        may_raise = not ends(source, may_raise=False)
        smaller = reduced(source, lambda text: still_fails(text, difference, with_eager_backend, may_raise), seconds=30)
        pytest.fail(f"seed {seed}: {difference}\n\n{smaller}\n\nreduced from\n\n{source}", pytrace=False)


def test_a_seed_is_a_program() -> None:
    """The same seed gives the same source, or a report of a difference would be worth nothing."""
    assert program(random.Random(5)).source == program(random.Random(5)).source


def test_variety() -> None:
    """Programs use what the language has: most features occur in a few hundred programs, breaks in most programs."""
    programs = [program(random.Random(seed)) for seed in range(120)]
    features = frozenset().union(*(p.features for p in programs))
    assert len(features) > 200
    assert sum(any(f.startswith("break-") for f in p.features) for p in programs) > 100
