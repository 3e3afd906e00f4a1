"""The few functions of the CUDA driver API that launching needs, through ctypes.

PyTorch has created the contexts already (one for each device, the primary one); this module only uses them. All
functions raise `QuickfuseError` with the driver's own name and text of the error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import torch

from quickfuse.errors import QuickfuseError

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


def prepare_launch(
    function: int, programs: int, threads: int, shared_bytes: int, stream: int, params: ctypes.Array[ctypes.c_void_p]
) -> Callable[[], int]:
    """A function that launches a kernel on a one-dimensional grid, with everything converted beforehand.

    `params` are the addresses of the arguments; the arguments are read at each launch, before it returns.
    """
    one = ctypes.c_uint(1)
    return functools.partial(
        libcuda().cuLaunchKernel, ctypes.c_void_p(function), ctypes.c_uint(programs), one, one, ctypes.c_uint(threads),
        one, one, ctypes.c_uint(shared_bytes), ctypes.c_void_p(stream), params, ctypes.c_void_p(None),
    )  # fmt: skip


def prepare_upload(target: int, source: int, size: int, stream: int) -> list[Callable[[], int]]:
    """Functions that, called in turn, copy `size` bytes of host memory at `source` to the device.

    The copy is in parts that the driver stages, so that the host may write to its memory again at once.
    """
    return [
        functools.partial(
            libcuda().cuMemcpyHtoDAsync_v2,
            ctypes.c_uint64(target + start),
            ctypes.c_void_p(source + start),
            ctypes.c_size_t(min(STAGED_COPY_BYTES, size - start)),
            ctypes.c_void_p(stream),
        )  # fmt: skip
        for start in range(0, size, STAGED_COPY_BYTES)
    ]
