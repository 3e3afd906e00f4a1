"""`torch.set_default_device(...)` or `with torch.device(...)` around a call.

PyTorch has a mode for it that sees each call of a function, and gives those that make tensors the device. Compiled code
takes it away while it runs, since its own calls name their devices, and capture gives the program's calls that device. What
runs natively has the mode around it, as always.

A signal handler may raise after any call. So one call of a function in C takes the mode away and notes it, and one puts it
back.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._device import DeviceContext

_count = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at
_pop, _push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
_ONCE: tuple[tuple[()], ...] = ((),)


class _Around(threading.local):
    #: What the mode says that was taken away in this thread while something is captured and compiled.
    device: torch.device | None = None


_around = _Around()


def default_device() -> torch.device | None:
    """The device that the only mode around the call gives to new tensors; None without one, and where there are others."""
    if _count() != 1:
        return None
    mode: Any = _at(0)
    return mode.device if type(mode) is DeviceContext and mode.device.type in ("cpu", "cuda") else None


def device_around() -> torch.device | None:
    """The device of the mode that was taken away for capture."""
    return _around.device


def taken_away() -> tuple[list[Any], Iterator[Any], Iterator[Any]]:
    """A list; what takes the mode away as the list is extended by it; and what puts back what is in the list."""
    away: list[Any] = []
    return away, itertools.starmap(_pop, _ONCE), map(_push, away)


@contextmanager
def without_default_device() -> Iterator[None]:
    """Without the mode, of which `device_around()` tells."""
    device = default_device()
    if device is None:
        yield
        return
    before, (away, taking, giving) = _around.device, taken_away()
    try:
        away.extend(taking)
        _around.device = device
        yield
    finally:
        list(giving)
        _around.device = before


def run_without(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs without the mode."""

    @functools.wraps(run)
    def run_alone(*args: Any) -> Any:
        if not _count() or default_device() is None:
            return run(*args)
        away, taking, giving = taken_away()
        try:
            away.extend(taking)
            return run(*args)
        finally:
            list(giving)

    return run_alone
