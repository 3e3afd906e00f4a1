"""Run in a process of its own: the only free pages left near each other are fewer than a kernel needs.

Programs that map a lot of memory (CUDA does) leave address spaces like this one. A kernel refers to its constants with
32 bits, so the parts of one kernel may not end up gigabytes apart.
"""

import ctypes
import math

from quickfuse.launch import cpu

IR = """
@table = private unnamed_addr constant [2 x double] [double 1.0, double 2.0]
declare double @sin(double)
define double @at%d(i64 %%k) {
  %%p = getelementptr [2 x double], ptr @table, i64 0, i64 %%k
  %%x = load double, ptr %%p
  %%s = call double @sin(double %%x)
  %%y = fadd double %%s, 0x3FD5555555555555
  ret double %%y
}
"""
PAGE = 4096
GAP = 3 << 30

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size: int) -> int:
    private_anonymous_unreserved = 0x4022
    address = libc.mmap(None, size, 0, private_anonymous_unreserved, -1, 0)
    assert isinstance(address, int)
    return address


def check(k: int) -> None:
    address = cpu.load(IR % k, [f"at{k}"])[f"at{k}"]
    value = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(address)(1)
    assert abs(value - (math.sin(2.0) + 1 / 3)) < 1e-12


check(0)
wide = reserve(16 * GAP)
while reserve(PAGE) > wide:  # the kernel of the machine gives out the highest pages first
    pass
for k in range(1, 16):
    libc.munmap(wide + k * GAP, PAGE)
for k in range(1, 4):
    check(k)
