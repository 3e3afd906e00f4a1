"""Settings of PyTorch that a graph may change while it runs: grad mode and autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: The devices whose autocast state is followed.
AUTOCAST_DEVICES = ("cpu", "cuda")


def leave_autocast() -> None:
    """The end of an autocast block: a node of graphs."""
    if torch.autocast_decrement_nesting() == 0:
        torch.clear_autocast_cache()


#: What nodes call that change a setting, and compute nothing.
MODE_CHANGES: frozenset[Any] = frozenset(
    {
        torch._C._set_grad_enabled, torch.set_autocast_enabled, torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled, torch.autocast_increment_nesting, leave_autocast, torch.clear_autocast_cache,
    }
)  # fmt: skip


def preserving_modes(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes settings, made to leave them as it found them where it raises."""

    def run_or_restore(*inputs: Any) -> Any:
        before = _Settings()
        try:
            return run(*inputs)
        except BaseException:
            before.restore()
            raise

    return run_or_restore


class _Settings:
    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
        self.cache = torch.is_autocast_cache_enabled()
        self.nesting = _nesting()

    def restore(self) -> None:
        torch._C._set_grad_enabled(self.grad)
        for device, enabled, dtype in self.autocast:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self.cache)
        for _ in range(_nesting() - self.nesting):
            leave_autocast()


def _nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
