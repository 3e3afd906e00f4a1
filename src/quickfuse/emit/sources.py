"""The code generators as launchers call them: with their output in the log."""

from __future__ import annotations

from .. import logs
from ..ir.kernel import Form, KernelBody
from .llvm import emit as emit_llvm


def emit_cpu(body: KernelBody, name: str) -> str:
    """LLVM IR of a kernel."""
    source = emit_llvm(body, name)
    logs.emit("kernels", source)
    return source


def emit_gpu(body: KernelBody, name: str, form: Form, in_arguments: bool) -> str:
    """Triton code of a kernel."""
    from .triton import emit as emit_triton  # which a program without GPU kernels need not wait for

    source = emit_triton(body, name, form, in_arguments)
    logs.emit("kernels", source)
    return source
