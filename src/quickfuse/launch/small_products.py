"""Small products of matrices, ready to run: see `product_ir.py`."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Literal

import numpy as np
import torch

from ..ir.loop import Extern, as_view
from . import cpu
from .product_ir import WORDS, product_ir
from .tables import AddressTable, Placer

_NAME = "quickfuse_product"
_ELEMENTS = {torch.float32: "float", torch.float64: "double"}


class ProductCall:
    """A call of a `SmallProduct`: `launch()` runs it, `words` are those of its block."""

    device_type: Literal["cpu"] = "cpu"
    parallel = False

    def __init__(self, step: Extern, placer: Placer) -> None:
        left, right, *bias = map(as_view, step.args)
        (result,) = step.outputs
        (*batch, rows, depth), columns = left.shape, right.shape[-1]
        floor: Any = np.array(0.0 if step.target.activated else -np.inf, _numpy_type(result.meta.dtype))  # type: ignore[attr-defined]
        numbers: dict[str, int] = {
            "rows": rows, "columns": columns, "depth": depth, "left_row": left.stride[-2], "left_column": left.stride[-1],
            "right_row": right.stride[-2], "right_column": right.stride[-1] if columns > 1 else 1,
            "floor": int.from_bytes(floor.tobytes(), "little"), "batch": batch[0] if batch else 1,
            "left_step": left.stride[0] if batch else 0, "right_step": right.stride[0] if batch else 0,
        }  # fmt: skip
        block = np.array([numbers.get(word, 0) for word in WORDS], dtype=np.uint64).view(np.int64)
        size = result.meta.dtype.itemsize
        operands = [("left", left), ("right", right), ("result", as_view(result)), *[("bias", row) for row in bias]]
        places = [(WORDS.index(word), view.buffer, view.offset * size) for word, view in operands]
        self.table = AddressTable(block, places, placer)
        placer.tables.append(self.table)
        self.words = (ctypes.c_int64 * len(WORDS)).from_address(block.ctypes.data)
        self.words_of = self.table.words_of
        self.launch = cpu.launcher(_products()[result.meta.dtype], block.ctypes.data, self.table)


@functools.cache
def _products() -> dict[torch.dtype, int]:
    """The addresses of the functions, by the types of elements."""
    names = {dtype: f"{_NAME}_{element}" for dtype, element in _ELEMENTS.items()}
    code = [product_ir(names[dtype], element, cpu.vector_bytes()) for dtype, element in _ELEMENTS.items()]
    addresses = cpu.load("\n".join(code), [*names.values()])
    return {dtype: addresses[name] for dtype, name in names.items()}


def _numpy_type(dtype: torch.dtype) -> Any:
    return {torch.float32: np.float32, torch.float64: np.float64}[dtype]
