"""Taking turns."""

from __future__ import annotations

import gc

from quickfuse.bench.steady import CopyBandwidth, Timed, interleave


def _timed(name: str, log: list[str]) -> Timed:
    return Timed(lambda: log.append(name), (), lambda: None)


def test_variants_take_turns_in_every_round() -> None:
    log: list[str] = []
    timed = {name: _timed(name, log) for name in ("a", "b")}
    interleave(timed, seconds=0.01)
    log_of_turns = "".join(name for name, before in zip(log, [""] + log, strict=False) if name != before)
    rounds = len(timed["a"].rounds)
    assert rounds == len(timed["b"].rounds) >= 5
    assert log_of_turns.endswith("ab" * rounds)
    assert all(microseconds > 0 for one in timed.values() for microseconds in one.rounds)


def test_progress_ends_at_the_whole() -> None:
    fractions: list[float] = []
    interleave({"a": _timed("a", [])}, seconds=0.01, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_fast_function_is_called_many_times_a_turn_and_a_slow_one_once() -> None:
    fast = _timed("fast", [])
    fast.calibrate(turn=0.01)
    assert fast.calls > 100
    slow = Timed(lambda: sum(range(200_000)), (), lambda: None)
    slow.calibrate(turn=1e-6)
    assert slow.calls == 1


def test_the_device_is_waited_for_before_and_after_a_turn() -> None:
    log: list[str] = []
    Timed(lambda: log.append("call"), (), lambda: log.append("wait")).turn(3)
    assert log == ["wait", "call", "call", "call", "wait"]


def test_garbage_collection_is_off_during_a_turn_only() -> None:
    seen: list[bool] = []
    Timed(lambda: seen.append(gc.isenabled()), (), lambda: None).turn(1)
    assert seen == [False]
    assert gc.isenabled()


def test_copy_bandwidth_is_one_number_a_turn() -> None:
    bandwidth = CopyBandwidth("cpu")
    interleave({}, 0.01, bandwidth)
    assert len(bandwidth.rounds) >= 5
    assert all(rate > 0 for rate in bandwidth.rounds)
