"""A child process that runs generated Triton kernels on CPU memory, through Triton's interpreter.

The interpreter must be chosen before Triton is imported, for the whole process, so tests start this file as a program:
it answers pickled jobs (`Job` fields as a dict) on its standard input with the buffers after the run.

Triton's interpreter has no `libdevice`, and in one version or another truncates conversions to bfloat16, loses its
denormals, takes the comparison of two single values for a float, cannot invert unsigned integers, and does not take a
single value for the end of a range. These are replaced here, by PyTorch's CPU functions where there are any.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pickle
import sys
import types

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from quickfuse.emit import triton_math
from quickfuse.launch.triton_compile import load_source

_TORCH_NAMES = {"mul_rn": "mul", "rint": "round"}


class Libdevice:
    """The functions of libdevice on the interpreter's tensors, computed by PyTorch."""

    def __getattr__(self, name: str):
        function = getattr(torch, _TORCH_NAMES.get(name, name))

        def call(*args):
            arrays = np.broadcast_arrays(*(arg.handle.data for arg in args))
            result = function(*(torch.from_numpy(array.copy()) for array in arrays)).numpy()
            # The broadcast type: an operand's own would lose the shape of the other.
            shape = [arg.type for arg in args if arg.handle.data.shape == result.shape][0]
            return tl.tensor(interpreter.TensorHandle(result, args[0].dtype), shape)

        return call


def _cast_bfloat16(builder, source, target):
    kinds = (source.dtype.scalar, target.scalar)
    if kinds == (tl.float32, tl.bfloat16):
        rounded = torch.from_numpy(np.array(source.data)).bfloat16().view(torch.int16).numpy().view(np.uint16)
        return interpreter.TensorHandle(rounded, tl.bfloat16)
    if kinds == (tl.bfloat16, tl.float32):
        widened = (source.data.astype(np.uint32) << 16).view(np.float32)
        return interpreter.TensorHandle(widened, tl.float32)
    return _cast(builder, source, target)


def _splat(builder, block_type, source):
    return interpreter.TensorHandle(np.full(block_type.shape, source.data, source.data.dtype), source.dtype.scalar)


def _all_ones(builder, block_type):
    kind = interpreter._get_np_dtype(block_type)
    return interpreter.TensorHandle(np.array([-1]).astype(kind), block_type.scalar)


def _inline_asm(code, constraints, args, dtype, is_pure, pack):
    """The one instruction that kernels have: a power of 2."""
    assert code.startswith("ex2.approx.ftz.f32") and constraints == "=f,f"
    (x,) = args
    return tl.tensor(interpreter.TensorHandle(np.exp2(x.handle.data), tl.float32), x.type)


def _patch_tensor(tensor, *scope):
    _patch(tensor, *scope)
    tensor.__index__ = lambda self: int(self.handle.data.squeeze())


class _NothingToRestore:
    def restore(self) -> None:
        pass


@functools.cache
def _patch_modules(names: tuple[str, ...]):
    """Make the functions of Triton's language those of the interpreter, for good: to look for them all takes as long as many
    operations, and the interpreter does it for each kernel and each call of a function in it."""
    _patch_lang(types.SimpleNamespace(__globals__={name: sys.modules[name] for name in names}))
    return _NothingToRestore()


def _patch_once(function):
    modules = {value.__name__ for value in function.__globals__.values() if isinstance(value, types.ModuleType)}
    return _patch_modules(tuple(sorted(modules & {tl.__name__, tl.core.__name__})))


_patch = interpreter._patch_lang_tensor
_patch_lang = interpreter._patch_lang
_cast = interpreter.InterpreterBuilder.cast_impl
interpreter.InterpreterBuilder.cast_impl = _cast_bfloat16
interpreter.InterpreterBuilder.create_splat = _splat
interpreter.InterpreterBuilder.get_all_ones_value = _all_ones
interpreter._patch_lang_tensor = _patch_tensor
interpreter._patch_lang = _patch_once
_builder = interpreter.interpreter_builder  # that sums or products overflow is seen by what comes out
_builder.options = dataclasses.replace(_builder.options, sanitize_overflow=False)
tl.inline_asm_elementwise = _inline_asm


def run(job: dict) -> list[np.ndarray]:
    buffers, rows = job["buffers"], job["rows"]
    for member, word, buffer, byte_offset in job["addresses"]:
        rows[member, word] = buffers[buffer].ctypes.data + byte_offset
    kernel = load_source(job["source"], job["name"])
    for module in (sys.modules["quickfuse.emit.triton_math"].__dict__, kernel.fn.__globals__):
        if "libdevice" in module:
            module["libdevice"] = Libdevice()
    blocks = job["work"]
    constants = {name: getattr(tl, value) if name == "INDEX" else value for name, value in job["constants"].items()}
    if job.get("in_arguments"):
        first = [_argument("i64", word) for word in rows.reshape(-1)]
        kinds = job["number_types"]
        first += [
            _argument(kind, word.view(np.float64) if kind == "fp64" else word)
            for kind, word in zip(kinds, job["values"].reshape(-1), strict=True)
        ]
    else:
        work = torch.from_numpy(blocks) if isinstance(blocks, np.ndarray) else blocks
        first = [torch.from_numpy(rows), torch.from_numpy(job["values"]), work]
    kernel[job["grid"]](
        *first,
        *(_argument(kind, value) for kind, value in job["scalars"]),
        **constants,
    )
    return buffers


def _argument(kind: str, value: float):
    """A scalar argument with its type: the interpreter would choose one by the value."""
    types = {"fp64": (np.float64, tl.float64), "i64": (np.int64, tl.int64), "i8": (np.int8, tl.int8)}
    numpy_type, triton_type = types[kind]
    return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=numpy_type), triton_type), triton_type)


def main() -> None:
    assert triton_math is not None
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = run(job)
        except Exception as error:  # the test shows it
            answer = error.__cause__ or error
        pickle.dump(answer if not isinstance(answer, Exception) else RuntimeError(repr(answer)), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
