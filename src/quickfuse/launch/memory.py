"""New tensors for results and temporaries, and what becomes of the memory of old ones.

Memory that is new to a process comes in pages, each with a trap into the system when it is first touched: with pages of
4 KB, more than a microsecond for what a kernel fills in a tenth of that. Linux gives 2 MB at a time to those who ask, so
large tensors lie in huge pages where the system has them. And the C library is asked to keep what a step frees for the
next step, where it would give it back to the system: see decision 16.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

from .. import config
from ..ir.values import TensorMeta

#: Smaller tensors mostly get memory that was in use before.
_LEAST_BYTES = 4 << 20
_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14

#: Parameters of glibc's `mallopt`, and the environment variables by which users set them.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_SET_BY_USERS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
#: `torch.empty_strided` for the CPU without PyTorch's dispatcher and parser of arguments: 0.6 us for 1.3.
_empty_on_cpu: Any = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cpu", None)

#: Free memory at the end of the heap that is kept, and the largest blocks that come from the heap, in bytes.
_KEPT_BYTES, _LARGEST_BLOCK = 256 << 20, 32 << 20


@functools.cache
def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the tensors of the next step, unless the user has set how much it keeps.

    Returns:
        Whether it was asked to.
    """
    if not config.keep_freed_memory or any(name in os.environ for name in _SET_BY_USERS):
        return False
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


def maker(meta: TensorMeta) -> Callable[[], torch.Tensor]:
    """What makes a new tensor, with any contents."""
    if meta.device.type == "cpu" and _empty_on_cpu is not None:
        make = functools.partial(_empty_on_cpu, tuple(meta.shape), tuple(meta.stride), meta.dtype)
    else:
        make = functools.partial(torch.empty_strided, meta.shape, meta.stride, dtype=meta.dtype, device=meta.device)
    advise = _advise_function() if meta.device.type == "cpu" and meta.span_bytes >= _LEAST_BYTES else None
    if advise is None:
        return make
    nbytes = meta.span_bytes

    def make_in_huge_pages() -> torch.Tensor:
        tensor = make()
        start = tensor.data_ptr()
        first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        past = (start + nbytes) // _HUGE_PAGE * _HUGE_PAGE
        advise(first, past - first, _MADV_HUGEPAGE)  # a wish: nothing is lost where it is not granted
        return tensor

    return make_in_huge_pages


@functools.cache
def _advise_function() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    try:
        advise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    advise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    return advise  # type: ignore[no-any-return]
