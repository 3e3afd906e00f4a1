"""A CUDA graph of a schedule's kernels and operators, with memory of its own for what kernels read from tables.

While a stream is recorded nothing runs, so nothing can be uploaded: each kernel is recorded with a place in the recording's
own memory for its rows, and what the tables held at its launch is written there when the recording has ended. Numbers that
change from call to call (scalar arguments and values of host tensors) stand together at the beginning of that memory, and
are uploaded before a replay where they differ from those of the last one.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ..ir.garbage import collected_later
from . import cuda_driver
from .replayed import Recorder

#: How the types of scalar arguments are packed into words of 64 bits. A bool is read from its lowest byte.
_PACKED = {torch.float64: "d", torch.int64: "q", torch.bool: "q"}


class Recordable(Protocol):
    """A kernel call that can be recorded. Sizes are in words of 64 bits."""

    scalar_types: tuple[torch.dtype, ...]
    value_words: int
    row_words: int

    def values_now(self) -> Any:
        """The host's table of values, as one array of int64."""

    def rows_now(self) -> Any:
        """A copy of the host's table of rows, as one array of int64."""

    def record_on(self, stream: int, rows: int, values: int, scalars: int, launched: Callable[[], None], /) -> None:
        """Let launches on a stream read tables at these addresses; each calls `launched`. Nothing is uploaded."""

    def stop_recording(self, stream: int, /) -> None: ...


class CudaRecording:
    """What `capture` recorded, to be replayed on the stream that was current then."""

    def __init__(self, calls: Sequence[Recordable], device: int) -> None:
        self._calls = list(calls)
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._format = "<" + "".join(_PACKED[dtype] for call in self._calls for dtype in call.scalar_types)
        scalars = sum(len(call.scalar_types) for call in self._calls)
        values = sum(call.value_words for call in self._calls)
        self._memory = torch.empty(
            max(scalars + values + sum(call.row_words for call in self._calls), 1), dtype=torch.int64,
            device=torch.device("cuda", device),
        )  # fmt: skip
        self._numbers = np.zeros(scalars + values, dtype=np.int64)
        self._packed = memoryview(self._numbers).cast("B") if len(self._numbers) else memoryview(bytearray())
        self._sent = b""
        self._uploads: list[Callable[[], int]] = []
        if len(self._numbers):
            copies = cuda_driver.staged(self._memory.data_ptr(), self._numbers.ctypes.data, self._numbers.nbytes)
            self._uploads = cuda_driver.prepare_upload(copies, self._stream.cuda_stream)
        self._values: list[tuple[Recordable, Any]] = []
        at = scalars
        for call in self._calls:
            if call.value_words:
                self._values.append((call, self._numbers[at : at + call.value_words]))
                at += call.value_words
        self._first_value = scalars
        self.graph = torch.cuda.CUDAGraph()
        self._pool: Pool
        #: Bytes that the allocator took from the device for it.
        self.bytes = 0

    def capture(self, run: Callable[[], Any]) -> Any:
        """Record what `run()` does on the GPU, which does not happen yet, and return its result.

        Raises:
            Exception: what `run` raised, or what CUDA says of an operation that cannot be recorded.
        """
        stream = _capture_stream(self._device)
        _free_cached(self._device)
        before = torch.cuda.memory_reserved(self._device)
        stream.wait_stream(self._stream)
        # Until this graph is one of the pool's, another must not be its last.
        self._pool, user = pool_of(self._device, self._stream.cuda_stream)
        # What the program has left behind must not be finalized now: that might do something on the GPU.
        with torch.cuda.stream(stream), self._own_tables(stream.cuda_stream) as rows, collected_later():
            try:
                self.graph.capture_begin(pool=self._pool.handle, capture_error_mode="thread_local")
                del user
                result = run()
                if all(r is None for r in rows):  # PyTorch warns of graphs without work, which is no fault of the program's
                    self._memory.zero_()
                self.graph.capture_end()
            except BaseException:
                self._abandon()
                raise
        self._pool.users.add(self)
        self._write_rows(rows)
        self.bytes = torch.cuda.memory_reserved(self._device) - before
        return result

    def replay(self, scalars: tuple[Any, ...]) -> None:
        """Run it on the current stream with the kernels' scalar arguments, in the order of the calls."""
        if self._uploads:
            self._upload(scalars)
        self.graph.replay()

    def _upload(self, scalars: tuple[Any, ...]) -> None:
        struct.pack_into(self._format, self._packed, 0, *scalars)
        for call, place in self._values:
            place[:] = call.values_now()
        now = self._packed.tobytes()
        if now != self._sent:
            for upload in self._uploads:
                cuda_driver.check("cuMemcpyHtoDAsync", upload())
            self._sent = now

    @contextlib.contextmanager
    def _own_tables(self, stream: int) -> Iterator[list[Any]]:
        """Within it, launches on a stream find their tables in the recording's memory. Gives the rows that they had."""
        rows: list[Any] = [None] * len(self._calls)

        def launched(index: int) -> None:
            rows[index] = self._calls[index].rows_now()

        base, scalar, value, row = self._memory.data_ptr(), 0, self._first_value, len(self._numbers)
        for index, call in enumerate(self._calls):
            places = (base + 8 * row, base + 8 * value, base + 8 * scalar)
            call.record_on(stream, *places, functools.partial(launched, index))
            row += call.row_words
            value += call.value_words
            scalar += len(call.scalar_types)
        try:
            yield rows
        finally:
            for call in self._calls:
                call.stop_recording(stream)

    def _write_rows(self, rows: list[Any]) -> None:
        found = [np.zeros(call.row_words, np.int64) if r is None else r for call, r in zip(self._calls, rows, strict=True)]
        if found:
            host = torch.from_numpy(np.concatenate(found))
            self._memory[len(self._numbers) : len(self._numbers) + len(host)].copy_(host)

    def _abandon(self) -> None:
        """Leave a recording that went wrong.

        Where CUDA has refused it, PyTorch still takes memory of this stream from the graph's pool, asking the graph each
        time; and its generator of random numbers takes itself to be recorded, until a recording ends well.
        """
        with contextlib.suppress(Exception):
            self._memory.zero_()  # PyTorch warns of graphs without work
        with contextlib.suppress(Exception):
            self.graph.capture_end()
            return
        _abandoned.append(self.graph)
        self._pool.is_stuck = True
        _pools.pop((self._device, self._stream.cuda_stream), None)
        with contextlib.suppress(Exception):
            other = torch.cuda.CUDAGraph()
            other.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device=torch.device("cuda", self._device))
            other.capture_end()

    def allocate_again(self, address: int, nbytes: int) -> torch.Tensor | None:
        """Memory at an address that was freed in the graphs' pool a moment ago; None if it is not to be had."""
        if self._pool.is_stuck:
            return None
        pool, device = self._pool.handle, self._memory.device
        with torch.cuda.stream(_capture_stream(self._device)):
            torch._C._cuda_beginAllocateCurrentThreadToPool(self._device, pool)
            try:
                return allocate_at(address, nbytes, lambda size: torch.empty(size, dtype=torch.uint8, device=device))
            finally:
                torch._C._cuda_endAllocateToPool(self._device, pool)
                torch._C._cuda_releasePool(self._device, pool)


def allocate_at(address: int, nbytes: int, allocate: Callable[[int], torch.Tensor]) -> torch.Tensor | None:
    """Memory at an address that was just freed; None if `allocate(nbytes)` does not come to give it.

    The allocator joins what is freed with free memory beside it, and gives out the beginning of the smallest free block.
    What lies before the address in its block is taken first, and all of smaller blocks.
    """
    small = nbytes <= _SMALL
    taken: list[torch.Tensor] = []
    for _ in range(_TRIES):
        found = allocate(nbytes)
        at = found.data_ptr()
        if at == address:
            return found
        before = address - at
        if 0 < before < 2 * _SMALL if small else _SMALL < before <= _MOST_TAKEN:
            del found
            found = allocate(size := min(before, _SMALL) if small else before)
            if found.data_ptr() != at and before >= nbytes:  # the address is not in the block that begins there
                taken.append(allocate(nbytes))
            if 0 <= address - found.data_ptr() < size:
                del found
                continue
        taken.append(found)
    return None


#: How often to ask for memory until it is that which was just freed.
_TRIES = 64
#: PyTorch's allocator has pools of their own for requests of up to so many bytes, in segments of twice that.
_SMALL = 1 << 20
#: So many bytes are taken at most to come to the address that is wanted.
_MOST_TAKEN = 64 << 20
#: So many bytes that nobody uses may stay with the allocator when a graph is recorded.
_MOST_CACHED = 32 << 20
#: Graphs that PyTorch may still ask whether they are recorded.
_abandoned: list[Any] = []


@functools.cache
def _capture_stream(device: int) -> Any:
    return torch.cuda.Stream(device)


def _free_cached(device: int) -> None:
    """Give memory that nobody uses back to the device. A graph's pool takes none of what the allocator keeps for others, so
    that what the calls before the recording needed would be held twice."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if unused > _MOST_CACHED:
        torch.cuda.empty_cache()


class Pool:
    """The memory that all graphs of a stream share: on one stream, no two of them run at a time."""

    def __init__(self) -> None:
        self.handle = torch.cuda.graph_pool_handle()
        self.users: weakref.WeakSet[CudaRecording] = weakref.WeakSet()
        #: Whether a recording in it was refused in the middle, after which PyTorch lets nobody else take memory from it.
        self.is_stuck = False


_pools: dict[tuple[int, int], Pool] = {}


def pool_of(device: int, stream: int) -> tuple[Pool, CudaRecording | None]:
    """The pool of a stream's graphs, and one of these, which keeps the pool in use while it is referred to. A new pool where
    no graph is left, since PyTorch gives up a pool with its last."""
    pool = _pools.get((device, stream))
    user = None if pool is None else next(iter(pool.users), None)
    if pool is None or user is None:
        pool = _pools[device, stream] = Pool()
    return pool, user


def recorder_of(device: int, calls: Sequence[Recordable]) -> Recorder:
    """What makes graphs of these kernel calls, and of operators between them, on a device."""

    def stream() -> tuple[int, int]:
        return device, torch._C._cuda_getCurrentRawStream(device)

    return Recorder(lambda: CudaRecording(calls, device), stream, torch.cuda.is_current_stream_capturing)
