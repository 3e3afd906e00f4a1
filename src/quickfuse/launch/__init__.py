"""Running kernels: compiling them once a process, tables of addresses, threads, streams."""

from __future__ import annotations

from collections.abc import Callable

from .. import logs
from ..ir.convolution import SteadyConvolution
from ..ir.kernel import KernelBody, KernelCall, Schedule
from ..ir.loop import Buffer
from ..ir.values import TensorMeta
from . import bulk_reads, cpu, unchanged
from .contents import Apart, ContentsReader
from .packed import packed
from .tables import CpuCall, Placer
from .tensor_check import tensor_check

#: Addresses of compiled CPU kernels, by body: the cache that makes 121 layers of one shape one kernel.
_cpu_kernels: dict[KernelBody, int] = {}


def bind(
    schedule: Schedule,
    position: dict[Buffer, int],
    checked: list[TensorMeta],
    emit_cpu: Callable[[KernelBody, str], str],
    emit_gpu: Callable[[KernelBody, str], str],
) -> tuple[list[CpuCall], Placer]:
    """Compile what is not compiled yet and prepare every kernel call of a schedule."""
    placer = Placer(schedule, position, checked)
    calls = []
    for step in schedule.steps:
        if isinstance(step, KernelCall):
            call = _bind_cpu(step, placer, emit_cpu) if step.device.type == "cpu" else _bind_gpu(step, placer, emit_gpu)
            placer.tables.append(call.table)
            calls.append(call)
        elif isinstance(step.target, SteadyConvolution):
            step.target = packed(step.target, step.args[1].meta.span_bytes)
    logs.count("kernel launches", len(calls))
    logs.count("operator calls", len(schedule.steps) - len(calls))
    return calls, placer


def _bind_cpu(step: KernelCall, placer: Placer, emit: Callable[[KernelBody, str], str]) -> CpuCall:
    address = _cpu_kernels.get(step.body)
    if address is None:
        name = f"kernel{len(_cpu_kernels)}"
        logs.count("distinct kernels")
        symbol = f"{name}_block"
        address = _cpu_kernels[step.body] = cpu.load(emit(step.body, name), [symbol])[symbol]
    return CpuCall(step, address, placer)


def _bind_gpu(step: KernelCall, placer: Placer, emit: Callable[[KernelBody, str], str]) -> CpuCall:
    from .gpu_call import GpuCall

    return GpuCall(step, placer, emit)  # type: ignore[return-value]


__all__ = ["Apart", "ContentsReader", "bind", "bulk_reads", "tensor_check", "unchanged"]
