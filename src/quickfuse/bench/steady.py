"""The steady state: variants take turns in one process, so that whatever else the machine does hits all alike."""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

#: Seconds that a variant runs when it is its turn: long enough for a clock's noise and a GPU's queue not to matter.
_TURN = 0.05
_FEWEST_ROUNDS = 5
_WARM_UP_CALLS = 5

#: Bytes of each of the two buffers of a copy: far more than any cache holds.
_COPY_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}


@dataclass
class Timed:
    """A function to be timed. `rounds`: microseconds per call, one number for each turn."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    synchronize: Callable[[], None]
    calls: int = 1
    rounds: list[float] = field(default_factory=list)

    def turn(self, calls: int) -> float:
        """The seconds that `calls` calls take in one go, including the device's work."""
        fn, args = self.fn, self.args
        self.synchronize()
        collecting = gc.isenabled()
        gc.disable()
        start = time.perf_counter()
        for _ in itertools.repeat(None, calls):
            fn(*args)
        self.synchronize()
        seconds = time.perf_counter() - start
        if collecting:
            gc.enable()
        return seconds

    def warm_up(self) -> None:
        for _ in range(_WARM_UP_CALLS):
            self.fn(*self.args)

    def calibrate(self, turn: float) -> float:
        """Choose how many calls fill a turn; returns the seconds of one."""
        calls, seconds = 1, self.turn(1)
        while seconds < turn / 2:
            calls = max(calls + 1, min(10 * calls, math.ceil(calls * turn / max(seconds, 1e-9))))
            seconds = self.turn(calls)
        self.calls = max(1, round(calls * turn / seconds))
        return seconds / calls


class CopyBandwidth:
    """Gigabytes per second of a large `dst.copy_(src)`, bytes read plus bytes written; one number for each turn."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.src = torch.ones(_COPY_BYTES[device], dtype=torch.uint8, device=device).view(torch.float32)
        self.dst = self.src.clone()
        self.rounds: list[float] = []

    def turn(self) -> None:
        copies = 20 if self.device == "cuda" else 1
        seconds = self._seconds_cuda(copies) if self.device == "cuda" else self._seconds_cpu(copies)
        self.rounds.append(2 * self.src.nbytes * copies / seconds / 1e9)

    def _seconds_cpu(self, copies: int) -> float:
        start = time.perf_counter()
        for _ in range(copies):
            self.dst.copy_(self.src)
        return time.perf_counter() - start

    def _seconds_cuda(self, copies: int) -> float:
        """Between events of the device, so that the host's calls do not count."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.dst.copy_(self.src)
        begin.record()
        for _ in range(copies):
            self.dst.copy_(self.src)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


def interleave(
    timed: dict[str, Timed],
    seconds: float,
    bandwidth: CopyBandwidth | None = None,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Fill `rounds` of all variants and of the copy, about `seconds` for each variant.

    Every turn starts with one call that is not timed: it brings the variant's code and data back to the caches.
    """
    turn = min(_TURN, seconds / _FEWEST_ROUNDS)
    slowest = max((one.calibrate(turn) for one in timed.values()), default=0.0)
    rounds = max(_FEWEST_ROUNDS, round(seconds / max(turn, slowest)))
    for number in range(rounds):
        for one in timed.values():
            one.fn(*one.args)
            one.rounds.append(one.turn(one.calls) / one.calls * 1e6)
        if bandwidth is not None:
            bandwidth.turn()
        progress((number + 1) / rounds)
