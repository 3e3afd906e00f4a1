"""Running kernels: compiling them once a process, tables of addresses, threads, streams."""

from __future__ import annotations

from collections.abc import Callable

from .. import logs
from ..ir.convolution import SteadyConvolution
from ..ir.kernel import KernelBody, KernelCall, Schedule
from ..ir.launching import Launch
from ..ir.loop import Buffer
from ..ir.values import TensorMeta
from . import bulk_reads, cpu, unchanged
from .contents import Apart, ContentsReader
from .memory import keep_freed_memory
from .packed import packed
from .tables import CpuCall, Placer
from .tensor_check import tensor_check

#: Addresses of compiled CPU kernels, by body: the cache that makes 121 layers of one shape one kernel.
_cpu_kernels: dict[KernelBody, int] = {}

#: How many kernels LLVM compiles at a time: see `cpu.load_together`.
_TOGETHER = 8


def bind(
    schedule: Schedule,
    position: dict[Buffer, int],
    checked: list[TensorMeta],
    emit_cpu: Callable[[KernelBody, str], str],
    emit_gpu: Callable[[KernelBody, str], str],
) -> tuple[list[Launch], Placer]:
    """Compile what is not compiled yet and prepare every kernel call of a schedule."""
    placer = Placer(schedule, position, checked)
    kernels = [step for step in schedule.steps if isinstance(step, KernelCall)]
    _compile([step.body for step in kernels if step.device.type == "cpu"], emit_cpu)
    calls: list[Launch] = []
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            if step.device.type == "cpu":
                calls.append(CpuCall(step, _cpu_kernels[step.body], placer))
            else:
                calls.append(_bind_gpu(step, placer, emit_gpu))
        elif isinstance(step.target, SteadyConvolution):
            step.target = packed(step.target, step.args[1].meta.span_bytes)
    logs.count("kernel launches", len(calls))
    logs.count("operator calls", len(schedule.steps) - len(calls))
    return calls, placer


def _compile(bodies: list[KernelBody], emit: Callable[[KernelBody, str], str]) -> None:
    """Compile the bodies that are not compiled yet, a few at a time."""
    if bodies:
        keep_freed_memory()
    new = [body for body in dict.fromkeys(bodies) if body not in _cpu_kernels]
    for start in range(0, len(new), _TOGETHER):
        names = {f"kernel{len(_cpu_kernels) + k}": body for k, body in enumerate(new[start : start + _TOGETHER])}
        sources = [emit(body, name) for name, body in names.items()]
        addresses = cpu.load_together(sources, list(names))
        _cpu_kernels.update((body, addresses[name]) for name, body in names.items())
    logs.count("distinct kernels", len(new))


def _bind_gpu(step: KernelCall, placer: Placer, emit: Callable[[KernelBody, str], str]) -> Launch:
    from .gpu_call import GpuCall

    return GpuCall(step, placer, emit)


__all__ = ["Apart", "ContentsReader", "bind", "bulk_reads", "tensor_check", "unchanged"]
