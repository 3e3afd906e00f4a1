"""Every test starts without compiled state, with our own internal errors raised, not logged, and with schedules verified."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Generator
from pathlib import Path

# PyTorch's threads read it when they are loaded. Threads that wait busily for others, which have no core, take half the time
# of small tensors where tests run side by side.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests find kernels that others have compiled, also those that ran before: half of their time was LLVM's.
os.environ.setdefault("QUICKFUSE_CACHE_DIR", str(Path(__file__).parents[1] / "build" / "cache"))

import pytest
import torch

import forked
import quickfuse
import turns
from seeding import seed_torch

#: How many modules there were when the garbage collector was last told what stays, and how often it had looked at all.
_modules, _collections = len(sys.modules), 0


@pytest.fixture(autouse=True)
def clean_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quickfuse.config, "raise_internal_errors", True)
    monkeypatch.setattr(quickfuse.config, "measure_short_calls", turns.IS_ON)  # else what is compiled stays so
    monkeypatch.setattr(quickfuse.config, "verify", True)
    monkeypatch.setattr(quickfuse.config, "cuda_graph_launches", 0)  # else the small functions of tests would have none
    quickfuse.reset()
    if len(sys.modules) > _modules + 100 or _full_collections() > _collections + 10:
        _keep()  # what tests have imported since, and what is remembered of what they compiled
    seed_torch(0)
    yield
    quickfuse.set_logs(**dict.fromkeys(quickfuse.logs.CHANNELS, False))


@pytest.fixture
def forked_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that this test runs by `sys.executable` start with PyTorch imported."""
    monkeypatch.setattr(sys, "executable", forked.executable())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(20_000, 20, 20)  # instead of after each 700 objects, which takes a tenth of the time of small tests
        _keep()


def _keep() -> None:
    """What tests and libraries consist of is there to the end: to look through it takes half a second, and tests of what is
    let go of ask for hundreds of garbage collections."""
    global _modules, _collections
    gc.collect()
    gc.freeze()
    _modules, _collections = len(sys.modules), _full_collections()


def _full_collections() -> int:
    return gc.get_stats()[2]["collections"]


# Else what libraries have is not let go of in the end, of which some complain. Not before pytest's last garbage collections,
# which are five and take half a second each with what is frozen.
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu") is not None:  # not keywords: names of folders are among them
            item.add_marker(pytest.mark.skip(reason="no GPU on this machine"))
