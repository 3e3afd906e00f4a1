"""What quickfuse says, and when: `QUICKFUSE_LOGS=recompiles,graph_breaks` or `quickfuse.set_logs(recompiles=True)`.

Channels: `recompiles` (a guard failed and why), `graph_breaks` (what runs natively and why), `guards`, `graph`,
`joint` (the forward and backward graphs), `loops` (the lowered program), `segments` (the generated Python), `kernels`
(the generated LLVM IR and Triton code).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

CHANNELS = ("recompiles", "graph_breaks", "guards", "graph", "joint", "loops", "segments", "kernels")

log = logging.getLogger("quickfuse")

#: Seconds spent by each stage of compilation since the last `reset_stage_seconds()`, in this process. No time counts twice.
stage_seconds: dict[str, float] = {}

#: What stages are timed by: a benchmark on a busy machine takes the thread's processor time.
clock: Callable[[], float] = time.perf_counter

#: The seconds of the stages within each stage that a thread is in.
_within = threading.local()

#: What compilation has made so far in this process: `distinct kernels`, `kernel launches` and `operator calls`.
counts: dict[str, int] = {}

_enabled: set[str] = set()


def set_logs(*names: object, **channels: bool) -> None:
    """Turn channels on or off: `set_logs(recompiles=True, graph=False)`.

    Raises:
        ValueError: for an unknown channel; the message names the known ones.
        TypeError: for a channel that is not given by its name.
    """
    if names:
        raise TypeError(f"a channel is turned on by its name: set_logs({CHANNELS[0]}=True), not set_logs({names[0]!r})")
    for name, on in channels.items():
        if name not in CHANNELS:
            raise ValueError(f"unknown log channel {name!r}; the channels are {', '.join(CHANNELS)}")
        (_enabled.add if on else _enabled.discard)(name)
    if _enabled and not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[quickfuse] %(message)s"))
        log.addHandler(handler)
        log.propagate = False


def enabled(channel: str) -> bool:
    return channel in _enabled


def emit(channel: str, message: str) -> None:
    """Log `message` if its channel is on."""
    if channel in _enabled:
        log.warning("[%s] %s", channel, message)


def count(name: str, more: int = 1) -> None:
    """Add to one of the `counts`."""
    counts[name] = counts.get(name, 0) + more


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Account the time spent inside to a stage of compilation, but for that of stages within it."""
    inner: list[float] = _within.__dict__.setdefault("seconds", [])
    inner.append(0.0)
    start = clock()
    try:
        yield
    finally:
        spent = clock() - start
        stage_seconds[name] = stage_seconds.get(name, 0.0) + spent - inner.pop()
        if inner:
            inner[-1] += spent


def reset_stage_seconds() -> None:
    stage_seconds.clear()


def _read_environment() -> None:
    names = [name.strip() for name in os.environ.get("QUICKFUSE_LOGS", "").split(",") if name.strip()]
    unknown = [name for name in names if name not in CHANNELS]
    if unknown:
        log.warning("QUICKFUSE_LOGS: unknown channels %s; known are %s", ", ".join(unknown), ", ".join(CHANNELS))
    set_logs(**{name: True for name in names if name in CHANNELS})


_read_environment()
