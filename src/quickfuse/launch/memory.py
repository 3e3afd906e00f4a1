"""New tensors for results and temporaries. Large ones lie in huge pages where the system has them.

Memory that is new to a process comes in pages, each with a trap into the system when it is first touched: with pages of
4 KB, more than a microsecond for what a kernel fills in a tenth of that. Linux gives 2 MB at a time to those who ask.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable

import torch

from ..ir.values import TensorMeta

#: Smaller tensors mostly get memory that was in use before.
_LEAST_BYTES = 4 << 20
_HUGE_PAGE = 2 << 20
_MADV_HUGEPAGE = 14


def maker(meta: TensorMeta) -> Callable[[], torch.Tensor]:
    """What makes a new tensor, with any contents."""
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
