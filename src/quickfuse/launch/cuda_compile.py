"""Generated Triton source to machine code, with or without a GPU at hand."""

from __future__ import annotations

import functools
import importlib.util
import re
from dataclasses import dataclass

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.kernel import Access, Form, KernelBody, KernelCall
from quickfuse.ir.target import CUDA
from quickfuse.logs import log

from . import compile_processes
from .triton_compile import Job

#: Trailing pointers that Triton adds to a kernel's parameters for its own use; our kernels need null ones.
_DEFAULT_HIDDEN_PARAMS = 2

#: Volta; Triton generates no code for older GPUs.
MIN_CAPABILITY = 70

_ARGUMENT_TYPES = {torch.float64: "fp64", torch.int64: "i64", torch.bool: "i8"}

#: CUDA takes 4 kB of arguments, some of which are Triton's.
_MOST_WORDS_IN_ARGUMENTS = 400


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """How much a program handles: `block` elements (a power of two) by `num_warps` warps of 32 threads; or, where bodies
    have rows, `block` rows and `columns` elements of each at a time (powers of two). `access`: which accesses there is
    code for."""

    block: int
    num_warps: int
    columns: int = 0
    form: Form = Form.WHOLE
    access: Access = Access.WIDE

    @property
    def threads(self) -> int:
        return 32 * self.num_warps


@dataclass(frozen=True, slots=True)
class CompiledCubin:
    """Machine code of one kernel. `hidden_params` null pointers follow the kernel's own arguments at launch."""

    cubin: bytes
    name: str
    shape: LaunchShape
    shared_bytes: int
    hidden_params: int
    ptx: str


def require_triton() -> None:
    """Raise `Unsupported` if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise Unsupported("GPU code without Triton, which is not installed", "pip install triton")


def warm_up() -> None:
    """Start the processes that compile. Call it as early as possible on the way to a first kernel."""
    require_triton()
    compile_processes.start()


def fits_arguments(call: KernelCall, recorded: bool) -> bool:
    """Whether the row and the numbers of a call's only member are passed as arguments. A recorded launch has the arguments
    that it was recorded with: there, numbers that change are read from memory."""
    body = call.body
    words = body.row_words + body.value_words + len(body.scalars)
    return len(call.members) == 1 and words <= _MOST_WORDS_IN_ARGUMENTS and not (recorded and body.value_words)


def argument_types(body: KernelBody, scalars_in_memory: bool = False, in_arguments: bool = False) -> dict[str, str]:
    """Triton's names of the types of a kernel's arguments, in order."""
    pointer = "*" if scalars_in_memory else ""
    scalars = {f"a{k}": pointer + _ARGUMENT_TYPES[dtype] for k, dtype in enumerate(body.scalars)}
    if in_arguments:
        words = {f"w{k}": "i64" for k in range(body.row_words)}
        numbers = [(k, slot.dtype == torch.float64) for k, slot in enumerate(body.slots) if slot.by_value]
        return {**words, **{f"s{k}": "fp64" if is_float else "i64" for k, is_float in numbers}, **scalars}
    work = {"members": "i32"} if body.ndim == 0 else {"blocks": "*i32"}
    return {"rows": "*i64", "values": "*i64", **work, **scalars}


def reading_scalars(source: str, name: str, body: KernelBody) -> str:
    """The source of a kernel that reads its scalar arguments from memory: where each call of a recorded graph finds its own.

    The kernel `name` becomes a function that the new kernel of this name calls.
    """
    inner = f"{name}_of_scalars"
    source = re.sub(rf"\bdef {name}\(", f"def {inner}(", source)
    found = re.search(rf"def {inner}\((.*?)\):", source, re.DOTALL)
    assert found is not None
    parameters = [part.strip() for part in found.group(1).split(",")]
    scalars = {f"a{k}" for k in range(len(body.scalars))}
    names = [part.partition(":")[0] for part in parameters]
    passed = [f"tl.load({n})" if n in scalars else n for n in names]
    return f"{source.rstrip()}\n\n\n@triton.jit\ndef {name}({', '.join(parameters)}):\n    {inner}({', '.join(passed)})\n"


def compile_kernel(
    source: str, body: KernelBody, name: str, *, capability: int, shape: LaunchShape, wide_index: bool = False,
    scalars_in_memory: bool = False, in_arguments: bool = False,
) -> CompiledCubin:  # fmt: skip
    """Compile generated source for GPUs of a compute capability (90 for 9.0). No GPU is needed.

    `wide_index`: do index arithmetic in 64 bits, for members of 2**31 elements or more (two axes or more only).
    `scalars_in_memory`: the source is that of `reading_scalars`; `in_arguments`: it is for one member, without tables.
    Compiled code is kept: the same source for the same device and shape is compiled once in a process, and Triton
    keeps it on disk for the next one.
    """
    require_triton()
    if capability < MIN_CAPABILITY:
        raise Unsupported(
            f"GPUs of compute capability {capability / 10} (below {MIN_CAPABILITY / 10}, which Triton needs)"
        )
    index_bits = 0 if body.ndim < 2 and not body.tiled else 64 if wide_index else 32
    # The key is the source, not the body: hashing a tree visits shared parts of it again and again.
    arguments = tuple(argument_types(body, scalars_in_memory, in_arguments).items())
    step, registers = unaligned_step(body, shape), most_registers(body, shape)
    return _compile(source, name, arguments, capability, shape, index_bits, step, registers, body.ndim > 0)


def most_registers(body: KernelBody, shape: LaunchShape) -> int:
    """The limit of a thread's registers; 0 for none. Values that are loaded one by one, with masks, take more registers than
    wide accesses: with code for both, all programs would have to make room for unaligned ones."""
    if not body.inner or not shape.columns or shape.form is not Form.WHOLE or not shape.access:
        return 0
    moving = body.moving
    are_few = shape.block * shape.columns <= 4 * CUDA.elements_a_thread * shape.threads
    light = len(moving) <= CUDA.few_operands and all(slot.dtype.itemsize <= 4 for slot in moving)
    return CUDA.most_registers if are_few and light and len(moving) != 2 else 0


def unaligned_step(body: KernelBody, shape: LaunchShape) -> int:
    """How many elements a program handles at a time where it cannot load 128 bits: as many for each thread as keep the
    memory system busy, which a kernel of many operands does with one each."""
    loaded = sum(slot.dtype.itemsize for slot in body.slots if not slot.by_value and "r" in slot.access)
    each = next(count for count in (1, 2, 4, 8) if count * max(loaded, 2) >= CUDA.bytes_under_way)
    return min(shape.block, shape.threads * each)


@functools.lru_cache(maxsize=1024)
def _compile(
    source: str, name: str, arguments: tuple[tuple[str, str], ...], capability: int, shape: LaunchShape, index_bits: int,
    step: int, registers: int, has_axes: bool,
) -> CompiledCubin:  # fmt: skip
    constants: dict[str, int] = {"BLOCK": shape.block}
    if shape.columns:
        constants.update(COLUMNS=shape.columns, ALIGN=int(shape.access))
    elif has_axes:
        constants.update(TAIL=step, ALIGN=bool(shape.access))
    job = Job(source, name, arguments, tuple(constants.items()), index_bits, capability, shape.num_warps, registers)
    try:
        made = compile_processes.compiled(job)
    except Exception as error:  # Triton has such faults, which depend on what it knows of addresses
        if not constants.get("ALIGN"):
            raise
        log.warning("Triton failed to compile a kernel with wide accesses, which gets narrow ones: %s", error)
        made = compile_processes.compiled(job._replace(constants=tuple({**constants, "ALIGN": 0}.items())))
    hidden = _hidden_params(made.ptx, len(arguments))
    return CompiledCubin(made.cubin, made.name, shape, made.shared_bytes, hidden, made.ptx)


def _hidden_params(ptx: str, visible: int) -> int:
    # The number has grown from one version of Triton to the next, so it is read off the code itself.
    entry = re.search(r"\.entry\s+\w+\s*\((.*?)\)", ptx, re.DOTALL)
    return entry.group(1).count(".param") - visible if entry else _DEFAULT_HIDDEN_PARAMS
