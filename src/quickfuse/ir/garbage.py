"""Python's garbage collector, while something is compiled."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collected_later() -> Iterator[None]:
    """Compiling makes many objects and no garbage: collecting would take a third of the time."""
    collecting = gc.isenabled()
    try:  # a signal may be handled after any call
        gc.disable()
        yield
    finally:
        if collecting:
            gc.enable()
