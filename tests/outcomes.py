"""A plugin of pytest that writes down each test's outcome as soon as it is known, and leaves out the tests that are done.

`tests/all_versions.py` loads it. The variable `TEST_OUTCOMES` names a folder: `done.txt` there lists the tests to leave out,
`collected.txt` gets all tests that were found, and `outcomes.jsonl` a line for each test that ran.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("TEST_OUTCOMES", "."))
COMMIT = os.environ.get("TEST_COMMIT", "")


class Outcomes:
    """What is known so far of the tests that run now: the worst outcome of setup, call and teardown."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome, seconds = self.running.get(report.nodeid, ("passed", 0.0))
        if report.outcome == "failed" or outcome == "passed":
            outcome = report.outcome
        self.running[report.nodeid] = outcome, seconds + report.duration
        if report.when not in ("setup", "call"):  # a crashed worker of xdist reports something else
            self._write(report.nodeid)

    def _write(self, test: str) -> None:
        outcome, seconds = self.running.pop(test)
        line = {"test": test, "outcome": outcome, "seconds": round(seconds, 2), "commit": COMMIT}
        with (FOLDER / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist hand their reports on
        config.pluginmanager.register(Outcomes(), "outcomes of tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    worker = getattr(config, "workerinput", {}).get("workerid", "gw0")
    if worker == "gw0":
        (FOLDER / "collected.txt").write_text("".join(f"{item.nodeid}\n" for item in items))
    path = FOLDER / "done.txt"
    done = set(path.read_text().splitlines()) if path.exists() else set()
    left_out = [item for item in items if item.nodeid in done]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid not in done]
