"""The operands of a kernel's body, and the leaves of its values, which stand for those of a program's loops."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .expr import Expr


@dataclass(frozen=True, slots=True)
class Slot:
    """One operand of a body.

    `strides`: the stride class for each axis (0, 1 or None; -1 on the axis that vectors lie along).
    `access`: "r", "w", "rw" or "flag". `by_value`: the operand is a number of the host (float64 or int64) that differs
    between the members of a GPU kernel, passed in the value table.
    """

    dtype: torch.dtype
    strides: tuple[int | None, ...]
    access: str
    by_value: bool = False

    @property
    def words(self) -> int:
        return 0 if self.by_value else 1 + sum(s is None for s in self.strides)


@dataclass(frozen=True, slots=True)
class SlotLoad(Expr):
    """The element of a slot at the current index (the leaf that stands for `Load` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"s{self.slot}"


@dataclass(frozen=True, slots=True)
class SlotPlace(Expr):
    """Where a slot is at the current index (the leaf that stands for `Place` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"&s{self.slot}"


@dataclass(frozen=True, slots=True)
class SlotPrevious(Expr):
    """What the element of a slot held that a scatter stores to (the leaf that stands for `Previous` within a body)."""

    slot: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"previous(s{self.slot})"


@dataclass(frozen=True, slots=True)
class ArgScalar(Expr):
    """A scalar argument shared by all members (the leaf that stands for `Scalar` within a body)."""

    arg: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"a{self.arg}"


@dataclass(frozen=True, slots=True)
class Reduced(Expr):
    """What the reduction that is store `reduction` gave for this row, or the scan for this element."""

    reduction: int
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"r{self.reduction}"


@dataclass(frozen=True, slots=True)
class RowLength(Expr):
    """How many elements a row has: the product of the sizes of its axes, an int64."""

    dtype: torch.dtype = torch.int64

    def __str__(self) -> str:
        return "n"
