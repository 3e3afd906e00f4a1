"""Small products of matrices on the CPU, as kernels of ours.

A call of PyTorch's for a product takes a few microseconds, however small it is: more than all the rest of a perceptron. A
kernel for products of any size (`launch/product_ir.py`) takes a third of one, and for 60 x 60 x 60 as long as a library's.
It adds the bias, and computes the ReLU of what nobody else reads (`epilogues.py`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.loop import Buffer, Extern, Program, View, as_view, memory_at
from quickfuse.ir.products import MOST_DEPTH, SmallProduct
from quickfuse.ir.values import TensorMeta, contiguous_stride

from .batches import ADDMM, MM, work_of
from .products import LinearCall

_BATCHED = frozenset({torch.bmm, torch.Tensor.bmm, torch.ops.aten.bmm.default})


@functools.cache
def _has_masks() -> bool:
    """Whether the processor loads and stores parts of vectors, as the kernel does at the edges."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def use_small_products(program: Program) -> None:
    """Have kernels of ours for the small products of a program."""
    if not _has_masks():
        return
    made = {id(step): found for step in program.steps if isinstance(step, Extern) and (found := _small(step)) is not None}
    if made:
        program.steps = [made.get(id(step), step) for step in program.steps]


def _small(step: Extern) -> Extern | None:
    """A product as a call of ours, if it is small."""
    if step.kwargs or step.draws or step.after or len(step.outputs) != 1:
        return None
    meta = step.outputs[0].meta
    if meta.device.type != "cpu" or meta.dtype not in (torch.float32, torch.float64) or not meta.is_contiguous:
        return None
    activation = type(step.target) is LinearCall and step.target.activation == "relu"
    if type(step.target) is LinearCall and step.target.activation not in ("none", "relu"):
        return None
    left, right, bias = factors_of(step)
    if left is None or right is None or not _fits(left, right, bias, meta):
        return None
    target = SmallProduct(meta.shape, activation)
    operands = [memory_of(left), memory_of(right)]
    return Extern(target, tuple(operands if bias is None else [*operands, bias]), {}, step.outputs, is_new=True)


def factors_of(step: Extern) -> tuple[View | None, View | None, Any]:
    """What a call multiplies, and the bias that it adds or None; no factors where it is no product of matrices."""
    target, args = step.target, step.args
    if target in MM and len(args) == 2 or target in _BATCHED and len(args) == 2:
        return _matrix(args[0]), _matrix(args[1]), None
    if target in ADDMM and len(args) == 3:
        return _matrix(args[1]), _matrix(args[2]), args[0]
    if (target is functional.linear or type(target) is LinearCall) and 2 <= len(args) <= 3:
        right = _matrix(args[1])
        right = None if right is None or len(right.shape) != 2 else right.transposed
        return _rows(args[0]), right, args[2] if len(args) > 2 else None
    return None, None, None


def memory_of(view: View) -> Buffer | View:
    """A view as an operand of a call."""
    return memory_at(view.buffer, view.shape, view.stride, view.offset)


def _matrix(memory: Any) -> View | None:
    return as_view(memory) if isinstance(memory, (Buffer, View)) else None


def _rows(memory: Any) -> View | None:
    """A tensor as a matrix whose columns are its last axis."""
    view = _matrix(memory)
    if view is None or len(view.shape) < 3:
        return view
    if view.stride != contiguous_stride(view.shape):
        return None
    depth = view.shape[-1]
    return View(view.buffer, (math.prod(view.shape[:-1]), depth), (depth, 1), view.offset)


def _fits(left: View, right: View, bias: Any, meta: TensorMeta) -> bool:
    """Whether a product has the form that the kernel computes, and is small."""
    ndim = len(left.shape)
    if ndim != len(right.shape) or ndim not in (2, 3) or 0 in left.shape or 0 in right.shape:
        return False
    (*batch, rows, depth), columns = left.shape, right.shape[-1]
    if right.shape != (*batch, depth, columns) or meta.numel != math.prod(batch) * rows * columns:
        return False
    if any(view.buffer.meta.dtype is not meta.dtype or view.buffer.meta.device != meta.device for view in (left, right)):
        return False
    if bias is not None:
        row = _matrix(bias)
        if row is None or row.buffer.meta.dtype is not meta.dtype or (row.shape, row.stride) != ((columns,), (1,)):
            return False
    across, along = right.stride[-1], right.stride[-2]
    if depth > MOST_DEPTH or not ((across == 1 or columns == 1) or (along == 1 or depth == 1)):
        return False
    return work_of(rows, columns, depth) * math.prod(batch) <= COSTS.most_for_own_product
