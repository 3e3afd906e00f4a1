"""Reading the numbers in many one-element tensors at once, for guards: 2 to 5 ns a tensor, and one number where all agree.

The step counters of a thousand parameters are usually equal: then a condition on them is evaluated once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import cpu
from .tensor_check import NativeTensorCheck, PythonTensorCheck

Check = NativeTensorCheck | PythonTensorCheck


class ContentsReader:
    """Calling it gives the numbers in the checked tensors at `positions`, or one number where all have the same bits.

    The tensors have one type, are on the CPU and passed the check.
    """

    def __init__(self, check: Check, positions: list[int]) -> None:
        meta = check.expected[positions[0]][1]
        self._found = torch.empty(len(positions), dtype=meta.dtype)
        self._first = self._found[:1]
        self._positions = np.array(positions, dtype=np.int64)
        self._addresses = check.addresses
        self._read = _native(meta.dtype.itemsize)
        self._block = (ctypes.c_int64 * 4)(
            check.addresses.ctypes.data, self._positions.ctypes.data, len(positions), self._found.data_ptr()
        )
        self._block_address = ctypes.addressof(self._block)

    def __call__(self) -> list[Any]:
        same = self._read(self._block_address)
        values: list[Any] = (self._first if same else self._found).tolist()
        return values


class Apart:
    """Whether the checked tensors at `read` share no memory with each other nor with those at `written`."""

    def __init__(self, check: Check, read: list[int], written: list[int]) -> None:
        everything = np.array(sorted({*read, *written}), dtype=np.int64)
        self._addresses = check.addresses
        self._positions = everything
        self._spans = np.array([check.expected[k][1].span_bytes for k in everything], dtype=np.int64)
        self._read = np.searchsorted(everything, np.array(read, dtype=np.int64))
        self._last = np.zeros(len(everything), dtype=np.int64)
        self._apart = False

    def __call__(self, state: int) -> bool:
        """`state` is what the check said: 0 where no address is another one than in the last call."""
        if state:
            now = self._addresses[self._positions]
            if not np.array_equal(now, self._last):
                self._last = now
                self._apart = not self._overlap(now)
        return self._apart

    def _overlap(self, starts: np.ndarray) -> bool:
        ends = starts + self._spans
        before = np.searchsorted(np.sort(starts), ends[self._read], side="left")
        after = np.searchsorted(np.sort(ends), starts[self._read], side="right")
        return bool((before - after > 1).any())


@functools.cache
def _native(size: int) -> Callable[[int], int]:
    name = f"quickfuse_read_contents{size}"
    address = cpu.load(_reader_ir(name, f"i{8 * size}"), [name])[name]
    return ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


def _reader_ir(name: str, kind: str) -> str:
    """LLVM IR of a reader. `block`: addresses, positions, their number, and where to put the elements."""
    fields = "\n".join(
        f"  %f{k}.p = getelementptr i64, ptr %block, i64 {k}\n  %f{k} = load i64, ptr %f{k}.p" for k in range(4)
    )
    return f"""
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define i64 @{name}(i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
{fields}
  %addresses = inttoptr i64 %f0 to ptr
  %positions = inttoptr i64 %f1 to ptr
  %found = inttoptr i64 %f3 to ptr
  %last = sub i64 %f2, 1
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %body ]
  %same = phi i64 [ 1, %entry ], [ %same.next, %body ]
  %done = icmp sge i64 %k, %f2
  br i1 %done, label %exit, label %body
body:
  %ahead = add i64 %k, 16
  %inside = icmp slt i64 %ahead, %last
  %then = select i1 %inside, i64 %ahead, i64 %last
  %then.position.p = getelementptr i64, ptr %positions, i64 %then
  %then.position = load i64, ptr %then.position.p
  %then.address.p = getelementptr ptr, ptr %addresses, i64 %then.position
  %then.address = load ptr, ptr %then.address.p
  call void @llvm.prefetch.p0(ptr %then.address, i32 0, i32 3, i32 1)
  %position.p = getelementptr i64, ptr %positions, i64 %k
  %position = load i64, ptr %position.p
  %address.p = getelementptr ptr, ptr %addresses, i64 %position
  %address = load ptr, ptr %address.p
  %element = load {kind}, ptr %address
  %slot = getelementptr {kind}, ptr %found, i64 %k
  store {kind} %element, ptr %slot
  %first = load {kind}, ptr %found
  %equal = icmp eq {kind} %element, %first
  %same.next = select i1 %equal, i64 %same, i64 0
  %k.next = add i64 %k, 1
  br label %head
exit:
  ret i64 %same
}}
"""
