"""Tests in which compiled functions turn to plain Python and back every few calls, as they may for users.

`QUICKFUSE_TEST_TURNS=1 pytest tests/changes` runs tests so; `python -m fragments.run` and the other runners heed it as well.
Programs make `CALLS_EACH` calls where they else make one.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import quickfuse
from quickfuse.pipeline import trials
from quickfuse.pipeline.compiled import Compiled

IS_ON = os.environ.get("QUICKFUSE_TEST_TURNS", "0") != "0"
CALLS_EACH = 5 if IS_ON else 1

#: Two compiled calls after one that captures, two in plain Python that are timed, then one that is not and two that take
#: too long: with an untimed one to each timed one that makes three.
_SETTINGS: dict[str, Any] = {
    "SETTLED_AFTER": 1, "ROUND": 1, "MEASURED": 2, "SHORT": float("inf"), "LONG": 0.0, "LONG_CALLS": 2, "UNTIMED": 1,
    "CHANCES": 1 << 30, "UNSETTLED_AFTER": 4, "RECENT": 4,
}  # fmt: skip


def take_turns() -> None:
    """From now on, in this process; also with backends that users have for other reasons than speed."""
    smaller = itertools.count(0, -1)
    for name, value in {**_SETTINGS, "_of_a_call": lambda seconds: next(smaller)}.items():
        setattr(trials, name, value)
    quickfuse.config.measure_short_calls = True
    Compiled._may_be_native = _may_be_native  # type: ignore[method-assign]


def _may_be_native(compiled: Compiled) -> bool:
    whole = compiled.settings.fullgraph
    return quickfuse.config.measure_short_calls and not whole and compiled._plain is not None and compiled._never is None


if IS_ON:
    take_turns()
