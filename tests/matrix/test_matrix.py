"""A fixed sample of the combinations: `run.py` runs as many as one has time for."""

from __future__ import annotations

import itertools

import pytest

import quickfuse
from quickfuse import config

from .combinations import Combination, combinations, difference, drawn

#: How many in all, and in each test.
_SAMPLE, _EACH = 480, 40


def _sample() -> list[list[Combination]]:
    chosen = list(itertools.islice(drawn(2026), _SAMPLE))
    return [chosen[k : k + _EACH] for k in range(0, _SAMPLE, _EACH)]


@pytest.mark.parametrize("chosen", _sample(), ids=range(_SAMPLE // _EACH))
def test_as_in_eager(chosen: list[Combination], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "raise_internal_errors", False)
    differences = {str(c): text for c in chosen if (text := difference(c))}
    quickfuse.reset()
    assert not differences


def test_there_are_enough() -> None:
    assert sum(1 for _ in itertools.islice(combinations(), 20_001)) > 20_000
