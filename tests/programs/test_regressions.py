"""Programs that were once wrong, as run.py printed them: each defines `program` and `arguments(call)`."""

from __future__ import annotations

import pytest

from programs.compare import compare

PROGRAMS: dict[str, str] = {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    """It does the same compiled."""
    assert compare(PROGRAMS[name]) is None
