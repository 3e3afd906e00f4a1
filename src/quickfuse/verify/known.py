"""Numbers that follow from loop variables and constants alone: they say where a computed offset leads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quickfuse.ir.expr import HALF_TYPES

Numbers = npt.NDArray[Any]

#: The types that such numbers are followed in.
NUMPY = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float32: np.float32, torch.float64: np.float64,
    torch.bfloat16: np.float32, torch.float16: np.float32,
}  # fmt: skip


def _or(x: Numbers, y: Numbers) -> Numbers:
    return x | y if x.dtype == np.bool_ else x + y


def _and(x: Numbers, y: Numbers) -> Numbers:
    return x & y if x.dtype == np.bool_ else x * y


def _quotient(x: Numbers, y: Numbers) -> Numbers:
    by = np.where(y == 0, 1, y).astype(y.dtype)
    found = x // by
    found = np.where((found * by != x) & ((x < 0) != (by < 0)), found + 1, found)
    return np.where(y == 0, 0, found).astype(x.dtype)


def _remainder(x: Numbers, y: Numbers) -> Numbers:
    if x.dtype.kind == "f":
        return np.fmod(x, y)
    return np.where(y == 0, 0, x - _quotient(x, y) * y).astype(x.dtype)


#: What is computed with numbers that are known. Results of all other operations are not.
OPERATIONS: dict[str, Callable[..., Numbers]] = {
    "add": _or, "sub": np.subtract, "mul": _and, "neg": np.negative,
    "trunc_div": _quotient, "fmod": _remainder,
    "maximum": np.maximum, "minimum": np.minimum, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert,
}  # fmt: skip
_ONLY_FLOATS, _NOT_BOOL = frozenset({"floor", "ceil", "trunc", "round"}), frozenset({"sub", "neg"})


def _to_bfloat16(x: Numbers) -> Numbers:
    """To the nearest, to even numbers where two are as near."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), rounded.view(np.float32))


def rule_of(name: str, dtype: torch.dtype, arguments: tuple[torch.dtype, ...]) -> Callable[..., Numbers] | None:
    """What computes an operation on numbers that are known; None where their result is not followed."""
    if dtype not in NUMPY or any(argument not in NUMPY for argument in arguments):
        return None
    if name == "div":
        return np.divide
    if name == "cast" and dtype in HALF_TYPES:
        return _to_bfloat16 if dtype is torch.bfloat16 else lambda x: x.astype(np.float16).astype(np.float32)
    if dtype in HALF_TYPES:
        return None  # what is computed is rounded by a cast
    if name == "cast":
        to = NUMPY[dtype]
        return lambda x: x != 0 if to is np.bool_ else x.astype(to)
    if (name in _ONLY_FLOATS and not dtype.is_floating_point) or (name in _NOT_BOOL and dtype is torch.bool):
        return None
    return OPERATIONS.get(name)


def constant(value: bool | int | float, dtype: torch.dtype) -> Numbers | None:
    """A constant of a program, to be broadcast; None where its type is not followed."""
    if dtype not in NUMPY:
        return None
    with np.errstate(all="ignore"):
        if dtype.is_floating_point or dtype is torch.bool:
            return np.array([value], dtype=NUMPY[dtype])
        return np.array([int(value) & ((1 << 64) - 1)], dtype=np.uint64).view(np.int64).astype(NUMPY[dtype])
