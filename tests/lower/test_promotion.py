"""The common type of operands against `torch.result_type`, over all types and ranks."""

from __future__ import annotations

import itertools

import pytest
import torch

from quickfuse.errors import Unsupported
from quickfuse.lower.promotion import NUMBER_KEYS, SUPPORTED, Promotion, common_dtype

NUMBERS = [True, 3, 2.5]


@pytest.mark.parametrize("default", [torch.float32, torch.float64], ids=str)
def test_common_type_of_two(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        for one, two in itertools.product(SUPPORTED, SUPPORTED):
            for rank, other in itertools.product((0, 1), (0, 1)):
                x = torch.zeros((2,) if rank == 0 else (), dtype=one)
                y = torch.zeros((2,) if other == 0 else (), dtype=two)
                expected = torch.result_type(x, y)
                assert common_dtype(((one, rank), (two, other)), Promotion.SAME, default) is expected
                assert common_dtype(((one, rank), (two, other)), Promotion.FLOAT, default) is torch.true_divide(x, y).dtype
            for rank, number in itertools.product((0, 1), NUMBERS):
                x = torch.zeros((2,) if rank == 0 else (), dtype=one)
                keys = ((one, rank), NUMBER_KEYS[type(number)])
                assert common_dtype(keys, Promotion.SAME, default) is torch.result_type(x, number)
    finally:
        torch.set_default_dtype(before)


def test_lower_ranks_only_raise_the_category() -> None:
    keys = ((torch.bool, 0), (torch.int8, 1), NUMBER_KEYS[float])
    assert common_dtype(keys[:2], Promotion.SAME, torch.float32) is torch.int8
    assert common_dtype(keys, Promotion.SAME, torch.float32) is torch.float32
    keys = ((torch.bfloat16, 0), (torch.float64, 1), NUMBER_KEYS[float])
    assert common_dtype(keys, Promotion.SAME, torch.float32) is torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e5m2], ids=str)
def test_other_types_are_left_to_pytorch(dtype: torch.dtype) -> None:
    with pytest.raises(Unsupported, match="tensors of type"):
        common_dtype(((dtype, 0),), Promotion.SAME, torch.float32)
