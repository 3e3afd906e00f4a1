"""Run a CPU kernel body on tensors: emit, load, fill the members' table, call."""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from quickfuse.emit.llvm import emit
from quickfuse.ir.kernel import KernelBody
from quickfuse.ir.target import CPU, CpuTarget
from quickfuse.launch import cpu


@functools.cache
def compiled(body: KernelBody, target: CpuTarget | None = None) -> Callable[..., None]:
    """The kernel of a body, on rows, starts, n_members, scalars and n_threads."""
    kernel = cpu.bind(cpu.load(emit(body, "kernel", target), ["kernel"])["kernel"])

    def call(*words: int) -> None:
        arguments = torch.tensor(words)
        kernel(arguments.data_ptr())

    return call


@dataclass
class Data:
    """One member: its sizes and a tensor for each slot, as large as the sizes where the slot's strides are not 0."""

    sizes: tuple[int, ...]
    tensors: Sequence[torch.Tensor | Strided]


@dataclass
class Strided:
    """Elements of `memory` that no tensor can be: at negative strides, or where some are outside and never loaded."""

    memory: torch.Tensor
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def dtype(self) -> torch.dtype:
        return self.memory.dtype

    def data_ptr(self) -> int:
        return self.memory.data_ptr() + self.offset * self.memory.itemsize

    def places(self, sizes: tuple[int, ...]) -> torch.Tensor:
        """Where the elements are in the memory's storage."""
        total = torch.tensor(self.memory.storage_offset() + self.offset)
        for axis, (size, stride) in enumerate(zip(sizes, self.strides, strict=True)):
            total = total + (torch.arange(size) * stride).view(-1, *[1] * (len(sizes) - axis - 1))
        return total.expand(sizes)

    def elements(self, places: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """The elements at `places`, zeros where not `inside`."""
        size = self.memory.untyped_storage().nbytes() // self.memory.itemsize
        assert bool(((places >= 0) & (places < size) | ~inside).all()), "an element outside of memory"
        if not size:
            return torch.zeros(places.shape, dtype=self.dtype)
        every = self.memory.as_strided((size,), (1,), 0)
        return torch.where(inside, every[torch.where(inside, places, 0)], torch.zeros((), dtype=self.dtype))


def strided(memory: torch.Tensor, offset: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor | Strided:
    """A tensor where there is one."""
    try:
        return memory.as_strided(sizes, strides, memory.storage_offset() + offset)
    except RuntimeError:
        return Strided(memory, offset, sizes, strides)


def member_row(body: KernelBody, data: Data) -> list[int]:
    row = list(data.sizes)
    for slot, tensor in zip(body.slots, data.tensors, strict=True):
        assert tensor.dtype == slot.dtype
        strides = tensor.strides if isinstance(tensor, Strided) else tensor.expand(data.sizes).stride()
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
    target: CpuTarget | None = None,
) -> None:
    """Execute a body on its members' tensors, in place."""
    rows = torch.tensor([member_row(body, data) for data in members], dtype=torch.int64)
    starts = [0]
    for data in members:
        starts.append(starts[-1] + (CPU.units(body, data.sizes) if math.prod(data.sizes) else 0))
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
