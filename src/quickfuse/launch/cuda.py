"""Running generated kernels on a CUDA device: tables, uploads and launches.

The host side of a launch is a few microseconds whatever the number of members: the tables are uploaded when they
change, argument arrays are built once for each stream, and then there is one copy (of values that differ between
members, if the kernel has any) and one launch. What a single member's tables would hold are arguments of the launch, which
the driver reads where the host keeps them: nothing is uploaded then. Argument order and tables are described in
`emit.triton`.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from quickfuse.ir.kernel import KernelCall, row_template

from . import cuda_driver
from .cuda_compile import CompiledCubin, LaunchShape, compile_kernel
from .cuda_shapes import device_index, launch_shape, needs_wide_index, program_grid, program_table

#: Streams belong to a device; with more than one of them it has to be the current one.
_several_devices = functools.cache(lambda: torch.cuda.device_count() > 1)

_ARGUMENT_CLASSES = {torch.float64: ctypes.c_double, torch.int64: ctypes.c_int64, torch.bool: ctypes.c_int8}


@functools.lru_cache(maxsize=4096)
def _load(compiled: CompiledCubin, device: int) -> int:
    return cuda_driver.load_function(compiled.cubin, compiled.name, compiled.shared_bytes, device)


def compile_call(
    call: KernelCall, source: str, shape: LaunchShape, scalars_in_memory: bool = False, in_arguments: bool = False
) -> CompiledCubin:
    """The machine code of a call's kernel for the device that it is on. Several threads may compile at a time.

    `scalars_in_memory`: the kernel gets the address of each scalar argument. `in_arguments`: it gets no tables.
    """
    body = call.body
    properties = torch.cuda.get_device_properties(device_index(call))
    has_index = body.ndim > 1 or body.tiled
    return compile_kernel(
        source, body, call.name, capability=10 * properties.major + properties.minor, shape=shape,
        wide_index=has_index and needs_wide_index(body, call.members, shape.block + shape.columns),
        scalars_in_memory=scalars_in_memory, in_arguments=in_arguments,
    )  # fmt: skip


class CudaKernelCall:
    """One grouped launch, ready to run again and again.

    `rows` and `values` are the host's tables (int64, a row for each member). Write addresses into `rows` at
    `body.slot_word(slot)` and then call `rows_changed()`; write numbers into `values` at `body.value_word(slot)`
    (float64 as its bits: `values.view(np.float64)`) at any time. Both keep their memory, so that native code may write
    to them by address. `run` copies what it needs before it returns.
    """

    def __init__(
        self, call: KernelCall, source: str, *, shape: LaunchShape | None = None,
        values: npt.NDArray[np.int64] | None = None, scalars_in_memory: bool = False, in_arguments: bool = False,
    ) -> None:  # fmt: skip
        """Compile and load `source`, which defines the kernel `call.name`, for the members of `call`.

        `shape` overrides the choice of block size and warps, `values` is the memory of the value table. The source of a body
        with rows is for the form of its shape. With `scalars_in_memory` the kernel reads scalar arguments from memory, and
        launches can be recorded. `in_arguments`: the source is for one member, whose tables are arguments.
        """
        torch.cuda.init()
        body = call.body
        self.body = body
        self.rows = _table([row_template(body, member) for member in call.members], body.row_words)
        self.values = np.zeros((len(call.members), body.value_words), dtype=np.int64) if values is None else values
        self._device = device_index(call)
        self.shape = shape or launch_shape(call)
        self.scalars_in_memory = scalars_in_memory and bool(body.scalars)
        self.in_arguments = in_arguments
        self.compiled = compile_call(call, source, self.shape, self.scalars_in_memory, in_arguments)
        self._function = _load(self.compiled, self._device)
        self._blocks: torch.Tensor | None = None
        if body.ndim == 0:
            self.grid = (-(-len(call.members) // self.shape.block), 1)
        elif grid := program_grid(body, call.members, self.shape):
            self.grid = grid
        else:
            table = program_table(body, call.members, self.shape)
            self.grid = (len(table), 1)
            # This copy ends before it returns, so every stream may read the table from now on.
            self._blocks = device_table(table.shape, torch.int32, self._device)
            self._blocks.copy_(torch.from_numpy(table))
        self._version = 0
        self._one_of_several = _several_devices()
        self._streams: dict[int, _StreamTables | _RecordedTables] = {}

    def rows_changed(self) -> None:
        """Have `rows` uploaded again by the next run on each stream, if they are not arguments."""
        if not self.in_arguments:
            self._version += 1

    def run(self, stream: int, *scalars: float) -> None:
        """Launch on a stream (its handle, 0 for the default one) with the values of the scalar arguments."""
        tables = self._streams.get(stream)
        if tables is None or self._one_of_several:
            return self._run_on_device(stream, *scalars)
        if tables.version != self._version:
            tables.bring_rows(self)
        if scalars:
            for argument, value in zip(tables.scalars, scalars, strict=True):
                argument.value = value
        if status := tables.launch():
            self._failed(tables, status)

    def _run_on_device(self, stream: int, *scalars: float) -> None:
        """The same where there are several devices, or no tables yet."""
        if self._one_of_several and torch.cuda.current_device() != self._device:
            with torch.cuda.device(self._device):
                return self._run_on_device(stream, *scalars)
        tables = self._streams.get(stream)
        if tables is None:
            if not math.prod(self.grid):
                return
            cuda_driver.bind_context(self._device)
            tables = self._streams[stream] = _StreamTables(self, stream)
        if tables.version != self._version:
            tables.bring_rows(self)
        for argument, value in zip(tables.scalars, scalars, strict=True):
            argument.value = value
        if status := tables.launch():
            self._failed(tables, status)

    def record_on(self, stream: int, rows: int, values: int, scalars: int, launched: Callable[[], None]) -> None:
        """Let launches on a stream read tables at these addresses; each calls `launched`. Nothing is uploaded."""
        self._streams[stream] = _RecordedTables(self, stream, rows, values, scalars, launched)

    def stop_recording(self, stream: int) -> None:
        self._streams.pop(stream, None)

    def _checked(self, function: Callable[[], int]) -> None:
        status = function()
        if status == cuda_driver.CUDA_ERROR_INVALID_CONTEXT:
            cuda_driver.bind_context(self._device)
            status = function()
        if status:
            cuda_driver.check("cuMemcpyHtoDAsync", status)

    def _failed(self, tables: _StreamTables | _RecordedTables, status: int) -> None:
        if cuda_driver.is_without_context(status):
            cuda_driver.bind_context(self._device)
            status = tables.launch()
        if status:
            cuda_driver.check_launch(status)

    def _null_params(self) -> list[ctypes.c_uint64]:
        return [ctypes.c_uint64(0) for _ in range(self.compiled.hidden_params)]


class _StreamTables:
    """The device's copies of the tables for one stream, so that work on another one never sees them half changed.

    Addresses of temporaries and gradients often alternate between a few places from call to call: copies of the last tables
    of rows are kept, so that those which were uploaded before are not uploaded again.
    """

    def __init__(self, call: CudaKernelCall, stream: int) -> None:
        self._stream = stream
        self._rows: dict[bytes, torch.Tensor] = {}
        self.version = call._version if call.in_arguments else -1
        copies, tables = [], []
        if not call.in_arguments:
            self._values = device_table(call.values.shape, torch.int64, call._device, stream)
            copies = _copies(self._values, call.values)  # before each launch
            tables = [0, self._values.data_ptr()]
        self.scalars: list[Any] = [_ARGUMENT_CLASSES[dtype]() for dtype in call.body.scalars]
        passed = self.scalars
        if call.scalars_in_memory:
            host = np.zeros(len(self.scalars), dtype=np.int64)
            self.scalars = [_ARGUMENT_CLASSES[dtype].from_buffer(host, 8 * k) for k, dtype in enumerate(call.body.scalars)]
            self._scalars = device_table(host.shape, torch.int64, call._device, stream)
            copies = [*copies, *_copies(self._scalars, host)]
            passed = [ctypes.c_uint64(self._scalars.data_ptr() + 8 * k) for k in range(len(host))]
        self.launch, self._arguments = _prepared(call, stream, tables, passed, copies)

    def bring_rows(self, call: CudaKernelCall) -> None:
        """Let the kernel read the rows as they are now."""
        rows = call.rows
        key = rows.tobytes() if rows.nbytes <= _MOST_REMEMBERED_BYTES else b""
        table = self._rows.get(key)
        if table is None or not key:
            table = self._upload(call, key, table)
        self._arguments[0].value = table.data_ptr()
        self.version = call._version

    def _upload(self, call: CudaKernelCall, key: bytes, table: torch.Tensor | None) -> torch.Tensor:
        """Upload the rows, into the memory of the oldest table where there are too many: launches before have read it."""
        if table is None and len(self._rows) >= _MOST_REMEMBERED:
            table = self._rows.pop(next(iter(self._rows)))
        if table is None:
            table = device_table(call.rows.shape, torch.int64, call._device, self._stream)
        for upload in cuda_driver.prepare_upload(_copies(table, call.rows), self._stream):
            call._checked(upload)
        self._rows[key] = table
        return table


#: So many tables of rows are kept on the device for each kernel call and stream, of as many bytes at most.
_MOST_REMEMBERED, _MOST_REMEMBERED_BYTES = 4, 8192


class _RecordedTables:
    """Tables in the memory of a recording, which writes to them itself."""

    version = -1

    def __init__(
        self, call: CudaKernelCall, stream: int, rows: int, values: int, scalars: int, launched: Callable[[], None]
    ) -> None:
        self._launched = launched
        self.scalars = [ctypes.c_double() if t.is_floating_point else ctypes.c_int64() for t in call.body.scalars]
        passed = [ctypes.c_uint64(scalars + 8 * k) for k in range(len(self.scalars))]
        self.launch, self._arguments = _prepared(call, stream, [rows, values], passed)

    def bring_rows(self, call: CudaKernelCall) -> None:
        """Called before each launch, as no version of the tables is ever reached."""
        self._launched()


def _prepared(
    call: CudaKernelCall, stream: int, tables: Sequence[int], passed: Sequence[Any], copies: Sequence[cuda_driver.Copy] = (),
) -> tuple[Callable[[], int], list[Any]]:  # fmt: skip
    """What launches a kernel on a stream, and the arguments, which it needs to be kept. `tables` are the addresses of rows
    and values on the device."""
    arguments: list[Any] = []
    addresses: list[int] = []
    if call.in_arguments:
        words = (call.rows, call.values)
        addresses = [table.ctypes.data + 8 * k for table in words for k in range(table.size)]
    elif call.body.ndim == 0:
        arguments = [*map(ctypes.c_uint64, tables), ctypes.c_int32(len(call.rows))]
    else:
        blocks = 0 if call._blocks is None else call._blocks.data_ptr()
        arguments = [ctypes.c_uint64(address) for address in (*tables, blocks)]
    arguments += [*passed, *call._null_params()]
    addresses += [ctypes.addressof(argument) for argument in arguments]
    params = (ctypes.c_void_p * len(addresses))(*addresses)
    launch = cuda_driver.prepare_launch(
        call._function, call.grid, call.shape.threads, call.compiled.shared_bytes, stream,
        params, copies,
    )  # fmt: skip
    return launch, [*arguments, params]


def device_table(shape: tuple[int, ...], dtype: torch.dtype, device: int, stream: int = 0) -> torch.Tensor:
    """Memory on a device that belongs to a stream: once freed, only later work on that stream gets it."""
    owner = torch.cuda.ExternalStream(stream, device) if stream else torch.cuda.default_stream(device)
    with torch.cuda.stream(owner):
        return torch.empty(shape, dtype=dtype, device=torch.device("cuda", device))


def _copies(target: torch.Tensor, source: npt.NDArray[np.int64]) -> list[cuda_driver.Copy]:
    return cuda_driver.staged(target.data_ptr(), source.ctypes.data, source.nbytes)


def _table(rows: list[list[int]], words: int) -> npt.NDArray[np.int64]:
    return np.array(rows, dtype=np.int64).reshape(len(rows), words)
