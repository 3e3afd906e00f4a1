"""A kernel call run on memory of its own, to see how long it takes."""

from __future__ import annotations

from typing import Any

import torch

from quickfuse.ir.kernel import KernelCall
from quickfuse.ir.values import TensorMeta

from .cuda import CudaKernelCall
from .cuda_shapes import device_index

#: Launches before the time is taken, and those between two readings of it.
_WARM_UP, _LAUNCHES = 3, 10


def seconds_of(kernel: CudaKernelCall, call: KernelCall) -> float:
    """Seconds of a launch on the current stream.

    Raises:
        torch.OutOfMemoryError: where there is no memory for its operands.
    """
    with torch.cuda.device(device_index(call)):
        memory = fill_rows(kernel, call)
        stream = torch.cuda.current_stream()
        numbers = [1] * len(call.body.scalars)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for launch in range(_WARM_UP + _LAUNCHES):
            if launch == _WARM_UP:
                begin.record(stream)
            kernel.run(stream.cuda_stream, *numbers)
        end.record(stream)
        end.synchronize()
        del memory
    return begin.elapsed_time(end) / _LAUNCHES / 1e3


def fill_rows(kernel: Any, call: KernelCall) -> dict[Any, torch.Tensor]:
    """Let a kernel's rows point to zeros for each operand, which the caller holds. As indices zeros are in range."""
    memory: dict[Any, torch.Tensor] = {}
    for row, member in zip(kernel.rows, call.members, strict=True):
        offsets = member.offsets or (0,) * len(member.buffers)
        for k, (slot, buffer, offset) in enumerate(zip(call.body.slots, member.buffers, offsets, strict=True)):
            meta = buffer.meta
            if slot.by_value or not isinstance(meta, TensorMeta) or buffer.kind == "flag":
                continue
            if buffer not in memory:
                memory[buffer] = torch.zeros(meta.span_bytes, dtype=torch.uint8, device=meta.device)
            row[call.body.slot_word(k)] = memory[buffer].data_ptr() + offset * slot.dtype.itemsize
    kernel.rows_changed()
    return memory
