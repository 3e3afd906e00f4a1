"""A kernel call on a GPU as the glue sees it: the same table of addresses as on the CPU, and values from host cells."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from .. import config, logs
from ..errors import QuickfuseError
from ..ir.kernel import Form, KernelBody, KernelCall
from .cuda import CudaKernelCall, compile_call
from .cuda_compile import LaunchShape, fits_arguments, reading_scalars
from .cuda_shapes import device_index, launch_shape, multiprocessors_of
from .scratch import seconds_of
from .shared_shapes import shared_shapes
from .tables import MemberTable, Placer
from .tuning import tuned_shapes

#: Names of kernels by body; and the source in each form, with tables or without.
_names: dict[KernelBody, str] = {}
_sources: dict[tuple[KernelBody, Form, bool], str] = {}

Emit = Callable[[KernelBody, str, Form, bool], str]


class _Variant(NamedTuple):
    """How a kernel gets what differs between its calls, as arguments or from memory: see `CudaKernelCall`."""

    scalars_in_memory: bool
    in_arguments: bool

    @classmethod
    def of(cls, call: KernelCall, recorded: bool) -> _Variant:
        return cls(recorded and bool(call.body.scalars), fits_arguments(call, recorded))


def compile_together(
    calls: list[KernelCall], emit: Emit, recorded: bool, tuned: bool = False
) -> tuple[list[LaunchShape], Callable[[], None]]:
    """Begin to compile the kernels of some calls, several at a time. Returns how each call is launched, and a function that
    waits until all are compiled, and raises what was raised meanwhile.

    `tuned`: the shapes of the largest kernels are found by measuring.
    """
    shapes = shared_shapes(calls, multiprocessors_of(calls[0]))
    if tuned:
        shapes = _tuned(calls, shapes, emit, recorded)
    return shapes, _compile_all([*zip(calls, shapes, strict=True)], emit, recorded)


def _compile_all(pairs: list[tuple[KernelCall, LaunchShape]], emit: Emit, recorded: bool) -> Callable[[], None]:
    jobs = {}
    for call, shape in pairs:
        variant = _Variant.of(call, recorded)
        job = (_named(call), _source(call.body, shape.form, emit, variant), shape, *variant)
        jobs.setdefault((call.body, shape, variant), job)
    pool = ThreadPoolExecutor(max(1, min(len(jobs), config.compile_processes or os.cpu_count() or 1)))
    longest_first = sorted(jobs.values(), key=lambda job: -len(job[1]))
    results = [pool.submit(compile_call, *job) for job in longest_first]
    pool.shutdown(wait=False)

    def wait() -> None:
        for result in results:
            result.result()

    return wait


def _tuned(calls: list[KernelCall], shapes: list[LaunchShape], emit: Emit, recorded: bool) -> list[LaunchShape]:
    """The shapes of calls, those of the largest kernels by measuring."""
    import triton

    device = torch.cuda.get_device_properties(device_index(calls[0]))

    def key(call: KernelCall, shape: LaunchShape) -> str:
        members = [(member.sizes, member.strides, member.offsets) for member in call.members]
        source = emit(call.body, "kernel", shape.form, _Variant.of(call, recorded).in_arguments)
        return repr([device.name, triton.__version__, source, shape, members])

    def timer(call: KernelCall, shape: LaunchShape) -> float:
        call, variant = _named(call), _Variant.of(call, recorded)
        source = _source(call.body, shape.form, emit, variant)
        return seconds_of(CudaKernelCall(call, source, shape=shape, **variant._asdict()), call)

    def compile_all(pairs: list[tuple[KernelCall, LaunchShape]]) -> None:
        with contextlib.suppress(Exception):  # of a shape that Triton refuses, which the timer will find again
            _compile_all(pairs, emit, recorded)()

    try:
        return tuned_shapes(calls, shapes, key, compile_all, timer)
    except (torch.OutOfMemoryError, QuickfuseError) as error:
        logs.log.warning("launch shapes are not measured: %s", error)
        return shapes


def name_of_kernel(call: KernelCall) -> str:
    """The name of a call's kernel on GPUs, as profilers show it."""
    return _name_of(call.body)


def _name_of(body: KernelBody) -> str:
    """A name that follows from the body: Triton finds what it has compiled by the source, which has it in it."""
    name = _names.get(body)
    if name is None:
        name = _names[body] = f"kernel_{hashlib.sha256(str(body).encode()).hexdigest()[:8]}"
    return name


def _named(call: KernelCall) -> KernelCall:
    return replace(call, name=name_of_kernel(call))


def _source(body: KernelBody, form: Form, emit: Emit, variant: _Variant) -> str:
    key = (body, form, variant.in_arguments)
    source = _sources.get(key)
    name = _name_of(body)
    if source is None:
        logs.count("distinct kernels")
        source = _sources[key] = emit(body, name, form, variant.in_arguments)
    return reading_scalars(source, name, body) if variant.scalars_in_memory else source


class GpuCall:
    """A kernel call on a GPU, ready to run: `launch(stream, *scalars)`. `recorded`: its launches can be recorded."""

    device_type: Literal["cuda"] = "cuda"
    current_stream: Callable[[int], int]

    def __init__(
        self, call: KernelCall, placer: Placer, emit: Emit, recorded: bool = False, shape: LaunchShape | None = None
    ) -> None:
        """`shape` is that of `compile_together`; without, what is best for this call."""
        call = _named(call)
        slots = [k for k, slot in enumerate(call.body.slots) if slot.by_value]
        picks = [[placer.cell_index(member.buffers[k]) for k in slots] for member in call.members]
        self._picks = np.array(picks, dtype=np.int64).reshape(len(picks), len(slots))
        self._cells = placer.cells
        values = _as_they_stand(self._cells, self._picks)
        shape = shape or launch_shape(call)
        variant = _Variant.of(call, recorded)
        source = _source(call.body, shape.form, emit, variant)
        self._call = CudaKernelCall(call, source, shape=shape, values=values, **variant._asdict())
        self.table = _UploadedTable(call, self._call, placer)
        placer.tables.append(self.table)
        self.launch = self._call.run
        self.rows_changed = self._call.rows_changed
        self.words_of = self.table.words_of
        rows = self._call.rows
        self.words = (ctypes.c_int64 * max(rows.size, 1)).from_address(rows.ctypes.data)
        self.current_stream = torch._C._cuda_getCurrentRawStream
        self.gathers = bool(slots) and values is None
        self.scalar_types = call.body.scalars
        self.value_words = self._call.values.size
        self.uploads = not variant.in_arguments
        self.row_words = rows.size if self.uploads else 0
        self.record_on = self._call.record_on
        self.stop_recording = self._call.stop_recording

    def values_now(self) -> np.ndarray:
        """The host's table of values, as one array."""
        return self._call.values.reshape(-1)

    def rows_now(self) -> np.ndarray:
        """A copy of the host's table of rows, as one array; nothing of rows that are arguments."""
        return self._call.rows.reshape(-1)[: self.row_words].copy()

    def gather(self) -> None:
        """Copy the host numbers that the members need into the value table."""
        np.take(self._cells, self._picks, out=self._call.values)


def _as_they_stand(cells: np.ndarray, picks: np.ndarray) -> np.ndarray | None:
    """The part of the cells that is a kernel's value table already, if there is one."""
    if not picks.size or (picks.reshape(-1) != np.arange(picks.flat[0], picks.flat[0] + picks.size)).any():
        return None
    return cells[picks.flat[0] : picks.flat[0] + picks.size].reshape(picks.shape)


class _UploadedTable(MemberTable):
    """A member table whose changes have to be uploaded."""

    def __init__(self, call: KernelCall, kernel: CudaKernelCall, placer: Placer) -> None:
        super().__init__(call, kernel.rows, placer)
        self._kernel = kernel
        self.few = []  # nothing else writes its words: `place` tells the kernel of each change

    def place(self, addresses: np.ndarray) -> None:
        if len(self._words):
            super().place(addresses)
            self._kernel.rows_changed()

    def move_arena(self, base: int) -> None:
        if len(self._in_arena):
            super().move_arena(base)
            self._kernel.rows_changed()
