"""One thread or several for reading scattered memory: what was faster of late, and never long what has become slower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quickfuse.launch import thread_choice
from quickfuse.launch.thread_choice import ThreadChoice


class Clock:
    """A scan whose duration depends on the number of threads, and a clock that only it moves."""

    def __init__(self, one: int, several: int) -> None:
        self.now, self.one, self.several = 0, one, several
        self.block = [0, 0]
        self.used: list[int] = []

    def scan(self, held: Any) -> Any:
        assert self.block[0] == self.block[1]
        self.used.append(self.block[0])
        self.now += self.one if self.block[0] == 1 else self.several
        return held


def make(monkeypatch: pytest.MonkeyPatch, one: int, several: int) -> tuple[Clock, ThreadChoice]:
    clock = Clock(one, several)
    monkeypatch.setattr(thread_choice, "perf_counter_ns", lambda: clock.now)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    return clock, ThreadChoice(clock.scan, clock.block, (0, 1))


def test_several_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, choice = make(monkeypatch, 100, 30)
    for _ in range(200):
        assert choice("held") == "held"
    assert clock.used[:64] == [1] * 64
    assert clock.used[-50:] == [8] * 50


def test_one_where_several_gain_little(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, choice = make(monkeypatch, 100, 90)
    for _ in range(300):
        choice("held")
    assert 0 < clock.used.count(8) < 20


def test_several_that_become_slow_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, choice = make(monkeypatch, 100, 30)
    for _ in range(200):
        choice("held")
    clock.several = 50_000
    for _ in range(20):
        choice("held")
    assert clock.used[-19:] == [1] * 19


def test_several_that_are_much_slower_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, choice = make(monkeypatch, 100, 50_000)
    for _ in range(200):
        choice("held")
    assert clock.used.count(8) == 1


def test_what_changed_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, choice = make(monkeypatch, 100, 30)
    for _ in range(200):
        assert choice(None) is None
    assert 8 not in clock.used
