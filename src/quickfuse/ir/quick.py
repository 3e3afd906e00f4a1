"""Classes of immutable values that are made by the thousand.

The `__init__` of a frozen dataclass calls `object.__setattr__` for each field, which takes several times as long as an
assignment. So type checkers alone see to it that these are frozen. They compare and hash by their fields, as frozen ones do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as value_class
else:
    from dataclasses import dataclass

    def value_class(*, frozen, slots, eq=True):
        """`dataclass(frozen=True, slots=True)`, but for the check when a field is assigned to."""
        return dataclass(slots=slots, eq=eq, unsafe_hash=eq)


__all__ = ["value_class"]
