"""The kernel of small products, whatever is at the edges of its blocks, and with vectors of each width."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest
import torch

from quickfuse.launch import cpu
from quickfuse.launch.product_ir import WORDS, product_ir

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 15, 16, 17, 20, 31, 32, 33, 40, 64)
TYPES = {torch.float32: ("float", ctypes.c_float), torch.float64: ("double", ctypes.c_double)}


def run(address: int, left: Any, right: Any, bias: Any, result: Any, activated: bool) -> None:
    batch = left.shape[0]
    numbers = {
        "left": left.data_ptr(), "right": right.data_ptr(), "bias": 0 if bias is None else bias.data_ptr(),
        "result": result.data_ptr(), "rows": left.shape[1], "columns": right.shape[2], "depth": left.shape[2],
        "left_row": left.stride(1), "left_column": left.stride(2), "right_row": right.stride(1),
        "right_column": right.stride(2) if right.shape[2] > 1 else 1, "batch": batch,
        "left_step": left.stride(0), "right_step": right.stride(0),
    }  # fmt: skip
    block = (ctypes.c_int64 * len(WORDS))(*[numbers.get(word, 0) for word in WORDS])
    floor = TYPES[left.dtype][1].from_buffer(block, 8 * WORDS.index("floor"))
    floor.value = 0.0 if activated else -torch.inf
    cpu.bind(address)(ctypes.addressof(block))  # type: ignore[arg-type]


@pytest.mark.parametrize("vector_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", TYPES)
def test_all_sizes(dtype: torch.dtype, vector_bytes: int) -> None:
    if vector_bytes > cpu.vector_bytes():
        pytest.skip("no such vectors here")
    element = TYPES[dtype][0]
    name = f"product_{element}_{vector_bytes}"
    address = cpu.load(product_ir(name, element, vector_bytes), [name])[name]
    draw = random.Random(vector_bytes)
    torch.manual_seed(0)
    for _ in range(400):
        batch, (rows, columns, depth) = draw.choice((1, 1, 3)), [draw.choice(SIZES) for _ in range(3)]
        left, right = torch.randn(batch, rows, depth, dtype=dtype), torch.randn(batch, depth, columns, dtype=dtype)
        if draw.random() < 0.5:
            left = left.mT.contiguous().mT
        if draw.random() < 0.5:
            right = right.mT.contiguous().mT
        bias = torch.randn(columns, dtype=dtype) if draw.random() < 0.5 else None
        activated = draw.random() < 0.3
        around = torch.full((batch * rows * columns + 64,), 7.0, dtype=dtype)
        result = around[32:-32].view(batch, rows, columns)
        run(address, left, right, bias, result, activated)
        wanted = left.double() @ right.double() + (0 if bias is None else bias.double())
        digits = 1e-4 if dtype is torch.float32 else 1e-12
        torch.testing.assert_close(result.double(), wanted.relu() if activated else wanted, rtol=digits, atol=digits)
        assert (around[:32] == 7).all() and (around[-32:] == 7).all()
