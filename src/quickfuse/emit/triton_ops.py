"""Operations, types and constants as Triton expressions: the rule of each entry of `SCALAR_OPS`."""

from __future__ import annotations

import math
import re

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import FLOAT_FUNCTIONS, FLOATS_OF_A_BYTE, HALF_TYPES, Const, Op, short

#: What a dtype is in registers. Bools are stored as bytes, and floats of eight bits are only copied.
TRITON_TYPES: dict[torch.dtype, str] = {
    torch.bool: "tl.int1",
    **{
        getattr(torch, name): f"tl.{name}"
        for name in "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
    },
    **dict.fromkeys(FLOATS_OF_A_BYTE, "tl.uint8"),
}

#: name -> (source for floats, source for integers, source for bool); None: no such operation.
#: `libdevice` is NVIDIA's own math library, the one behind PyTorch's CUDA kernels; `qm` is `triton_math`.
#: Triton's `tl.exp`, `tl.sqrt` and `/` are approximations for float32, and so do not occur, but in `QUICK`.
OPERATIONS: dict[str, tuple[str | None, str | None, str | None]] = {
    "add": ("{0} + {1}", "{0} + {1}", "{0} | {1}"),
    "sub": ("{0} - {1}", "{0} - {1}", None),
    "mul": ("libdevice.mul_rn({0}, {1})", "{0} * {1}", "{0} & {1}"),
    "div": ("qm.float_div({0}, {1})", None, None),
    "trunc_div": (None, "qm.trunc_div({0}, {1})", None),
    "fmod": ("libdevice.fmod({0}, {1})", "qm.int_fmod({0}, {1})", None),
    "pow": ("libdevice.pow({0}, {1})", "qm.int_pow({0}, {1})", None),
    # Some versions of Triton write -x as 0 - x, which has the wrong sign for 0.
    "neg": ("{0} * -1.0", "-{0}", None),
    "abs": ("tl.abs({0})", "tl.abs({0})", "{0}"),
    "fma": ("tl.fma({0}, {1}, {2})", "{0} * {1} + {2}", None),
    # NaN is the one value that differs from itself.
    "maximum": ("qm.maximum({0}, {1})", "tl.where({0} > {1}, {0}, {1})", "{0} | {1}"),
    "minimum": ("qm.minimum({0}, {1})", "tl.where({0} < {1}, {0}, {1})", "{0} & {1}"),
    "fmax": ("tl.where(({0} > {1}) | ({1} != {1}), {0}, {1})", "tl.where({0} > {1}, {0}, {1})", "{0} | {1}"),
    "fmin": ("tl.where(({0} < {1}) | ({1} != {1}), {0}, {1})", "tl.where({0} < {1}, {0}, {1})", "{0} & {1}"),
    "sqrt": ("qm.sqrt({0})", None, None),
    **{name: (f"libdevice.{name}({{0}})", None, None) for name in (*FLOAT_FUNCTIONS, "rsqrt")},
    **{name: (f"libdevice.{name}({{0}})", "{0}", "{0}") for name in ("floor", "ceil", "trunc")},
    "round": ("libdevice.rint({0})", "{0}", "{0}"),
    **{name: (f"libdevice.{name}({{0}}, {{1}})", None, None) for name in ("atan2", "hypot", "copysign", "nextafter")},
    "eq": ("{0} == {1}",) * 3,
    "ne": ("{0} != {1}",) * 3,
    "lt": ("{0} < {1}", "{0} < {1}", "~{0} & {1}"),
    "le": ("{0} <= {1}", "{0} <= {1}", "~{0} | {1}"),
    "gt": ("{0} > {1}", "{0} > {1}", "{0} & ~{1}"),
    "ge": ("{0} >= {1}", "{0} >= {1}", "{0} | ~{1}"),
    "and": (None, "{0} & {1}", "{0} & {1}"),
    "or": (None, "{0} | {1}", "{0} | {1}"),
    "xor": (None, "{0} ^ {1}", "{0} ^ {1}"),
    "not": (None, "~{0}", "~{0}"),
    "shl": (None, "qm.shift_left({0}, {1})", None),
    "shr": (None, "qm.shift_right({0}, {1})", None),
    "where": ("tl.where({0}, {1}, {2})",) * 3,
}


#: A float32 power where there is one for each member. Eager's is right to 0.6 ulp, the one of the libdevice that Triton
#: brings to 3.5 ulp, which the `1 - beta ** step` of an optimizer magnifies; float64 costs nothing for so few.
POWER_OF_ONCE = "libdevice.pow({0}.to(tl.float64), {1}.to(tl.float64)).to(tl.float32)"


#: Where results are rounded to 16 bits: a few instructions in place of some ten, for the same results but for one in 2 ** 10
#: (float16) or 2 ** 13 (bfloat16), which lies that close to where rounding changes. Softmax of bfloat16 computes longer than
#: it loads otherwise: 46 instructions an element, H200.
QUICK = {"exp": "qm.quick_exp({0})", "div": "qm.quick_div({0}, {1})"}


#: What calls functions of libdevice other than the product.
_LIBDEVICE = re.compile(r"libdevice\.(?!mul_rn\b)|qm\.unscaled_sum")


def without_libdevice(source: str) -> str:
    """The source of a kernel, with products that are Triton's own if it calls nothing else of libdevice: linking that takes
    a good part of the time to compile a small kernel. Without libdevice nothing is fused, so that they are rounded, too."""
    if _LIBDEVICE.search(source):
        return source
    return re.sub(r"libdevice\.mul_rn\((\w+), (\w+)\)", r"\1 * \2", source)


def template(node: Op) -> str:
    # The operands have one type, but for the condition of a choice.
    dtype = node.args[-1].dtype
    if dtype in HALF_TYPES and node.name != "where":
        raise Unsupported(f"the operation {node.name} on {short(dtype)}, which is stored but not computed in")
    triton_type(dtype)
    column = 2 if dtype == torch.bool else 0 if dtype.is_floating_point else 1
    template = OPERATIONS.get(node.name, (None, None, None))[column]
    if template is None:
        raise Unsupported(f"the operation {node.name} on {short(dtype)} on a GPU")
    return template


def constant(node: Const) -> str:
    """A typed constant: Triton would give a bare literal a type of its own choice."""
    if node.dtype in HALF_TYPES:
        return f"{constant(Const(node.value, torch.float32))}.to({triton_type(node.dtype)})"
    literal: object = node.value
    if node.dtype.is_floating_point:
        number = float(node.value)
        if number == 0 and math.copysign(1, number) < 0:
            # Some versions of Triton take every zero for a positive one.
            return f"tl.full((), 0.0, {triton_type(node.dtype)}) * -1.0"
        literal = repr(number) if math.isfinite(number) else f'float("{number}")'
    elif node.dtype == torch.bool:
        literal = bool(node.value)
    return f"tl.full((), {literal}, {triton_type(node.dtype)})"


def cast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    """A C conversion, by way of the types through which PyTorch goes."""
    if source == target:
        return x
    if target == torch.bool:
        return f"{cast(x, source, torch.float32) if source in HALF_TYPES else x} != 0"
    steps = [target]
    if target in HALF_TYPES or source in HALF_TYPES:
        steps.insert(0, torch.float32)
    if source.is_floating_point and target in (torch.int8, torch.int16):
        steps.insert(-1, torch.int32)
    if source.is_floating_point and target in (torch.uint8, torch.uint16, torch.uint32):
        steps.insert(-1, torch.int64)
    for step in steps:
        if step != source:
            x = f"{x}.to({triton_type(step)})"
            source = step
    return x


def bitcast(x: str, source: torch.dtype, target: torch.dtype) -> str:
    if torch.bool in (source, target) or source.itemsize != target.itemsize:
        raise Unsupported(f"the bits of {short(source)} as {short(target)}")
    return f"{x}.to({triton_type(target)}, bitcast=True)"


def triton_type(dtype: torch.dtype) -> str:
    """The name of a type in registers."""
    if dtype not in TRITON_TYPES:
        raise Unsupported(f"{short(dtype)} in a GPU kernel")
    return TRITON_TYPES[dtype]


def pointer_type(dtype: torch.dtype) -> str:
    return f"tl.pointer_type({'tl.int8' if dtype == torch.bool else triton_type(dtype)})"


def from_memory(loaded: str, dtype: torch.dtype) -> str:
    return f"{loaded} != 0" if dtype == torch.bool else loaded


def to_memory(value: str, dtype: torch.dtype) -> str:
    return f"{value}.to(tl.int8)" if dtype == torch.bool else value
