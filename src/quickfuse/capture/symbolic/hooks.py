"""The handles of hooks that captured code registers: see `library.module_hooks`."""

from __future__ import annotations

from typing import Any


class HookHandle:
    """What `torch.utils.hooks.RemovableHandle` is, to captured code."""

    def __init__(self, number: int, tables: list[Any]) -> None:
        self.id = number
        self.tables = tables

    def remove(self) -> None:
        for table in self.tables:
            if self.id in table:
                del table[self.id]
        forget_hook(self.id)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def forget_hook(number: int) -> None:
    """A hook was removed. Capture knows what this does."""
