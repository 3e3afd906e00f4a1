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
from quickfuse.ir.expr import HALF_TYPES, SCALAR_OPS, Op
from quickfuse.ir.target import CpuTarget

Rule = Callable[[Code, Op, list[str]], str]

UNSIGNED = frozenset({torch.uint8, torch.uint16, torch.uint32, torch.uint64})

#: op -> kind -> the one instruction that does it.
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "add": {"f": "fadd", "s": "add", "u": "add", "b": "or"},
    "sub": {"f": "fsub", "s": "sub", "u": "sub"},
    "mul": {"f": "fmul", "s": "mul", "u": "mul", "b": "and"},
    "div": {"f": "fdiv"},
    "and": {"s": "and", "u": "and", "b": "and"},
    "or": {"s": "or", "u": "or", "b": "or"},
    "xor": {"s": "xor", "u": "xor", "b": "xor"},
    "eq": {"f": "fcmp oeq", "s": "icmp eq", "u": "icmp eq", "b": "icmp eq"},
    "ne": {"f": "fcmp une", "s": "icmp ne", "u": "icmp ne", "b": "icmp ne"},
    "lt": {"f": "fcmp olt", "s": "icmp slt", "u": "icmp ult", "b": "icmp ult"},
    "le": {"f": "fcmp ole", "s": "icmp sle", "u": "icmp ule", "b": "icmp ule"},
    "gt": {"f": "fcmp ogt", "s": "icmp sgt", "u": "icmp ugt", "b": "icmp ugt"},
    "ge": {"f": "fcmp oge", "s": "icmp sge", "u": "icmp uge", "b": "icmp uge"},
}
#: op -> kind -> the LLVM intrinsic that does it.
INTRINSICS: dict[str, dict[str, str]] = {
    "sqrt": {"f": "sqrt"},
    "floor": {"f": "floor"},
    "ceil": {"f": "ceil"},
    "trunc": {"f": "trunc"},
    "round": {"f": "roundeven"},
    "copysign": {"f": "copysign"},
}
#: Operations of floats that are functions of libm, by the same name.
LIBM = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc lgamma "
    "pow fmod atan2 hypot nextafter".split()
)


def is_call(op: Op, target: CpuTarget) -> bool:
    """Whether an operation is a call of a function, which may change all vector registers."""
    return op.name in LIBM and op.dtype.is_floating_point and not _is_inline(op.name, value_type(op.dtype), target)


def _is_inline(name: str, element: str, target: CpuTarget) -> bool:
    return name in FUNCTIONS and element == "float" and target.has_fma


def emit_op(code: Code, op: Op, args: list[str]) -> str:
    """Append the instructions of `op` on the named operands; return the name of the result."""
    if op.name in CONVERSIONS:
        return CONVERSIONS[op.name](code, op, args)
    operand = op.args[-1].dtype  # the first operand of `where` is a bool
    element = value_type(operand)
    kind = _kind(operand)
    if (operand in HALF_TYPES or operand.is_complex) and op.name != "where":
        raise Unsupported(f"{op.name} computed in {operand}")
    if op.name in INSTRUCTIONS and kind in INSTRUCTIONS[op.name]:
        return code.binary(INSTRUCTIONS[op.name][kind], element, args[0], args[1], op.name)
    if op.name in INTRINSICS and kind in INTRINSICS[op.name]:
        return code.intrinsic(INTRINSICS[op.name][kind], element, args)
    if _is_inline(op.name, element, code.module.target):
        return FUNCTIONS[op.name](code, args[0])
    if op.name in LIBM and kind == "f":
        return code.math(op.name, element, args)
    if op.name in RULES:
        return RULES[op.name](code, op, args)
    known = "for" if op.name in SCALAR_OPS else "known for"
    raise Unsupported(f"the CPU code generator has no {op.name} {known} {operand}")


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_floating_point:
        return "f"
    return "b" if dtype == torch.bool else "u" if dtype in UNSIGNED else "s"


def _element(op: Op) -> tuple[str, str]:
    """The LLVM type and the kind of an operation's last operand."""
    return value_type(op.args[-1].dtype), _kind(op.args[-1].dtype)


# --- conversions ---


def _cast(code: Code, op: Op, args: list[str]) -> str:
    return convert(code, args[0], op.args[0].dtype, op.dtype)


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


def _bitcast(code: Code, op: Op, args: list[str]) -> str:
    source, target = op.args[0].dtype, op.dtype
    old, new = value_type(source), value_type(target)
    if source.itemsize != target.itemsize or (old != new and "i1" in (old, new)):
        raise Unsupported(f"the bits of {source} as {target}")
    return args[0] if old == new else code.convert("bitcast", old, args[0], new)


# --- arithmetic ---


def _neg(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        return code.let(f"fneg {code.type(element)} {args[0]}", "neg")
    if kind == "b":
        raise Unsupported("neg of bool")
    return code.binary("sub", element, code.const(element, 0), args[0], "neg")


def _abs(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        return code.intrinsic("fabs", element, args)
    return code.intrinsic("abs", element, args, immediate="i1 false") if kind == "s" else args[0]


def _sign(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "b":
        return args[0]
    zero, one, minus = (code.const(element, v) for v in (0, 1, -1))
    compare = "fcmp o" if kind == "f" else "icmp u" if kind == "u" else "icmp s"
    positive = code.binary(f"{compare}gt", element, args[0], zero)
    below = zero
    if kind != "u":
        below = code.select(code.binary(f"{compare}lt", element, args[0], zero), element, minus, zero)
    return code.select(positive, element, one, below, "sign")


def _fma(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        return code.intrinsic("fma" if code.module.target.has_fma else "fmuladd", element, args)
    multiply, add = INSTRUCTIONS["mul"][kind], INSTRUCTIONS["add"][kind]
    return code.binary(add, element, code.binary(multiply, element, args[0], args[1]), args[2], "fma")


def _extremum(comparison: str, intrinsic: str, nan_wins: bool = True) -> Rule:
    """`maximum` and `minimum`, `fmax` and `fmin`: `x` where both are equal, as are zeros of different signs. With a NaN the
    comparison selects `x`; after that a NaN in `y` is selected, or `y` where `x` is one."""

    def rule(code: Code, op: Op, args: list[str]) -> str:
        element, kind = _element(op)
        if kind != "f":
            return code.intrinsic(("s" if kind == "s" else "u") + intrinsic, element, args)
        x, y = args
        chosen = code.select(code.binary(f"fcmp {comparison}", element, y, x), element, y, x)
        of = y if nan_wins else x
        return code.select(code.binary("fcmp uno", element, of, of), element, y, chosen, f"{intrinsic}imum")

    return rule


def _rsqrt(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind != "f":
        raise Unsupported(f"rsqrt of {op.args[0].dtype}")
    return code.binary("fdiv", element, code.const(element, 1.0), code.intrinsic("sqrt", element, args), "rsqrt")


def _integer_division(code: Code, op: Op, args: list[str]) -> tuple[str, str, str, str]:
    """(quotient, remainder, y == 0, divisor) of C's division, without its traps: where y is 0 or -1, 1 divides instead,
    and the quotient by -1 is the (wrapping) negative."""
    element, kind = _element(op)
    if kind == "b":
        raise Unsupported(f"{op.name} of bool")
    x, y = args
    zero, one = code.const(element, 0), code.const(element, 1)
    by_zero = code.binary("icmp eq", element, y, zero)
    if kind == "u":
        divisor = code.select(by_zero, element, one, y)
        quotient = code.binary("udiv", element, x, divisor)
    else:
        by_minus = code.binary("icmp eq", element, y, code.const(element, -1))
        divisor = code.select(code.binary("or", "i1", by_zero, by_minus), element, one, y)
        plain = code.binary("sdiv", element, x, divisor)
        quotient = code.select(by_minus, element, code.binary("sub", element, zero, x), plain)
    remainder = code.binary("sub", element, x, code.binary("mul", element, quotient, y))
    return (
        code.select(by_zero, element, zero, quotient),
        code.select(by_zero, element, zero, remainder),
        by_zero,
        divisor,
    )


def _trunc_div(code: Code, op: Op, args: list[str]) -> str:
    if _kind(op.dtype) == "f":
        raise Unsupported("trunc_div of floats")
    return _integer_division(code, op, args)[0]


def _fmod(code: Code, op: Op, args: list[str]) -> str:
    return _integer_division(code, op, args)[1]


def _signs_differ(code: Code, op: Op, remainder: str, y: str) -> str:
    """Where a remainder is not 0 and its sign is not the divisor's."""
    element, kind = _element(op)
    zero = code.const(element, 0)
    if kind == "f":
        negative = [code.binary("fcmp olt", element, v, zero) for v in (remainder, y)]
        opposite = code.binary("xor", "i1", *negative)
        return code.binary("and", "i1", code.binary("fcmp une", element, remainder, zero), opposite)
    opposite = code.binary("icmp slt", element, code.binary("xor", element, remainder, y), zero)
    return code.binary("and", "i1", code.binary("icmp ne", element, remainder, zero), opposite)


def _remainder(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        plain, add = code.math("fmod", element, args), "fadd"
    else:
        plain, add = _integer_division(code, op, args)[1], "add"
    if kind == "u":
        return plain
    differ = _signs_differ(code, op, plain, args[1])
    return code.select(differ, element, code.binary(add, element, plain, args[1]), plain, "remainder")


def _floor_div(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        return _float_floor_div(code, op, args)
    quotient, remainder, _, _ = _integer_division(code, op, args)
    if kind == "u":
        return quotient
    differ = _signs_differ(code, op, remainder, args[1])
    return code.select(differ, element, code.binary("add", element, quotient, code.const(element, -1)), quotient)


def _float_floor_div(code: Code, op: Op, args: list[str]) -> str:
    """Python's algorithm, as in `torch.floor_divide`: right where the quotient would round up to an integer."""
    element, _ = _element(op)
    x, y = args
    zero, one = code.const(element, 0), code.const(element, 1)
    ratio = code.binary("fdiv", element, x, y)
    modulo = code.math("fmod", element, args)
    quotient = code.binary("fdiv", element, code.binary("fsub", element, x, modulo), y)
    less = code.binary("fsub", element, quotient, one)
    quotient = code.select(_signs_differ(code, op, modulo, y), element, less, quotient)
    floor = code.intrinsic("floor", element, [quotient])
    gap = code.binary("fsub", element, quotient, floor)
    above_half = code.binary("fcmp ogt", element, gap, code.const(element, 0.5))
    nearest = code.select(above_half, element, code.binary("fadd", element, floor, one), floor)
    is_zero = code.binary("fcmp oeq", element, quotient, zero)
    nearest = code.select(is_zero, element, code.intrinsic("copysign", element, [zero, ratio]), nearest)
    return code.select(code.binary("fcmp oeq", element, y, zero), element, ratio, nearest, "floor_div")


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


def _integer_pow(code: Code, op: Op, args: list[str]) -> str:
    """A negative exponent gives the reciprocal, truncated: 1 for base 1, 1 or -1 for base -1, else 0."""
    element, kind = _element(op)
    if kind == "b":
        raise Unsupported("pow of bool")
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


# --- tests, bits and choice ---


def _isnan(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    return code.binary("fcmp uno", element, args[0], args[0], "isnan") if kind == "f" else code.const("i1", False)


def _isinf(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind != "f":
        return code.const("i1", False)
    infinity = code.const(element, float("inf"))
    return code.binary("fcmp oeq", element, code.intrinsic("fabs", element, args), infinity, "isinf")


def _not(code: Code, op: Op, args: list[str]) -> str:
    element, kind = _element(op)
    if kind == "f":
        raise Unsupported(f"not of {op.dtype}")
    return code.binary("xor", element, args[0], code.const(element, -1), "not")


def _shift(code: Code, op: Op, args: list[str]) -> str:
    """Shifts by a count out of range (negative ones are, as large unsigned numbers) give 0, or copies of the sign."""
    element, kind = _element(op)
    if kind not in "su":
        raise Unsupported(f"{op.name} of {op.dtype}")
    x, count = args
    bits = int(element[1:])
    in_range = code.binary("icmp ult", element, count, code.const(element, bits))
    if op.name == "shr" and kind == "s":
        most = code.select(in_range, element, count, code.const(element, bits - 1))
        return code.binary("ashr", element, x, most, "shr")
    shifted = code.binary("shl" if op.name == "shl" else "lshr", element, x, count)
    return code.select(in_range, element, shifted, code.const(element, 0), op.name)


def _where(code: Code, op: Op, args: list[str]) -> str:
    return code.select(args[0], value_type(op.dtype), args[1], args[2], "where")


CONVERSIONS: dict[str, Rule] = {"cast": _cast, "bitcast": _bitcast}
#: Operations that take more than one instruction, for the kinds that the tables above leave out.
RULES: dict[str, Rule] = {
    "trunc_div": _trunc_div,
    "floor_div": _floor_div,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _integer_pow,
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "fma": _fma,
    "maximum": _extremum("ogt", "max"),
    "minimum": _extremum("olt", "min"),
    "fmax": _extremum("ogt", "max", nan_wins=False),
    "fmin": _extremum("olt", "min", nan_wins=False),
    "rsqrt": _rsqrt,
    "isnan": _isnan,
    "isinf": _isinf,
    "not": _not,
    "shl": _shift,
    "shr": _shift,
    "where": _where,
}
