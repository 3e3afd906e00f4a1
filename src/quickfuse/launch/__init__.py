"""Running kernels: compiling them once a process, tables of addresses, threads, streams."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import torch

from .. import logs
from ..errors import Unsupported
from ..ir.convolution import SteadyConvolution
from ..ir.kernel import Form, KernelBody, KernelCall, Schedule, is_launched
from ..ir.launching import Launch
from ..ir.loop import Buffer, Extern
from ..ir.products import SmallProduct
from ..ir.values import TensorMeta
from . import bulk_reads, cpu, same_tensors, unchanged
from .contents import Apart, ContentsReader
from .cuda_compile import LaunchShape
from .labels import labelled
from .memory import keep_freed_memory
from .packed import packed
from .replayed import Recorder
from .small_products import ProductCall
from .tables import CpuCall, Placer
from .tensor_check import tensor_check

#: Compiled CPU kernels that are in use, by body: the cache that makes 121 layers of one shape one kernel.
_cpu_kernels: weakref.WeakValueDictionary[KernelBody, cpu.LoadedKernel] = weakref.WeakValueDictionary()
#: The last ones compiled, which are kept for a while when nothing uses them.
_recent: deque[cpu.LoadedKernel] = deque(maxlen=1024)

#: How many kernels LLVM compiles at a time: see `cpu.load_kernels`.
_TOGETHER = 8


def begin_to_bind(
    schedule: Schedule,
    position: dict[Buffer, int],
    checked: list[TensorMeta],
    emit_cpu: Callable[[KernelBody, str], str],
    emit_gpu: Callable[[KernelBody, str, Form], str],
    recorded: bool = False,
    tuned: bool = False,
) -> Callable[[], tuple[list[Launch], Placer]]:
    """Begin to compile what is not compiled yet for a GPU. Returns what compiles the rest, waits, and prepares every kernel
    call of a schedule. `recorded`: for a CUDA graph. `tuned`: the launch shapes of the largest kernels on a GPU are found by
    measuring."""
    kernels = [step for step in schedule.steps if isinstance(step, KernelCall)]
    on_gpu = [step for step in kernels if step.device.type != "cpu"]
    shapes, wait = _compile_on_gpu(on_gpu, emit_gpu, recorded, tuned)  # by other processes, if it can be

    def bind() -> tuple[list[Launch], Placer]:
        placer = Placer(schedule, position, checked)
        compiled = _compile([step.body for step in kernels if step.device.type == "cpu"], emit_cpu)
        wait()
        calls: list[Launch] = []
        for step in schedule.steps:
            if isinstance(step, KernelCall):
                on_cpu = step.device.type == "cpu"
                call: Launch
                if on_cpu:
                    call = CpuCall(step, compiled[step.body], placer)
                else:
                    call = _bind_gpu(step, placer, emit_gpu, recorded, next(shapes))
                calls.append(call)
            elif type(step.target) is SmallProduct:
                calls.append(ProductCall(step, placer))
            elif isinstance(step.target, SteadyConvolution):
                step.target = packed(step.target, step.args[1].meta.span_bytes)
        logs.count("kernel launches", len(calls))
        logs.count("operator calls", sum(type(step) is Extern for step in schedule.steps if not is_launched(step)))
        return calls, placer

    return bind


def _compile(bodies: list[KernelBody], emit: Callable[[KernelBody, str], str]) -> dict[KernelBody, cpu.LoadedKernel]:
    """The kernels of these bodies. Those that are not compiled yet are compiled now, a few at a time."""
    if bodies:
        keep_freed_memory()
    kernels = {body: _cpu_kernels.get(body) for body in bodies}
    new = [body for body, kernel in kernels.items() if kernel is None]
    for start in range(0, len(new), _TOGETHER):
        some = new[start : start + _TOGETHER]
        made = cpu.load_kernels([emit(body, "kernel") for body in some])
        kernels.update(zip(some, made, strict=True))
        _cpu_kernels.update(zip(some, made, strict=True))
        _recent.extend(made)
    logs.count("distinct kernels", len(new))
    return kernels  # type: ignore[return-value]


def _compile_on_gpu(
    steps: list[KernelCall], emit: Callable[[KernelBody, str, Form], str], recorded: bool, tuned: bool
) -> tuple[Iterator[LaunchShape], Callable[[], None]]:
    if not steps:
        return iter(()), lambda: None
    from .gpu_call import compile_together

    shapes, wait = compile_together(steps, emit, recorded, tuned)
    return iter(shapes), wait


def _bind_gpu(
    step: KernelCall, placer: Placer, emit: Callable[[KernelBody, str, Form], str], recorded: bool, shape: LaunchShape
) -> Launch:
    from .gpu_call import GpuCall

    return GpuCall(step, placer, emit, recorded, shape)


def load_ahead() -> None:
    """Start the processes that compile for a GPU while the first graph is captured, in a process that uses one."""
    if torch.cuda.is_initialized():
        _warm_up_once()


@functools.cache
def _warm_up_once() -> None:
    from .cuda_compile import warm_up

    with contextlib.suppress(Unsupported):  # without Triton: who needs it is told
        warm_up()


def recorder(schedule: Schedule, calls: list[Launch]) -> Recorder:
    """What records the kernels and operators of a schedule that is on one GPU."""
    from .recording import recorder_of

    devices = {step.device for step in schedule.steps if isinstance(step, KernelCall)}
    devices |= {b.meta.device for step in schedule.steps if not isinstance(step, KernelCall) for b in step.buffers}
    index = next(d.index or 0 for d in devices if d.type == "cuda")
    return recorder_of(index, [call for call in calls if call.device_type == "cuda"])


__all__ = [
    "Apart", "ContentsReader", "begin_to_bind", "bulk_reads", "labelled", "load_ahead", "same_tensors", "tensor_check",
    "unchanged",
]  # fmt: skip
