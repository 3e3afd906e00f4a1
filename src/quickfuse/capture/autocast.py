"""`torch.autocast`: what PyTorch's own context managers, which are Python and captured as such, come down to.

The captured program has an autocast state of its own. Nodes bring the running graph to it, in the program's order and
only in front of an operator; what no operator came after is done when the segment ends. Results are found out with
PyTorch's settings as the program has them at that place, so that their types are what autocast makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..errors import Unsupported
from ..ir.modes import AUTOCAST_DEVICES, leave_autocast

if TYPE_CHECKING:
    from .graph import GraphBuilder
    from .interpreter import Interpreter


class Autocast:
    """The autocast state of the captured program: `settings` has what differs from the process's own."""

    def __init__(self) -> None:
        self.settings: dict[tuple[Any, ...], Any] = {}
        #: Calls that bring PyTorch to this state, for which no node was made yet.
        self.pending: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        #: Whether an operator ran while some device was set to autocast, and whether one was when the segment began.
        self.was_active = False
        self.began_active = torch._C._is_any_autocast_enabled()
        self._around = self._any_enabled()

    def get(self, *question: Any) -> Any:
        """A setting: ("enabled", device), ("dtype", device) or ("cache",)."""
        return self.settings[question] if question in self.settings else _GETTERS[question[0]](*question[1:])

    def set(self, value: Any, *question: Any) -> None:
        self.settings[question] = value
        self.pending.append((_SETTERS[question[0]], (*question[1:], value)))

    @property
    def is_active(self) -> bool:
        return self._any_enabled() if self.settings else self._around

    def _any_enabled(self) -> bool:
        return any(self.get("enabled", device) for device in AUTOCAST_DEVICES)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """PyTorch's own state is that of the captured program meanwhile."""
        before = {question: _GETTERS[question[0]](*question[1:]) for question in self.settings}
        try:
            for question, value in self.settings.items():
                _SETTERS[question[0]](*question[1:], value)
            yield
        finally:
            for question, value in before.items():
                _SETTERS[question[0]](*question[1:], value)
            if self.settings and not torch._C._is_any_autocast_enabled():
                torch.clear_autocast_cache()

    def sync(self, graph: GraphBuilder) -> None:
        """Make nodes of what is pending: an operator comes next."""
        for function, arguments in self.pending:
            graph.mode_node(function, arguments)
        self.pending.clear()
        self.was_active |= self.is_active


_GETTERS: dict[str, Callable[..., Any]] = {
    "enabled": torch.is_autocast_enabled,
    "dtype": torch.get_autocast_dtype,
    "cache": torch.is_autocast_cache_enabled,
}
_SETTERS: dict[str, Callable[..., Any]] = {
    "enabled": torch.set_autocast_enabled,
    "dtype": torch.set_autocast_dtype,
    "cache": torch.set_autocast_cache_enabled,
}


def guard_surroundings(guard: Callable[..., None]) -> None:
    """A segment that begins where autocast is on holds for the same settings."""
    if not torch._C._is_any_autocast_enabled():
        return
    for device in AUTOCAST_DEVICES:
        guard("state", None, (f"torch.is_autocast_enabled({device!r})", torch.is_autocast_enabled(device)))
        guard("state", None, (f"torch.get_autocast_dtype({device!r})", torch.get_autocast_dtype(device)))
    guard("state", None, ("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled()))
    if not any(torch.is_autocast_enabled(device) for device in AUTOCAST_DEVICES):
        raise Unsupported("autocast for another device than the CPU or a CUDA GPU")


def _device(i: Interpreter, device: Any) -> str:
    if device not in AUTOCAST_DEVICES:
        raise Unsupported(f"autocast for the device {device}")
    return str(device)


def _is_enabled(i: Interpreter, device: Any = "cuda") -> bool:
    return bool(i.graph.autocast.get("enabled", _device(i, device)))  # the segment's surroundings are guarded


def _dtype(i: Interpreter, device: Any) -> torch.dtype:
    if ("dtype", _device(i, device)) not in i.graph.autocast.settings:
        i.outside.guard("state", None, (f"torch.get_autocast_dtype({device!r})", torch.get_autocast_dtype(device)))
    return i.graph.autocast.get("dtype", device)  # type: ignore[no-any-return]


def _is_cache_enabled(i: Interpreter) -> bool:
    if ("cache",) not in i.graph.autocast.settings:
        i.outside.guard("state", None, ("torch.is_autocast_cache_enabled()", torch.is_autocast_cache_enabled()))
    return i.graph.autocast.get("cache")  # type: ignore[no-any-return]


def _enable(i: Interpreter, device: Any, enabled: Any) -> None:
    i.graph.autocast.set(i.truth(enabled), "enabled", _device(i, device))


def _set_dtype(i: Interpreter, device: Any, dtype: Any) -> None:
    i.graph.autocast.set(dtype, "dtype", _device(i, device))


def _enable_cache(i: Interpreter, enabled: Any) -> None:
    i.graph.autocast.set(i.truth(enabled), "cache")


def _enter(i: Interpreter) -> int:
    i.graph.autocast.pending.append((torch.autocast_increment_nesting, ()))
    return 1


def _leave(i: Interpreter) -> int:
    """PyTorch empties the cache of converted weights if nothing is nested any more: the node does both."""
    i.graph.autocast.pending.append((leave_autocast, ()))
    return 1


def _clear_cache(i: Interpreter) -> None:
    i.graph.autocast.pending.append((torch.clear_autocast_cache, ()))


def _is_any_enabled(i: Interpreter) -> bool:
    return i.graph.autocast.is_active


def _is_available(i: Interpreter, device: Any) -> bool:
    return torch.amp.is_autocast_available(_device(i, device))


HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.is_autocast_enabled: _is_enabled,
    torch.get_autocast_dtype: _dtype,
    torch.is_autocast_cache_enabled: _is_cache_enabled,
    torch.set_autocast_enabled: _enable,
    torch.set_autocast_dtype: _set_dtype,
    torch.set_autocast_cache_enabled: _enable_cache,
    torch.autocast_increment_nesting: _enter,
    torch.autocast_decrement_nesting: _leave,
    torch.clear_autocast_cache: _clear_cache,
    torch._C._is_any_autocast_enabled: _is_any_enabled,
    torch.amp.is_autocast_available: _is_available,
    torch.cuda.amp.common.amp_definitely_not_available: lambda i: torch.cuda.amp.common.amp_definitely_not_available(),
    torch.cuda.is_bf16_supported: lambda i: torch.cuda.is_bf16_supported(),
    torch._C._is_torch_function_mode_enabled: lambda i: False,
}
