"""Biases of products on a GPU, added by the kernels that read the products.

For single precision without TF32, cuBLAS chooses other kernels for some products where it adds the bias, too: the second one
of each block of ViT takes a quarter longer (595 us, 744 with the bias; batch 32, an H100). Where nothing but loops reads a
product, adding costs them next to nothing. Where a call of PyTorch reads it, or a caller, it would be a pass of its own.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Access, Buffer, Extern, Loop, Program, Store, View, as_view, buffers_in
from quickfuse.ir.modes import matmul_precision
from quickfuse.ir.target import costs_on

from .batches import ADDMM
from .symbolic import whole_load


def add_biases_in_loops(program: Program) -> None:
    """Compute products without their biases, where only loops read them."""
    if matmul_precision() != "highest":
        return
    asked = set(buffers_in(program.outputs))
    for step in program.steps:
        asked.update(step.reads if isinstance(step, Extern) else step.writes)
    steps: list[Loop | Extern] = []
    for step in program.steps:
        if isinstance(step, Extern) and _has_bias(step) and step.outputs[0] not in asked:
            steps += _apart(program, step)
        else:
            steps.append(step)
    program.steps = steps


def _has_bias(step: Extern) -> bool:
    """Whether a call is a large enough product, of which a bias is a part."""
    if step.kwargs or step.draws or len(step.outputs) != 1 or len(step.args) != 3:
        return False
    meta = step.outputs[0].meta
    bias = step.args[0] if step.target in ADDMM else step.args[2] if step.target is functional.linear else None
    if not isinstance(bias, (Buffer, View)) or as_view(bias).shape != meta.shape[-1:]:
        return False
    least = costs_on(meta.device).least_product_without_bias
    return 0 < least <= meta.nbytes and meta.dtype is torch.float32 and meta.is_contiguous


def _apart(program: Program, step: Extern) -> tuple[Extern, Loop]:
    """The product, and the sum with its bias, which the schedule puts into what reads it."""
    (result,) = step.outputs
    shape = result.meta.shape
    bias = as_view(step.args[0] if step.target in ADDMM else step.args[2])
    product = Buffer(f"{result.name}_product", result.meta, "temp")
    row = Load(Access(bias.buffer, bias.offset, (0,) * (len(shape) - 1) + bias.stride), result.meta.dtype)
    value = whole_load(product) + row
    program.optional.add(result)
    if step.target in ADDMM:
        call = replace(step, target=torch.mm, args=step.args[1:], outputs=[product])
    else:
        call = replace(step, args=step.args[:2], outputs=[product])
    return call, Loop(shape, [Store(Access(result, 0, result.meta.stride), value)], result.meta.device)
