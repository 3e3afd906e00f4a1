"""One thread or PyTorch's pool for a native function that reads many scattered objects: whichever was faster of late.

Such a function waits for memory. Several threads wait at the same time, and what each reads stays in its own cache from
call to call; but they have to be woken, and on a machine with other work they may not come at once. So both are timed now
and then.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch

#: Calls of each kind that are timed in a row, the first of which do not count: they wake threads and fill caches.
_TIMED, _NOT_COUNTED = 6, 2
#: Calls after which both are timed again, at first and at most.
_FIRST_WAIT, _LONGEST_WAIT = 64, 512
#: How much faster several threads have to be: they take time from others.
_WORTH = 0.8
#: Several threads are given up at once when they have lost the time of so many calls with one.
_MOST_LOST = 4


class ThreadChoice:
    """Calls `scan` with a number of threads that it writes into some words of a block, before each call.

    Calls that give None are not timed.
    """

    def __init__(self, scan: Callable[[Any], Any], block: Any, words: tuple[int, ...]) -> None:
        self._scan = scan
        self._block = block
        self._words = words
        self.several = False
        self._wait = self._left = _FIRST_WAIT
        self._times: list[int] = []
        self._one = 0  # nanoseconds that a call with one thread takes
        self._won = 0  # nanoseconds that several threads have won, at most those that they may lose

    def __call__(self, held: Any) -> Any:
        if self._left <= 0:
            return self._timed(held)
        self._left -= 1
        if not self.several:
            self._set_threads(1)
            return self._scan(held)
        self._set_threads(torch.get_num_threads())
        began = perf_counter_ns()
        found = self._scan(held)
        self._won = min(self._won + self._one - (perf_counter_ns() - began), _MOST_LOST * self._one)
        if self._won < 0:
            self._choose(False)
        return found

    def _timed(self, held: Any) -> Any:
        several = len(self._times) >= _TIMED
        self._set_threads(torch.get_num_threads() if several else 1)
        began = perf_counter_ns()
        found = self._scan(held)
        if found is None:
            return None
        self._times.append(perf_counter_ns() - began)
        if len(self._times) == 2 * _TIMED:
            one, all_threads = sum(self._times[_NOT_COUNTED:_TIMED]), sum(self._times[_TIMED + _NOT_COUNTED :])
            self._one = one // (_TIMED - _NOT_COUNTED)
            self._choose(all_threads < _WORTH * one)
        elif several and self._times[-1] > 4 * _MOST_LOST * max(self._times[:_TIMED]):  # other programs have the processors
            self._choose(False)
        return found

    def _choose(self, several: bool) -> None:
        self.several = several
        self._times.clear()
        self._won = _MOST_LOST * self._one
        self._left = self._wait = min(4 * self._wait, _LONGEST_WAIT)

    def _set_threads(self, threads: int) -> None:
        for word in self._words:
            self._block[word] = threads
