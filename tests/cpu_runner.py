"""Run a CPU kernel body on tensors: emit, load, fill the members' table, call."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from quickfuse.emit.llvm import emit
from quickfuse.emit.llvm_math import Target
from quickfuse.ir.kernel import KernelBody
from quickfuse.launch import cpu


@functools.cache
def compiled(body: KernelBody, target: Target | None = None) -> cpu.Kernel:
    return cpu.bind(cpu.load(emit(body, "kernel", target), ["kernel"])["kernel"])


@dataclass
class Data:
    """One member: its sizes and a tensor for each slot, as large as the sizes where the slot's strides are not 0."""

    sizes: tuple[int, ...]
    tensors: Sequence[torch.Tensor]


def member_row(body: KernelBody, data: Data) -> list[int]:
    row = list(data.sizes)
    for slot, tensor in zip(body.slots, data.tensors, strict=True):
        assert tensor.dtype == slot.dtype
        strides = tensor.expand(data.sizes).stride()
        for size, stride, known in zip(data.sizes, strides, slot.strides, strict=True):
            assert known is None or size <= 1 or stride == known, (strides, slot.strides)
        row += [tensor.data_ptr(), *(s for s, known in zip(strides, slot.strides, strict=True) if known is None)]
    return row


def scalar_word(value: float, dtype: torch.dtype) -> int:
    if dtype == torch.float64:
        return struct.unpack("<q", struct.pack("<d", value))[0]
    return int(value)


def run(
    body: KernelBody,
    members: Sequence[Data],
    scalars: Sequence[float] = (),
    n_threads: int = 1,
    target: Target | None = None,
) -> None:
    """Execute a body on its members' tensors, in place."""
    rows = torch.tensor([member_row(body, data) for data in members], dtype=torch.int64)
    starts = [0]
    for data in members:
        starts.append(starts[-1] + (body.units(data.sizes) if math.prod(data.sizes) else 0))
    prefix = torch.tensor(starts, dtype=torch.int64)
    words = torch.tensor([scalar_word(v, t) for v, t in zip(scalars, body.scalars, strict=True)], dtype=torch.int64)
    compiled(body, target)(rows.data_ptr(), prefix.data_ptr(), len(members), words.data_ptr(), n_threads)


def run_numbers(body: KernelBody, columns: Sequence[torch.Tensor]) -> None:
    """Execute a body without axes on a member for each element of the slots' contiguous columns, in place."""
    assert body.ndim == 0 and not body.scalars
    count = len(columns[0])
    rows = torch.stack([t.data_ptr() + torch.arange(count) * t.itemsize for t in columns], dim=1).contiguous()
    starts = torch.arange(count + 1)
    compiled(body)(rows.data_ptr(), starts.data_ptr(), count, 0, 1)
