"""Triton source to machine code, without the rest of the package: processes that compile import this and Triton alone."""

from __future__ import annotations

import hashlib
import linecache
from typing import Any, NamedTuple

_OPTIONS: dict[str, object] = {
    # Denormals stay what they are, as in PyTorch's kernels.
    "enable_reflect_ftz": False,
    "sanitize_overflow": False,
}


class Job(NamedTuple):
    """What to compile: the function `name` of a module, for a compute capability (90 for 9.0).

    `arguments` are names and types of its arguments, `constants` names and values of its constexprs; `index_bits` (0: it has
    no such) is the width of indices. `most_registers` (0: any number) is the limit for a thread.
    """

    source: str
    name: str
    arguments: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, int], ...]
    index_bits: int
    capability: int
    num_warps: int
    most_registers: int = 0


class Machine(NamedTuple):
    """Machine code, with what launching it needs."""

    cubin: bytes
    name: str
    shared_bytes: int
    ptx: str


def load_triton() -> None:
    """Import Triton, and have it compute what it computes once: a hash of its own libraries."""
    import triton.compiler  # noqa: F401
    from triton.runtime import cache

    triton_key = getattr(cache, "triton_key", None)
    if triton_key is not None:
        triton_key()


def load_source(source: str, name: str) -> Any:
    """The function `name` of generated source, findable by `inspect`, tracebacks and debuggers."""
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    filename = f"<quickfuse kernel {name} {digest}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"__name__": f"quickfuse.pipeline.kernels.{name}"}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def compile_job(job: Job) -> Machine:
    """Compile in this process. Triton keeps the result on disk for the next one."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants: dict[str, object] = dict(job.constants)
    if job.index_bits:
        constants["INDEX"] = tl.int64 if job.index_bits == 64 else tl.int32
    signature = {**dict(job.arguments), **dict.fromkeys(constants, "constexpr")}
    compiled = triton.compile(
        ASTSource(load_source(job.source, job.name), signature, constants),
        target=GPUTarget("cuda", job.capability, 32),
        options={
            # Within libdevice's functions products and sums fuse, as in PyTorch's build of them; in our own code they do
            # not, since `mul_rn` is always rounded. Where it is not imported, products are plain.
            **_OPTIONS, "enable_fp_fusion": "libdevice" in job.source, "num_warps": job.num_warps,
            "debug": "tl.device_assert" in job.source, **({"maxnreg": job.most_registers} if job.most_registers else {}),
        },  # fmt: skip
    )
    return Machine(compiled.asm["cubin"], compiled.metadata.name, compiled.metadata.shared, compiled.asm.get("ptx", ""))
