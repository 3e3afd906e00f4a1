"""Every test starts without compiled state, with our own internal errors raised, not logged, and with schedules verified."""

from __future__ import annotations

import pytest
import torch

import quickfuse
import turns


@pytest.fixture(autouse=True)
def clean_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", True)
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", turns.IS_ON)  # else what is compiled stays so
    monkeypatch.setattr(quickfuse.config, "verify", True)
    quickfuse.reset()
    torch.manual_seed(0)
    yield
    quickfuse.set_logs(**dict.fromkeys(quickfuse.logs.CHANNELS, False))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # not keywords: names of folders are among them
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
