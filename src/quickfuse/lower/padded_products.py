"""Products of matrices on a GPU whose rows do not begin at multiples of 16 bytes.

cuBLAS computes these several times slower: no tensor core is fed by loads of 2 bytes. So an operand whose rows have an odd
number of elements lies in memory with zeros after each row, as does the result, whose further elements nobody reads. A value
that is stored for the product anyway, such as the cast of a weight by autocast, costs nothing more. Another one is copied,
which is worth it for large products (`CostModel.padding_pays`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from quickfuse.ir.cost_model import CostModel
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, View, as_view
from quickfuse.ir.modes import matmul_precision
from quickfuse.ir.target import costs_on
from quickfuse.ir.values import TensorMeta, contiguous_stride

from . import ops
from .context import Context
from .rules import NoRule, no_rule_if
from .symbolic import Tensor

#: Rows that are made longer have a multiple of so many elements, as our kernels want it for wide accesses.
_MULTIPLE = 16
_HALF = frozenset({torch.bfloat16, torch.float16})


@dataclass(frozen=True)
class Matrix:
    """A tensor as a matrix of `rows` by `columns`. The elements of a row are neighbours, or if `by_rows` is False those of a
    column."""

    tensor: Tensor
    rows: int
    columns: int
    by_rows: bool

    @property
    def transposed(self) -> Matrix:
        return Matrix(self.tensor, self.columns, self.rows, not self.by_rows)


def matrix(tensor: Any) -> Matrix:
    """A tensor without gaps as a matrix: all its axes but the last are the rows."""
    no_rule_if(type(tensor) is not Tensor or tensor.meta.ndim < 1 or tensor.meta.numel == 0)
    meta = tensor.meta
    rows, columns = meta.numel // meta.shape[-1], meta.shape[-1]
    if meta.is_contiguous:
        return Matrix(tensor, rows, columns, True)
    if meta.ndim == 2 and meta.stride[::-1] == contiguous_stride(meta.shape[::-1]):
        return Matrix(tensor, rows, columns, False)
    raise NoRule


def padded_product(ctx: Context, meta: Any, left: Matrix, right: Matrix, bias: Tensor | None = None) -> Tensor:
    """`left @ right + bias` as a product of padded matrices, with a result that looks as `meta` says.

    Raises:
        NoRule: where rows are aligned as they are, or padding does not pay.
    """
    no_rule_if(type(meta) is not TensorMeta or not meta.is_contiguous or meta.numel != left.rows * right.columns)
    no_rule_if(bias is not None and (bias.meta.shape != (right.columns,) or bias.meta.stride != (1,)))
    costs = costs_on(meta.device)
    aligned = _aligned(costs, [x.dtype for x in (left.tensor, right.tensor, bias) if x is not None] + [meta.dtype])
    odd = {left.columns if left.by_rows else left.rows, right.columns if right.by_rows else right.rows, right.columns}

    def padded(size: int) -> int:
        return -(-size // _MULTIPLE) * _MULTIPLE if size in odd and size % aligned else size

    rows, depth, columns = padded(left.rows), padded(left.columns), padded(right.columns)
    grown = [
        operand for operand, shape in ((left, (rows, depth)), (right, (depth, columns)))
        if shape != (operand.rows, operand.columns)
    ]  # fmt: skip
    no_rule_if(not grown and columns == right.columns)
    copied = sum(2 * operand.tensor.meta.nbytes for operand in grown if not _is_stored_anyway(ctx, operand))
    operations = 2 * left.rows * left.columns * right.columns
    no_rule_if(not costs.padding_pays(operations, copied, 2 * len(grown)))
    operands = (_memory(ctx, left, rows, depth), _memory(ctx, right, depth, columns))
    result = TensorMeta(meta.dtype, (rows, columns), (columns, 1), meta.device)
    if bias is None:
        product = ctx.call(torch.mm, operands, result)
    else:
        row = _memory(ctx, Matrix(bias, 1, right.columns, True), 1, columns)
        product = ctx.call(torch.addmm, (View(row.buffer, (columns,), (1,), row.offset), *operands), result)
    return ctx.fresh(meta, Load(Access(product, 0, _strides(meta.shape, columns)), meta.dtype))


def _aligned(costs: CostModel, dtypes: list[torch.dtype]) -> int:
    """How many elements are as long as rows have to be aligned to."""
    dtype = dtypes[0]
    no_rule_if(not costs.aligned_bytes or any(other is not dtype for other in dtypes))
    no_rule_if(dtype not in _HALF and (dtype is not torch.float32 or matmul_precision() == "highest"))
    return costs.aligned_bytes // dtype.itemsize


def _base(operand: Matrix) -> tuple[Tensor, bool]:
    """The tensor that is stored for an operand, as rows of this matrix or, if that is False, of the transposed one."""
    tensor = operand.tensor
    storage = tensor.storage
    length = operand.columns if operand.by_rows else operand.rows
    whole = tensor.offset == 0 and storage.meta.numel == tensor.meta.numel and storage.meta.is_contiguous
    if whole and storage.meta.shape and storage.meta.shape[-1] == length:
        return Tensor(storage, storage.meta), operand.by_rows
    no_rule_if(not operand.by_rows)
    return tensor, True


def _is_stored_anyway(ctx: Context, operand: Matrix) -> bool:
    """Whether an operand is no tensor in memory yet, or one that was padded before."""
    base, _ = _base(operand)
    value = ctx.read(base)
    return not isinstance(value, Load) or id(value) in ctx.padded


def _memory(ctx: Context, operand: Matrix, rows: int, columns: int) -> View:
    """Memory of so many rows and columns that begins with an operand, and is zero elsewhere."""
    if (rows, columns) == (operand.rows, operand.columns):
        memory = as_view(ctx.memory(operand.tensor))
        stride = (columns, 1) if operand.by_rows else (1, rows)
        return View(memory.buffer, (rows, columns), stride, memory.offset)
    base, by_rows = _base(operand)
    buffer = _padded(ctx, base, (rows, columns) if by_rows else (columns, rows))
    view = as_view(buffer)
    return view if by_rows else view.transposed


def _padded(ctx: Context, tensor: Tensor, shape: tuple[int, int]) -> Buffer:
    """A buffer of this shape that begins with the rows of a contiguous tensor, and is zero elsewhere."""
    value = ctx.read(tensor)
    known = ctx.padded.get(id(value))
    if known is not None and known[1].meta.shape == shape:
        return known[1]
    meta = tensor.meta
    size, length = meta.numel // meta.shape[-1], meta.shape[-1]
    rows, columns = shape
    buffer = ctx.temp(TensorMeta(meta.dtype, shape, (columns, 1), meta.device))
    strides = _strides(meta.shape, columns)
    ctx.store(buffer, value, meta.shape, stride=strides)
    zero = ops.const(0, meta.dtype)
    if columns > length:
        ctx.store(buffer, zero, (rows, columns - length), length)
    if rows > size:
        ctx.store(buffer, zero, (rows - size, length), size * columns)
    ctx.padded[id(value)] = (value, buffer)
    if not isinstance(value, Load) and tensor.whole:  # other readers need not compute it again
        load = tensor.storage.value = Load(Access(buffer, 0, strides), meta.dtype)
        ctx.padded[id(load)] = (load, buffer)
    return buffer


def _strides(shape: tuple[int, ...], columns: int) -> tuple[int, ...]:
    """The strides of a tensor whose rows, along its last axis, are so many elements apart."""
    return tuple(columns * step for step in contiguous_stride(shape[:-1])) + (1,) if shape else ()

