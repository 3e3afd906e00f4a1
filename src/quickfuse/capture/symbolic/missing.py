"""Marks for what is not there."""

from __future__ import annotations


class _Missing:
    """Marks an entry of a `ShadowDict` that was not looked at yet, or that was deleted."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


LAZY = _Missing("LAZY")
DELETED = _Missing("DELETED")
ABSENT = _Missing("ABSENT")
