"""Which of this folder's tests do not hold yet. The table is to become empty, and this file to go.

A pattern must match a test's whole name, its case in brackets included; the first that does counts. The marks are
strict: a test that begins to hold fails the suite until its line is gone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

OPEN: dict[str, str] = {
    # test_step_extras.py
    r"test_(closure_with_backward|whole_training_step)\[whole\]": "backward() inside the compiled function",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            reason = next((reason for pattern, reason in OPEN.items() if re.fullmatch(pattern, item.name)), None)
            if reason is not None:
                item.add_marker(pytest.mark.xfail(strict=True, reason=reason))
