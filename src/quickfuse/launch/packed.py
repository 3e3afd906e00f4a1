"""Convolutions with weights kept in the order that oneDNN wants.

A convolution reorders its weight in every call, which takes an eighth to a sixth of the time of all convolutions. The
reordered copy is kept here. It must never be stale, and weights may be changed in ways that leave no trace (`p.data`, NumPy,
another process). So every call forms a checksum of the weight, at the speed of memory: 512 bits, to which each 64 bits
contribute by a product that depends on their place. Weights that keep changing are not kept.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.convolution import SteadyConvolution

from . import cpu

#: A weight that changed so often, with fewer than `_LONG` calls between the changes, is not kept any more.
_MOST_CHANGES, _LONG = 4, 8
_STRIPE = 64

_CHECKSUM_IR = """\
declare void @quickfuse_run(ptr, i64, i64, ptr, ptr, i64, ptr, i64)

; Words of a row: the address of the data, then the checksum. Units of work are stripes of 64 bytes.
define internal void @stripes(ptr %row, ptr %scalars, i64 %first, i64 %past, ptr %memo) nounwind {
entry:
  %word = load i64, ptr %row
  %data = inttoptr i64 %word to ptr
  br label %stripe
stripe:
  %n = phi i64 [ %first, %entry ], [ %n.next, %stripe ]
  %sum = phi <8 x i64> [ zeroinitializer, %entry ], [ %sum.next, %stripe ]
  %offset = shl i64 %n, 6
  %at = getelementptr i8, ptr %data, i64 %offset
  %values = load <8 x i64>, ptr %at, align 4
  %place = mul i64 %n, -7046029254386353131
  %place.1 = insertelement <8 x i64> poison, i64 %place, i32 0
  %places = shufflevector <8 x i64> %place.1, <8 x i64> poison, <8 x i32> zeroinitializer
  %keys = xor <8 x i64> %places, <i64 -4734510112055689544, i64 2066345149520216444, i64 -2626637187404383413,
    i64 7637891163389366371, i64 -6180500235394562719, i64 3344112498637229863, i64 -8796714831421723037,
    i64 5961155243283093257>
  %mixed = xor <8 x i64> %values, %keys
  %low = and <8 x i64> %mixed, <i64 4294967295, i64 4294967295, i64 4294967295, i64 4294967295,
    i64 4294967295, i64 4294967295, i64 4294967295, i64 4294967295>
  %high = lshr <8 x i64> %mixed, <i64 32, i64 32, i64 32, i64 32, i64 32, i64 32, i64 32, i64 32>
  %product = mul <8 x i64> %low, %high
  %swapped = shufflevector <8 x i64> %values, <8 x i64> poison,
    <8 x i32> <i32 1, i32 0, i32 3, i32 2, i32 5, i32 4, i32 7, i32 6>
  %term = add <8 x i64> %product, %swapped
  %sum.next = add <8 x i64> %sum, %term
  %n.next = add i64 %n, 1
  %more = icmp slt i64 %n.next, %past
  br i1 %more, label %stripe, label %add
add:
  %k = phi i64 [ 0, %stripe ], [ %k.next, %add ]
  %k.next = add i64 %k, 1
  %lane = trunc i64 %k to i32
  %part = extractelement <8 x i64> %sum.next, i32 %lane
  %total = getelementptr i64, ptr %row, i64 %k.next
  %before = atomicrmw add ptr %total, i64 %part monotonic
  %again = icmp slt i64 %k.next, 8
  br i1 %again, label %add, label %done
done:
  ret void
}

; Words of the block: the address of the row, that of the first and last unit of work, the number of threads.
define void @quickfuse_checksum(ptr %block) nounwind {
  %starts.at = getelementptr i64, ptr %block, i64 1
  %threads.at = getelementptr i64, ptr %block, i64 2
  %row = load ptr, ptr %block
  %starts = load ptr, ptr %starts.at
  %threads = load i64, ptr %threads.at
  %totals = getelementptr i64, ptr %row, i64 1
  store <8 x i64> zeroinitializer, ptr %totals, align 8
  call void @quickfuse_run(ptr @stripes, i64 9, i64 1, ptr %row, ptr %starts, i64 1, ptr null, i64 %threads)
  ret void
}
"""


@functools.cache
def _checksum_function() -> Callable[[int], None]:
    name = "quickfuse_checksum"
    return cpu.bind(cpu.load(_CHECKSUM_IR, [name])[name])


class Checksum:
    """Checksums of memory of a fixed size."""

    def __init__(self, nbytes: int) -> None:
        stripes, self._rest = divmod(nbytes, _STRIPE)
        self._end = stripes * _STRIPE
        self._row = (ctypes.c_int64 * 9)()
        self._totals = (ctypes.c_int64 * 8).from_buffer(self._row, 8)
        self._starts = (ctypes.c_int64 * 2)(0, stripes)
        self._work = nbytes // 8
        self._block = (ctypes.c_int64 * 3)(ctypes.addressof(self._row), ctypes.addressof(self._starts), 1)
        self._address = ctypes.addressof(self._block)
        self._run = _checksum_function()

    def of(self, address: int) -> bytes:
        """64 bytes that differ if the contents do, and what does not fill a stripe as it is."""
        self._row[0] = address
        self._block[2] = cpu.threads_for(self._work, 1)
        self._run(self._address)
        return bytes(self._totals) + (ctypes.string_at(address + self._end, self._rest) if self._rest else b"")


class PackedConvolution:
    """A `SteadyConvolution` with a reordered copy of its weight."""

    def __init__(self, convolution: SteadyConvolution, weight_bytes: int) -> None:
        self.convolution = convolution
        self._checksum = Checksum(weight_bytes)
        self._known = b""
        self._changes = 0
        self._calls = 0  # since the last change
        self._packed: torch.Tensor | None = None
        settings: list[Any] = [convolution.padding, convolution.stride, convolution.dilation, convolution.groups]
        self._settings = (*settings, "none", [], "")
        self._call: Any = torch.ops.mkldnn._convolution_pointwise.default

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if self._changes > _MOST_CHANGES or not torch.backends.mkldnn.enabled:
            self._packed = None
            return self.convolution(input, weight, bias)
        now = self._checksum.of(weight.data_ptr())
        self._calls += 1
        if now != self._known:
            self._pack(weight, now)
        result: torch.Tensor = self._call(input, self._packed, bias, *self._settings)
        return result

    def _pack(self, weight: torch.Tensor, checksum: bytes) -> None:
        settings = self.convolution
        self._changes = 1 if self._calls > _LONG else self._changes + 1
        self._calls = 0
        self._packed = torch.ops.mkldnn._reorder_convolution_weight(
            weight.detach(), settings.padding, settings.stride, settings.dilation, settings.groups, settings.input_shape
        )
        self._known = checksum


def packed(convolution: SteadyConvolution, weight_bytes: int) -> Callable[..., torch.Tensor]:
    """`convolution` with its weight kept in oneDNN's order, where this PyTorch can do that."""
    try:
        if torch.backends.mkldnn.is_available():
            return PackedConvolution(convolution, weight_bytes)
    except (AttributeError, Unsupported):  # an operator that this PyTorch does not have
        pass
    return convolution
