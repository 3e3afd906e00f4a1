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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._device import DeviceContext

_count = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at
_pop, _push = torch._C._pop_torch_function_stack, torch._C._push_on_torch_function_stack
_ONCE: tuple[tuple[()], ...] = ((),)


class _Around(threading.local):
    #: The mode that was taken away in this thread, in a list, which is empty once it is back.
    away: Sequence[Any] = ()


_around = _Around()


def default_device() -> torch.device | None:
    """The device that the only mode around the call gives to new tensors; None without one, and where there are others."""
    if _count() != 1:
        return None
    mode: Any = _at(0)
    return mode.device if type(mode) is DeviceContext and mode.device.type in ("cpu", "cuda") else None


def device_around() -> torch.device | None:
    """The device of the mode that was taken away."""
    return _around.away[0].device if _around.away else None


def taken_away() -> tuple[list[Any], Iterator[Any], Iterator[Any]]:
    """A list; what takes the mode away as the list is extended by it; and what empties the list as it puts the mode back."""
    away: list[Any] = []
    return away, itertools.starmap(_pop, _ONCE), map(_push, map(away.pop, (-1,)))


def run_without(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs without the mode, of which `device_around()` tells."""

    @functools.wraps(run)
    def run_alone(*args: Any, **kwargs: Any) -> Any:
        if not _count() or default_device() is None:
            return run(*args, **kwargs)
        away, taking, giving = taken_away()
        before, _around.away = _around.away, away
        try:
            away.extend(taking)
            return run(*args, **kwargs)
        finally:
            if away:
                list(giving)
            _around.away = before

    return run_alone
