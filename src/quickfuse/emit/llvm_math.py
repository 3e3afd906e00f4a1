"""LLVM IR one instruction at a time: types, constants, and calls of math functions, for one number or for a vector.

A kernel's inner loop is written with explicit vectors (`<16 x float>`), not left to LLVM's loop vectoriser: then every
element goes through the same instructions wherever it stands in its row, nothing depends on heuristics, and compiling
takes a fraction of the time. Math functions on vectors are glibc's libmvec where it has them, whose names encode the
instruction set and the number of lanes ("Vector Function ABI for x86_64"); elsewhere libm is called for each lane.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from dataclasses import dataclass, field

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import FLOATS_OF_A_BYTE
from quickfuse.ir.target import CpuTarget
from quickfuse.signals import whole_module

#: How a value of each dtype is held in a register. bfloat16 has no arithmetic, and complex numbers and floats of eight bits
#: are only copied, so that their bits are enough.
VALUE_TYPES: dict[torch.dtype, str] = {
    torch.bool: "i1", torch.float16: "half", torch.float32: "float", torch.float64: "double",
    **{
        dtype: f"i{8 * dtype.itemsize}" for dtype in (
            torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
            torch.bfloat16, torch.complex32, torch.complex64, torch.complex128, *FLOATS_OF_A_BYTE,
        )
    },
}  # fmt: skip
#: Where an element of a buffer has another type.
_MEMORY_TYPES: dict[torch.dtype, str] = {torch.bool: "i8", torch.float16: "i16"}
#: The suffix that names a type in an intrinsic.
MANGLED = {"half": "f16", "float": "f32", "double": "f64"}
#: libmvec's letter for the instruction set with vectors of this many bytes: SSE4.2, AVX2, AVX-512.
LIBMVEC_ISA = {16: "b", 32: "d", 64: "e"}


def value_type(dtype: torch.dtype) -> str:
    """The LLVM type of one value."""
    if dtype not in VALUE_TYPES:
        raise Unsupported(f"the CPU code generator has no type for {dtype}")
    return VALUE_TYPES[dtype]


def memory_type(dtype: torch.dtype) -> str:
    """The LLVM type of one element of a buffer."""
    return _MEMORY_TYPES.get(dtype) or value_type(dtype)


def vector_function(target: CpuTarget, name: str, arity: int, element: str, lanes: int) -> str | None:
    """libmvec's variant of libm's `name` for vectors of `lanes` elements, if this machine has it."""
    vector_bytes = lanes * (4 if element == "float" else 8)
    if not target.libmvec or vector_bytes > target.vector_bytes or vector_bytes not in LIBMVEC_ISA:
        return None
    symbol = f"_ZGV{LIBMVEC_ISA[vector_bytes]}N{lanes}{'v' * arity}_{name}"
    return symbol if _in_libmvec(symbol) else None


@functools.cache
def host_target() -> CpuTarget:
    """This machine."""
    llvm = whole_module("llvmlite.binding")  # loads LLVM, which a program without CPU kernels need not wait for
    features = llvm.get_host_cpu_features()
    wide = all(features.get(name, False) for name in ("avx512f", "avx512bw", "avx512dq", "avx512vl"))
    avx2 = all(features.get(name, False) for name in ("avx2", "fma", "f16c"))
    x86 = llvm.get_process_triple().startswith("x86_64")
    return CpuTarget(vector_bytes=64 if wide else 32 if avx2 else 16, libmvec=x86)


@functools.cache
def _in_libmvec(symbol: str) -> bool:
    try:
        return hasattr(ctypes.CDLL("libmvec.so.1"), symbol)
    except OSError:  # not glibc
        return False


@dataclass(slots=True)
class Module:
    """What the functions of a module share: external declarations, helper functions, a supply of names."""

    target: CpuTarget
    declarations: dict[str, str] = field(default_factory=dict)
    helpers: dict[str, str] = field(default_factory=dict)
    names: int = 0

    def declare(self, symbol: str, result: str, params: list[str]) -> None:
        """Make a function known that is not one of the module's own."""
        if symbol not in self.declarations and symbol not in self.helpers:
            self.declarations[symbol] = f"declare {result} @{symbol}({', '.join(params)})"


class Code:
    """Instructions that are executed in a row, on vectors of `lanes` elements (1: on single numbers).

    Vector code has a `prologue` of single-number code that runs once before it, where its constants are spread.
    """

    def __init__(self, module: Module, lanes: int = 1, prologue: Code | None = None) -> None:
        self.module = module
        self.lanes = lanes
        self.prologue = prologue or self
        self.lines: list[str] = []
        self.spread: dict[str, str] = {}

    def let(self, instruction: str, hint: str = "t") -> str:
        """Append an instruction and return the name of its result."""
        self.module.names += 1
        name = f"%{hint}.{self.module.names}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def type(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def splat(self, name: str, element: str) -> str:
        """A single number of the prologue (or a literal) in all lanes."""
        if self.lanes == 1:
            return name
        key = f"{element} {name}"
        if key not in self.spread:
            vector = self.type(element)
            one = self.prologue.let(f"insertelement {vector} poison, {key}, i64 0")
            shuffle = f"shufflevector {vector} {one}, {vector} poison, <{self.lanes} x i32> zeroinitializer"
            self.spread[key] = self.prologue.let(shuffle, "all")
        return self.spread[key]

    def splat_here(self, name: str, element: str) -> str:
        """A single number in all lanes, which need not be known in the prologue."""
        vector = self.type(element)
        one = self.let(f"insertelement {vector} poison, {element} {name}, i64 0")
        return self.let(f"shufflevector {vector} {one}, {vector} poison, <{self.lanes} x i32> zeroinitializer", "all")

    def const(self, element: str, value: bool | int | float) -> str:
        return self.splat(literal(element, value), element)

    def iota(self, element: str) -> str:
        """0, 1, 2, ... over the lanes."""
        return "<" + ", ".join(f"{element} {k}" for k in range(self.lanes)) + ">"

    def binary(self, instruction: str, element: str, x: str, y: str, hint: str = "t") -> str:
        return self.let(f"{instruction} {self.type(element)} {x}, {y}", hint)

    def convert(self, instruction: str, source: str, x: str, target: str) -> str:
        return self.let(f"{instruction} {self.type(source)} {x} to {self.type(target)}")

    def select(self, condition: str, element: str, x: str, y: str, hint: str = "t") -> str:
        type_ = self.type(element)
        return self.let(f"select {self.type('i1')} {condition}, {type_} {x}, {type_} {y}", hint)

    def intrinsic(self, name: str, element: str, args: list[str], immediate: str = "") -> str:
        """Call `llvm.<name>` on operands of one type; `immediate` is a further constant operand ("i1 false")."""
        mangled = MANGLED.get(element, element)
        symbol = f"llvm.{name}.{mangled if self.lanes == 1 else f'v{self.lanes}{mangled}'}"
        return self._call(symbol, self.type(element), args, immediate, name)

    def intrinsic_of_vector(self, name: str, element: str, vector: str) -> str:
        """`llvm.vector.<name>`: one number from all lanes."""
        symbol = f"llvm.vector.{name}.v{self.lanes}{MANGLED.get(element, element)}"
        self.module.declare(symbol, element, [self.type(element)])
        return self.let(f"call {element} @{symbol}({self.type(element)} {vector})")

    def math(self, name: str, element: str, args: list[str]) -> str:
        """Call libm's `name` ("expf" is what `name="exp"` means for float)."""
        function = name + ("f" if element == "float" else "")
        if self.lanes == 1:
            return self._call(function, element, args, hint=name)
        symbol = vector_function(self.module.target, function, len(args), element, self.lanes)
        if symbol is None:
            return self.each_lane(function, element, args)
        return self._call(symbol, self.type(element), args, hint=name)

    def each_lane(self, function: str, element: str, args: list[str]) -> str:
        """Call a function of single numbers on each lane, through a helper function."""
        if self.lanes == 1:
            return self._call(function, element, args)
        self.module.declare(function, element, [element] * len(args))
        helper = f"lanes{self.lanes}.{function}"
        if helper not in self.module.helpers:
            self.module.helpers[helper] = _lane_loop(helper, function, element, self.lanes, len(args))
        vector = self.type(element)
        return self.let(f"call {vector} @{helper}({', '.join(f'{vector} {arg}' for arg in args)})")

    def _call(self, symbol: str, type_: str, args: list[str], immediate: str = "", hint: str = "t") -> str:
        operands = [f"{type_} {arg}" for arg in args] + ([immediate] if immediate else [])
        params = [type_] * len(args) + ([immediate.split()[0]] if immediate else [])
        self.module.declare(symbol, type_, params)
        return self.let(f"call {type_} @{symbol}({', '.join(operands)})", hint)


def _lane_loop(helper: str, function: str, element: str, lanes: int, arity: int) -> str:
    vector = f"<{lanes} x {element}>"
    names = "xyz"[:arity]
    spill = [f"  %{n}s = alloca {vector}\n  store {vector} %{n}, ptr %{n}s" for n in names]
    load = [f"  %{n}p = getelementptr {element}, ptr %{n}s, i64 %k\n  %{n}k = load {element}, ptr %{n}p" for n in names]
    return "\n".join([
        f"define internal {vector} @{helper}({', '.join(f'{vector} %{n}' for n in names)}) #0 {{",
        "entry:", *spill, "  br label %lane",
        "lane:", "  %k = phi i64 [ 0, %entry ], [ %next, %lane ]", *load,
        f"  %rk = call {element} @{function}({', '.join(f'{element} %{n}k' for n in names)})",
        f"  store {element} %rk, ptr %xp",
        "  %next = add i64 %k, 1", f"  %more = icmp ult i64 %next, {lanes}", "  br i1 %more, label %lane, label %done",
        "done:", f"  %r = load {vector}, ptr %xs", f"  ret {vector} %r", "}",
    ])  # fmt: skip


def literal(element: str, value: bool | int | float) -> str:
    """A constant of an LLVM type. Integers wrap; floats are rounded to the type and written as exact hexadecimal."""
    if element == "i1":
        return "true" if value else "false"
    if element.startswith("i"):
        bits = int(element[1:])
        wrapped = int(value) & ((1 << bits) - 1)
        return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)
    number = float(value)
    if element == "float":
        number = ctypes.c_float(number).value
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
