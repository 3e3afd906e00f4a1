"""What a call costs the thread that makes it, for benchmarks that take turns with eager."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

ROUNDS, TURN = 15, 0.02


def seconds(call: Callable[[], Any], times: int) -> float:
    """Seconds of processor time a call, without garbage collection."""
    gc.disable()
    begun = time.thread_time()
    for _ in range(times):
        call()
    took = time.thread_time() - begun
    gc.enable()
    return took / times


def interleaved(turns: list[Callable[[], Any]]) -> list[list[float]]:
    """Microseconds of a turn, of each several times, by turns."""
    times = max(1, round(TURN / max(min(seconds(turn, 3) for turn in turns), 1e-6)))
    found: list[list[float]] = [[] for _ in turns]
    for _ in range(ROUNDS):
        for turn, mine in zip(turns, found, strict=True):
            turn()
            mine.append(1e6 * seconds(turn, times))
    return found
