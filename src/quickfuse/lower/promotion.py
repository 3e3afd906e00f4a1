"""Type promotion: the type that an operator computes in, from its operands' types and ranks.

PyTorch promotes in three ranks: tensors with dimensions come before 0-dim tensors, which come before Python numbers; a
lower rank changes the result only if its category (bool, integer, float) is a higher one.
"""

from __future__ import annotations

import enum
from functools import cache

import torch

from quickfuse.errors import Unsupported

#: Ranks of an operand.
DIMENSIONED, ZERO_DIM, NUMBER = 0, 1, 2

#: An operand as promotion sees it: its type and its rank.
Key = tuple[torch.dtype, int]

_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

#: The types that loops can hold; anything else is left to PyTorch.
SUPPORTED = _INTEGERS | _FLOATS | {torch.bool}

#: type of the operands -> type of the arithmetic (PyTorch's "opmath" type).
COMPUTE = {**{dtype: dtype for dtype in SUPPORTED}, torch.float16: torch.float32, torch.bfloat16: torch.float32}

NUMBER_KEYS: dict[type, Key] = {bool: (torch.bool, NUMBER), int: (torch.int64, NUMBER), float: (torch.float64, NUMBER)}


class Promotion(enum.Enum):
    """How an operator's common type follows from its operands."""

    SAME = enum.auto()  # their promoted type
    FLOAT = enum.auto()  # the same, and the default float type in place of integers and bool


def is_float(dtype: torch.dtype) -> bool:
    return dtype in _FLOATS


def category(dtype: torch.dtype) -> int:
    """0 for bool, 1 for integers, 2 for floats."""
    return 2 if dtype in _FLOATS else 0 if dtype is torch.bool else 1


def check_supported(dtype: torch.dtype) -> None:
    if dtype not in SUPPORTED:
        raise Unsupported(f"tensors of type {dtype}")


@cache
def common_dtype(keys: tuple[Key, ...], promotion: Promotion, default: torch.dtype) -> torch.dtype:
    """The common type of operands, as `torch.result_type` and PyTorch's TensorIterator define it.

    `default` is the default float type.
    """
    common: torch.dtype | None = None
    for rank in (DIMENSIONED, ZERO_DIM, NUMBER):
        of_rank: torch.dtype | None = None
        for dtype, its_rank in keys:
            if its_rank == rank:
                dtype = default if rank == NUMBER and dtype in _FLOATS else dtype
                if of_rank is not None and dtype is not of_rank:
                    check_supported(dtype)
                    check_supported(of_rank)  # PyTorch refuses to promote some of the others
                    dtype = torch.promote_types(of_rank, dtype)
                of_rank = dtype
        if of_rank is not None and (common is None or category(of_rank) > category(common)):
            # A float of lower rank comes alone, as its category is above; an integer replaces a bool.
            common = of_rank
    assert common is not None, "an operator without operands"
    check_supported(common)
    if promotion is Promotion.FLOAT and common not in _FLOATS:
        return default
    return common
