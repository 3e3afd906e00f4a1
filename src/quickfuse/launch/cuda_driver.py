"""The few functions of the CUDA driver API that launching needs, through ctypes.

PyTorch has created the contexts already (one for each device, the primary one); this module only uses them. All
functions raise `QuickfuseError` with the driver's own name and text of the error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from quickfuse.errors import QuickfuseError

from . import builtin, cpu

CUDA_SUCCESS = 0
CUDA_ERROR_INVALID_CONTEXT = 201
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

#: Kernels may use this much shared memory without asking.
DEFAULT_SHARED_BYTES = 48 * 1024

#: Up to this size, the driver copies pageable host memory before cuMemcpyHtoDAsync returns.
STAGED_COPY_BYTES = 64 * 1024

_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuGetErrorString": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuModuleLoadData": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p),
    "cuModuleGetFunction": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    # These two are on the path of every launch: callers pass ready-made ctypes objects, which need no conversion.
    "cuMemcpyHtoDAsync_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
    "cuLaunchKernel": (ctypes.c_void_p, *(ctypes.c_uint,) * 7, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
}


@functools.cache
def libcuda() -> ctypes.CDLL:
    """The driver library, with the argument types set."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise QuickfuseError(f"the CUDA driver library could not be loaded: {error}") from error
    for name, argtypes in _SIGNATURES.items():
        getattr(library, name).argtypes = argtypes
    return library


def check(function: str, status: int) -> None:
    """Raise if a driver function returned an error."""
    if status == CUDA_SUCCESS:
        return
    parts = []
    for lookup in (libcuda().cuGetErrorName, libcuda().cuGetErrorString):
        text = ctypes.c_char_p()
        lookup(status, ctypes.byref(text))
        parts.append(text.value.decode() if text.value else "unknown error")
    raise QuickfuseError(f"{function} failed with {parts[0]} ({status}): {parts[1]}")


def _call(function: str, *args: object) -> None:
    check(function, getattr(libcuda(), function)(*args))


@functools.cache
def primary_context(device: int) -> int:
    """The handle of a device's primary context, which is the one that PyTorch uses."""
    torch.cuda.init()
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(handle), device)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    assert context.value is not None
    return context.value


def bind_context(device: int) -> None:
    """Make the device's primary context current in the calling thread."""
    _call("cuCtxSetCurrent", primary_context(device))


def load_function(cubin: bytes, name: str, shared_bytes: int, device: int) -> int:
    """Load machine code on a device and return the handle of its kernel `name`. It stays loaded."""
    with torch.cuda.device(device):
        bind_context(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _call("cuModuleLoadData", ctypes.byref(module), cubin)
        _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared_bytes > DEFAULT_SHARED_BYTES:
            _call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)
    assert function.value is not None
    return function.value


class Copy(NamedTuple):
    """`size` bytes of host memory at `source` that go to the device, `target`: addresses. No more than the driver stages, so
    that the host may write to its memory again at once."""

    target: int
    source: int
    size: int


def staged(target: int, source: int, size: int) -> list[Copy]:
    """The copies that bring memory of any size to the device."""
    starts = range(0, size, STAGED_COPY_BYTES)
    return [Copy(target + at, source + at, min(STAGED_COPY_BYTES, size - at)) for at in starts]


def prepare_launch(
    function: int, grid: tuple[int, int], threads: int, shared_bytes: int, stream: int,
    params: ctypes.Array[ctypes.c_void_p], copies: Sequence[Copy] = (),
) -> Callable[[], int]:  # fmt: skip
    """A function that makes copies and launches a kernel on a grid of two dimensions, with everything converted beforehand.

    `params` are the addresses of the arguments; the arguments are read at each launch, before it returns. It gives the
    launch's status, or that of a copy that failed, negated: see `check_launch`.
    """
    library = libcuda()
    if isinstance(library, ctypes.CDLL) and builtin.layout_holds():
        return _native_launch(library, [function, *grid, threads, shared_bytes, stream, ctypes.addressof(params)], copies)
    one = ctypes.c_uint(1)
    launch = functools.partial(
        library.cuLaunchKernel, ctypes.c_void_p(function), *map(ctypes.c_uint, grid), one, ctypes.c_uint(threads),
        one, one, ctypes.c_uint(shared_bytes), ctypes.c_void_p(stream), params, ctypes.c_void_p(None),
    )  # fmt: skip
    uploads = prepare_upload(copies, stream)

    def copy_and_launch() -> int:
        for upload in uploads:
            if status := upload():
                return -status
        return launch()

    return copy_and_launch if uploads else launch


def check_launch(status: int) -> None:
    """Raise if what `prepare_launch` made returned an error."""
    check("cuLaunchKernel" if status > 0 else "cuMemcpyHtoDAsync", abs(status))


def is_without_context(status: int) -> bool:
    """Whether it failed because its thread has not used CUDA yet."""
    return abs(status) == CUDA_ERROR_INVALID_CONTEXT


def prepare_upload(copies: Sequence[Copy], stream: int) -> list[Callable[[], int]]:
    """Functions that make the copies."""
    return [
        functools.partial(
            libcuda().cuMemcpyHtoDAsync_v2, ctypes.c_uint64(copy.target), ctypes.c_void_p(copy.source),
            ctypes.c_size_t(copy.size), ctypes.c_void_p(stream),
        )
        for copy in copies
    ]  # fmt: skip


_LAUNCH = "quickfuse_cuda_launch"
#: Words of the block before the copies.
_LAUNCH_WORDS = 10


def _native_launch(library: ctypes.CDLL, words: list[int], copies: Sequence[Copy]) -> Callable[[], int]:
    """What `prepare_launch` makes, as one native function: a call through ctypes takes longer than the driver's own work."""
    names = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2")
    functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    block = np.array([*functions, *words, len(copies), *(word for copy in copies for word in copy)], dtype=np.int64)
    return builtin.no_argument(_LAUNCH, _launch_address(), block)


@functools.cache
def _launch_address() -> int:
    inner = f"{_LAUNCH}_block"
    ir = _launch_ir(inner) + builtin.of_one_argument(_LAUNCH, inner, "number")
    return cpu.load(ir, [_LAUNCH])[_LAUNCH]


def _launch_ir(name: str) -> str:
    """LLVM IR of the copies and the launch. Meanwhile other threads may run: the driver waits where its queue is full."""
    fields = "\n".join(
        f"  %f{k}.p = getelementptr i64, ptr %block, i64 {k}\n  %f{k} = load i64, ptr %f{k}.p" for k in range(_LAUNCH_WORDS)
    )
    return f"""
define i64 @{name}(ptr %nothing, i64 %block.i) {{
entry:
  %block = inttoptr i64 %block.i to ptr
{fields}
  %launch = inttoptr i64 %f0 to ptr
  %copy = inttoptr i64 %f1 to ptr
  %function = inttoptr i64 %f2 to ptr
  %grid.x = trunc i64 %f3 to i32
  %grid.y = trunc i64 %f4 to i32
  %threads = trunc i64 %f5 to i32
  %shared = trunc i64 %f6 to i32
  %stream = inttoptr i64 %f7 to ptr
  %params = inttoptr i64 %f8 to ptr
  %state = call ptr {builtin.api("PyEval_SaveThread")}()
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k.next, %next ]
  %done = icmp sge i64 %k, %f9
  br i1 %done, label %start, label %body
body:
  %at = mul i64 %k, 3
  %place = add i64 %at, {_LAUNCH_WORDS}
  %target.p = getelementptr i64, ptr %block, i64 %place
  %target = load i64, ptr %target.p
  %source.p = getelementptr i64, ptr %target.p, i64 1
  %source = load ptr, ptr %source.p
  %size.p = getelementptr i64, ptr %target.p, i64 2
  %size = load i64, ptr %size.p
  %copied = call i32 %copy(i64 %target, ptr %source, i64 %size, ptr %stream)
  %good = icmp eq i32 %copied, 0
  br i1 %good, label %next, label %failed
next:
  %k.next = add i64 %k, 1
  br label %head
failed:
  %negated = sub i32 0, %copied
  br label %exit
start:
  %launched = call i32 %launch(ptr %function, i32 %grid.x, i32 %grid.y, i32 1, i32 %threads, i32 1, i32 1, i32 %shared,
    ptr %stream, ptr %params, ptr null)
  br label %exit
exit:
  %status = phi i32 [ %launched, %start ], [ %negated, %failed ]
  call void {builtin.api("PyEval_RestoreThread")}(ptr %state)
  %wide = sext i32 %status to i64
  ret i64 %wide
}}
"""
