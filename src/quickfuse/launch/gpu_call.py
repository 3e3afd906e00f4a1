"""A kernel call on a GPU as the glue sees it: the same table of addresses as on the CPU, and values from host cells."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from ..ir.kernel import KernelBody, KernelCall
from .cuda import CudaKernelCall
from .tables import MemberTable, Placer

#: Names of kernels by body, so that equal bodies have equal source and are compiled once.
_names: dict[KernelBody, str] = {}


class GpuCall:
    """A kernel call on a GPU, ready to run: `launch(stream, *scalars)`."""

    device_type = "cuda"
    current_stream: Callable[[int], int]

    def __init__(self, call: KernelCall, placer: Placer, emit: Callable[[KernelBody, str], str]) -> None:
        name = _names.setdefault(call.body, f"kernel{len(_names)}")
        call = replace(call, name=name)
        self._call = CudaKernelCall(call, emit(call.body, name))
        self.table = _UploadedTable(call, self._call, placer)
        self.launch = self._call.run
        self.rows_changed = self._call.rows_changed
        self.words_of = self.table.words_of
        rows = self._call.rows
        self.words = (ctypes.c_int64 * max(rows.size, 1)).from_address(rows.ctypes.data)
        self.current_stream = torch._C._cuda_getCurrentRawStream
        slots = [k for k, slot in enumerate(call.body.slots) if slot.by_value]
        self.gathers = bool(slots)
        self._cells = placer.cells
        self._picks = np.array(
            [[placer.cell_index(member.buffers[k]) for k in slots] for member in call.members], dtype=np.int64
        )

    def gather(self) -> None:
        """Copy the host numbers that the members need into the value table."""
        np.take(self._cells, self._picks, out=self._call.values)


class _UploadedTable(MemberTable):
    """A member table whose changes have to be uploaded."""

    def __init__(self, call: KernelCall, kernel: CudaKernelCall, placer: Placer) -> None:
        super().__init__(call, kernel.rows, placer)
        self._kernel = kernel

    def place(self, addresses: np.ndarray) -> None:
        super().place(addresses)
        self._kernel.rows_changed()
