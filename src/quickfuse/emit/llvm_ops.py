"""How each scalar operation of `ir/expr.py` is written in LLVM IR.

Four kinds of type need different instructions: floats "f", signed "s" and unsigned "u" integers, and bool "b". Where C
or LLVM leave a result undefined (conversions out of range, division by zero, shifts by too much), the rules here
produce what eager PyTorch produces on x86-64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from quickfuse.emit.llvm_functions import FUNCTIONS
from quickfuse.emit.llvm_math import Code, value_type
from quickfuse.errors import Unsupported
from quickfuse.ir.expr import FLOAT_FUNCTIONS, HALF_TYPES, Op
from quickfuse.ir.target import CpuTarget

#: (where it is written, the LLVM type and the kind of the last operand, the operands) -> the name of the result.
Rule = Callable[[Code, str, str, list[str]], str]

UNSIGNED = frozenset({torch.uint8, torch.uint16, torch.uint32, torch.uint64})

#: op -> kind -> the one instruction that does it.
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "add": {"f": "fadd", "s": "add", "u": "add", "b": "or"},
    "sub": {"f": "fsub", "s": "sub", "u": "sub"},
    "mul": {"f": "fmul", "s": "mul", "u": "mul", "b": "and"},
    "div": {"f": "fdiv"},
    **{name: dict.fromkeys("sub", name) for name in ("and", "or", "xor")},
    "eq": {"f": "fcmp oeq", **dict.fromkeys("sub", "icmp eq")},
    "ne": {"f": "fcmp une", **dict.fromkeys("sub", "icmp ne")},
    **{
        name: {"f": f"fcmp o{name}", "s": f"icmp s{name}", "u": f"icmp u{name}", "b": f"icmp u{name}"}
        for name in ("lt", "le", "gt", "ge")
    },
}
#: op of floats -> the LLVM intrinsic that does it.
INTRINSICS = {**{name: name for name in ("sqrt", "floor", "ceil", "trunc", "copysign")}, "round": "roundeven"}
#: Operations of floats that are functions of libm, by the same name.
LIBM = frozenset((*FLOAT_FUNCTIONS, "pow", "fmod", "atan2", "hypot", "nextafter"))


def is_call(op: Op, target: CpuTarget) -> bool:
    """Whether an operation is a call of a function, which may change all vector registers."""
    return op.name in LIBM and op.dtype.is_floating_point and not _is_inline(op.name, value_type(op.dtype), target)


def _is_inline(name: str, element: str, target: CpuTarget) -> bool:
    return name in FUNCTIONS and element == "float" and target.has_fma


def emit_op(code: Code, op: Op, args: list[str]) -> str:
    """Append the instructions of `op` on the named operands; return the name of the result."""
    if op.name == "cast":
        return convert(code, args[0], op.args[0].dtype, op.dtype)
    if op.name == "bitcast":
        return _bitcast(code, args[0], op.args[0].dtype, op.dtype)
    operand = op.args[-1].dtype  # the first operand of `where` is a bool
    element = value_type(operand)
    kind = _kind(operand)
    if (operand in HALF_TYPES or operand.is_complex) and op.name != "where":
        raise Unsupported(f"{op.name} computed in {operand}")
    if kind in INSTRUCTIONS.get(op.name, ()):
        return code.binary(INSTRUCTIONS[op.name][kind], element, args[0], args[1], op.name)
    if op.name in INTRINSICS and kind == "f":
        return code.intrinsic(INTRINSICS[op.name], element, args)
    if _is_inline(op.name, element, code.module.target):
        return FUNCTIONS[op.name](code, args[0])
    if op.name in LIBM and kind == "f":
        return code.math(op.name, element, args)
    kinds, rule = RULES.get(op.name, ("", None))
    if rule is None or kind not in kinds:
        raise Unsupported(f"the CPU code generator has no {op.name} for {operand}")
    return rule(code, element, kind, args)


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "f"
    return "b" if dtype == torch.bool else "u" if dtype in UNSIGNED else "s"


# --- conversions ---


def convert(code: Code, x: str, source: torch.dtype, target: torch.dtype) -> str:
    """A value as another dtype, as `Tensor.to` converts it."""
    if source == target:
        return x
    if source in HALF_TYPES:
        return convert(code, _widen(code, x, source), torch.float32, target)
    if target in HALF_TYPES:
        return _narrow(code, convert(code, x, source, torch.float32), target)
    kinds = _kind(source) + _kind(target)
    old, new = value_type(source), value_type(target)
    if kinds[1] == "b":
        zero = code.const(old, 0)
        return code.binary("fcmp une" if kinds[0] == "f" else "icmp ne", old, x, zero)
    if kinds == "ff":
        return code.convert("fpext" if old == "float" else "fptrunc", old, x, new)
    if kinds[0] == "f":
        return _float_to_int(code, x, old, target)
    if kinds[1] == "f":
        return code.convert("sitofp" if kinds[0] == "s" else "uitofp", old, x, new)
    return _resize(code, x, old, new, signed=kinds[0] == "s")


def _resize(code: Code, x: str, old: str, new: str, *, signed: bool) -> str:
    old_bits, new_bits = int(old[1:]), int(new[1:])
    if old_bits == new_bits:
        return x
    return code.convert("trunc" if old_bits > new_bits else "sext" if signed else "zext", old, x, new)


def _widen(code: Code, x: str, source: torch.dtype) -> str:
    """A 16-bit float as float32, exactly."""
    if source == torch.float16:
        return code.convert("fpext", "half", x, "float")
    bits = code.convert("zext", "i16", x, "i32")
    return code.convert("bitcast", "i32", code.binary("shl", "i32", bits, code.const("i32", 16)), "float")


def _narrow(code: Code, x: str, target: torch.dtype) -> str:
    """A float32 as a 16-bit float, rounded to nearest even.

    For bfloat16: add just under half a unit in the last place, plus one if that place is odd, and cut. In integers, as
    the instruction that AVX-512 has for it would flush denormal numbers to zero.
    """
    if target == torch.float16:
        return code.convert("fptrunc", "float", x, "half")
    bits = code.convert("bitcast", "float", x, "i32")
    last_place = code.binary("lshr", "i32", bits, code.const("i32", 16))
    odd = code.binary("and", "i32", last_place, code.const("i32", 1))
    rounded = code.binary("add", "i32", bits, code.binary("add", "i32", odd, code.const("i32", 0x7FFF)))
    is_nan = code.binary("fcmp uno", "float", x, x)
    chosen = code.select(is_nan, "i32", code.const("i32", 0x7FC00000), rounded)
    return code.convert("trunc", "i32", code.binary("lshr", "i32", chosen, code.const("i32", 16)), "i16")


def _float_to_int(code: Code, x: str, old: str, target: torch.dtype) -> str:
    """Truncate. Out of range: what `cvttss2si` and its relatives give, as in PyTorch built for x86-64."""
    new = value_type(target)
    if target == torch.uint64:
        return _float_to_uint64(code, x, old)
    # C++ converts to a wider signed type first, and cuts: PyTorch takes int64 for uint8, the rest is up to compilers.
    wide = "i64" if target in (torch.uint8, torch.uint32, torch.int64) else "i32"
    return _resize(code, _truncate(code, x, old, wide), wide, new, signed=True)


def _truncate(code: Code, x: str, old: str, wide: str) -> str:
    """A float as a signed integer, the least one where it does not fit: LLVM leaves that undefined, hence `select`."""
    bits = int(wide[1:])
    magnitude = code.intrinsic("fabs", old, [x])
    fits = code.binary("fcmp olt", old, magnitude, code.const(old, 2.0 ** (bits - 1)))
    return code.select(fits, wide, code.convert("fptosi", old, x, wide), code.const(wide, -(1 << (bits - 1))))


def _float_to_uint64(code: Code, x: str, old: str) -> str:
    limit = code.const(old, 2.0**63)
    is_large = code.binary("fcmp oge", old, x, limit)
    small = _truncate(code, x, old, "i64")
    rest = _truncate(code, code.binary("fsub", old, x, limit), old, "i64")
    large = code.binary("xor", "i64", rest, code.const("i64", 1 << 63))
    return code.select(is_large, "i64", large, small)


def _bitcast(code: Code, x: str, source: torch.dtype, target: torch.dtype) -> str:
    old, new = value_type(source), value_type(target)
    if source.itemsize != target.itemsize or (old != new and "i1" in (old, new)):
        raise Unsupported(f"the bits of {source} as {target}")
    return x if old == new else code.convert("bitcast", old, x, new)


# --- arithmetic ---


def _neg(code: Code, element: str, kind: str, args: list[str]) -> str:
    if kind == "f":
        return code.let(f"fneg {code.type(element)} {args[0]}", "neg")
    return code.binary("sub", element, code.const(element, 0), args[0], "neg")


def _abs(code: Code, element: str, kind: str, args: list[str]) -> str:
    if kind == "f":
        return code.intrinsic("fabs", element, args)
    return code.intrinsic("abs", element, args, immediate="i1 false") if kind == "s" else args[0]


def _fma(code: Code, element: str, kind: str, args: list[str]) -> str:
    if kind == "f":
        return code.intrinsic("fma" if code.module.target.has_fma else "fmuladd", element, args)
    multiply, add = INSTRUCTIONS["mul"][kind], INSTRUCTIONS["add"][kind]
    return code.binary(add, element, code.binary(multiply, element, args[0], args[1]), args[2], "fma")


def _extremum(comparison: str, intrinsic: str, nan_wins: bool = True) -> Rule:
    """`maximum` and `minimum`, `fmax` and `fmin`: `x` where both are equal, as are zeros of different signs. With a NaN the
    comparison selects `x`; after that a NaN in `y` is selected, or `y` where `x` is one."""

    def rule(code: Code, element: str, kind: str, args: list[str]) -> str:
        if kind != "f":
            return code.intrinsic(("s" if kind == "s" else "u") + intrinsic, element, args)
        x, y = args
        chosen = code.select(code.binary(f"fcmp {comparison}", element, y, x), element, y, x)
        of = y if nan_wins else x
        return code.select(code.binary("fcmp uno", element, of, of), element, y, chosen, f"{intrinsic}imum")

    return rule


def _rsqrt(code: Code, element: str, kind: str, args: list[str]) -> str:
    return code.binary("fdiv", element, code.const(element, 1.0), code.intrinsic("sqrt", element, args), "rsqrt")


def _integer_division(code: Code, element: str, kind: str, args: list[str]) -> tuple[str, str]:
    """(quotient, y == 0) of C's division, without its traps: where y is 0 or -1, 1 divides instead, and the quotient by -1
    is the (wrapping) negative."""
    x, y = args
    zero, one = code.const(element, 0), code.const(element, 1)
    by_zero = code.binary("icmp eq", element, y, zero)
    if kind == "u":
        return code.binary("udiv", element, x, code.select(by_zero, element, one, y)), by_zero
    by_minus = code.binary("icmp eq", element, y, code.const(element, -1))
    divisor = code.select(code.binary("or", "i1", by_zero, by_minus), element, one, y)
    plain = code.binary("sdiv", element, x, divisor)
    return code.select(by_minus, element, code.binary("sub", element, zero, x), plain), by_zero


def _trunc_div(code: Code, element: str, kind: str, args: list[str]) -> str:
    quotient, by_zero = _integer_division(code, element, kind, args)
    return code.select(by_zero, element, code.const(element, 0), quotient)


def _fmod(code: Code, element: str, kind: str, args: list[str]) -> str:
    quotient, by_zero = _integer_division(code, element, kind, args)
    rest = code.binary("sub", element, args[0], code.binary("mul", element, quotient, args[1]))
    return code.select(by_zero, element, code.const(element, 0), rest)


#: Exponentiation by squaring, modulo 2**64: narrower integers are the low bits of this.
INTEGER_POWER = """\
define internal i64 @integer_power(i64 %base, i64 %exponent) #0 {
entry:
  br label %test
test:
  %b = phi i64 [ %base, %entry ], [ %b2, %square ]
  %e = phi i64 [ %exponent, %entry ], [ %e2, %square ]
  %r = phi i64 [ 1, %entry ], [ %r2, %square ]
  %more = icmp ne i64 %e, 0
  br i1 %more, label %square, label %done
square:
  %bit = trunc i64 %e to i1
  %rb = mul i64 %r, %b
  %r2 = select i1 %bit, i64 %rb, i64 %r
  %b2 = mul i64 %b, %b
  %e2 = lshr i64 %e, 1
  br label %test
done:
  ret i64 %r
}"""


def _integer_pow(code: Code, element: str, kind: str, args: list[str]) -> str:
    """A negative exponent gives the reciprocal, truncated: 1 for base 1, 1 or -1 for base -1, else 0."""
    signed = kind == "s"
    base, exponent = (_resize(code, arg, element, "i64", signed=signed) for arg in args)
    zero, one, minus = (code.const("i64", v) for v in (0, 1, -1))
    negative = code.binary("icmp slt", "i64", exponent, zero) if signed else ""
    code.module.helpers.setdefault("integer_power", INTEGER_POWER)
    positive = code.select(negative, "i64", zero, exponent) if signed else exponent
    power = code.each_lane("integer_power", "i64", [base, positive])
    if signed:
        odd = code.binary("icmp ne", "i64", code.binary("and", "i64", exponent, one), zero)
        of_minus = code.select(odd, "i64", minus, one)
        reciprocal = code.select(code.binary("icmp eq", "i64", base, minus), "i64", of_minus, zero)
        reciprocal = code.select(code.binary("icmp eq", "i64", base, one), "i64", one, reciprocal)
        power = code.select(negative, "i64", reciprocal, power)
    return _resize(code, power, "i64", element, signed=signed)


# --- bits and choice ---


def _not(code: Code, element: str, kind: str, args: list[str]) -> str:
    return code.binary("xor", element, args[0], code.const(element, -1), "not")


def _shift(name: str) -> Rule:
    """Shifts by a count out of range (negative ones are, as large unsigned numbers) give 0, or copies of the sign."""

    def rule(code: Code, element: str, kind: str, args: list[str]) -> str:
        x, count = args
        bits = int(element[1:])
        in_range = code.binary("icmp ult", element, count, code.const(element, bits))
        if name == "shr" and kind == "s":
            most = code.select(in_range, element, count, code.const(element, bits - 1))
            return code.binary("ashr", element, x, most, "shr")
        shifted = code.binary("shl" if name == "shl" else "lshr", element, x, count)
        return code.select(in_range, element, shifted, code.const(element, 0), name)

    return rule


def _where(code: Code, element: str, kind: str, args: list[str]) -> str:
    return code.select(args[0], element, args[1], args[2], "where")


#: Operations that take more than one instruction, for which kinds, where the tables above leave these out.
RULES: dict[str, tuple[str, Rule]] = {
    "trunc_div": ("su", _trunc_div), "fmod": ("su", _fmod), "pow": ("su", _integer_pow), "neg": ("fsu", _neg),
    "abs": ("fsub", _abs), "fma": ("fsub", _fma), "rsqrt": ("f", _rsqrt), "not": ("sub", _not),
    "maximum": ("fsub", _extremum("ogt", "max")), "minimum": ("fsub", _extremum("olt", "min")),
    "fmax": ("fsub", _extremum("ogt", "max", nan_wins=False)),
    "fmin": ("fsub", _extremum("olt", "min", nan_wins=False)),
    "shl": ("su", _shift("shl")), "shr": ("su", _shift("shr")), "where": ("fsub", _where),
}  # fmt: skip
