"""What a call costs the thread that makes it, for benchmarks that take turns with eager."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def seconds(call: Callable[[], Any], times: int) -> float:
    """Seconds of processor time a call, without garbage collection."""
    gc.disable()
    begun = time.thread_time()
    for _ in range(times):
        call()
    took = time.thread_time() - begun
    gc.enable()
    return took / times
