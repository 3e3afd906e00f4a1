"""Functions of float32 that are written into kernels: calls of vector functions would cost more than the arithmetic.

A call may change every vector register, so what a loop keeps in registers has to be stored around it. These functions
are polynomials, fitted for the smallest largest error; they are right to 1.2 units in the last place. They need a
multiply-add with one rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quickfuse.emit.llvm_math import Code

FLOAT, INT = "float", "i32"


def exp(code: Code, x: str) -> str:
    """2**n * exp(r) with x = n log(2) + r. Beyond the bounds the result is 0 or infinite; NaN passes all comparisons.

    A 0 is not computed: a result that is too small takes processors a hundred times as long as others, and half of a causal
    mask's scores are -inf.
    """
    x = _at_most(code, x, 89.0)
    vanishes = code.binary("fcmp olt", FLOAT, x, code.const(FLOAT, -104.0))
    if code.lanes == 16 and code.module.target.vector_bytes == 64 and code.module.target.libmvec:
        power, count, _ = _reduced_exp(code, x)
        return _scaled(code, power, count, vanishes)
    zero = code.const(FLOAT, 0.0)
    power, _, bits = _reduced_exp(code, code.select(vanishes, FLOAT, zero, x))
    half = code.binary("ashr", INT, bits, code.const(INT, 1))
    for part in (half, code.binary("sub", INT, bits, half)):  # one factor alone could not reach all results
        power = code.binary("fmul", FLOAT, power, _power_of_two(code, part))
    return code.select(vanishes, FLOAT, zero, power, "exp")


def erf(code: Code, x: str) -> str:
    """x + x P(x^2) near 0; else 1 - exp(Q(|x|)), which is 1 from 4 on."""
    size = code.intrinsic("fabs", FLOAT, [x])
    small = _fma(code, _polynomial(code, _ERF_NEAR, code.binary("fmul", FLOAT, x, x)), x, x)
    far = _at_most(code, size, 4.0)
    power, _, bits = _reduced_exp(code, code.binary("fmul", FLOAT, _polynomial(code, _ERF_FAR, far), far))
    rest = code.binary("fmul", FLOAT, power, _power_of_two(code, bits))
    large = code.intrinsic("copysign", FLOAT, [code.binary("fsub", FLOAT, code.const(FLOAT, 1.0), rest), x])
    is_small = code.binary("fcmp olt", FLOAT, size, code.const(FLOAT, _ERF_NEAR_END))
    return code.select(is_small, FLOAT, small, large, "erf")


#: Name of an operation on float32 -> what writes it.
FUNCTIONS: dict[str, Callable[[Code, str], str]] = {"exp": exp, "erf": erf}

#: (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2.
_EXP = (0.4999999403953552, 0.1666651964187622, 0.04166839271783829, 0.008368780836462975, 0.0013814467238262296)
#: erf(x) / x - 1 in x^2, below `_ERF_NEAR_END`, and log(erfc(x)) / x in x, above it.
_ERF_NEAR = (
    0.12837916612625122, -0.3761257231235504, 0.11282717436552048, -0.02680255100131035, 0.005051098298281431,
    -0.0006315146456472576,
)
_ERF_FAR = (
    -1.1285295486450195, -0.6356663703918457, -0.10533101856708527, 0.022934753447771072, -0.003229048103094101,
    0.00021570849639829248,
)
_ERF_NEAR_END = 0.85
_LOG2_E, _LOG_2, _LOG_2_REST = 1.4426950408889634, 0.6931471824645996, -1.9046542121259336e-09
#: A number so large that adding it to another one rounds that to an integer, which is then in its last bits.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000


def _reduced_exp(code: Code, x: str) -> tuple[str, str, str]:
    """exp(r), and n as a float and as an integer."""
    rounder = code.const(FLOAT, _ROUNDER)
    shifted = _fma(code, x, code.const(FLOAT, _LOG2_E), rounder)
    count = code.binary("fsub", FLOAT, shifted, rounder)
    bits = code.binary("sub", INT, code.convert("bitcast", FLOAT, shifted, INT), code.const(INT, _ROUNDER_BITS))
    r = _fma(code, count, code.const(FLOAT, -_LOG_2), x)
    r = _fma(code, count, code.const(FLOAT, -_LOG_2_REST), r)
    square = code.binary("fmul", FLOAT, r, r)
    power = _fma(code, _polynomial(code, _EXP, r), square, r)
    return code.binary("fadd", FLOAT, power, code.const(FLOAT, 1.0)), count, bits


def _scaled(code: Code, x: str, count: str, vanishes: str) -> str:
    """x * 2**count, or 0 where it vanishes, which is one instruction of AVX-512."""
    vector, symbol = code.type(FLOAT), "llvm.x86.avx512.mask.scalef.ps.512"
    code.module.declare(symbol, vector, [vector, vector, vector, "i16", "i32 immarg"])
    kept = code.binary("xor", "i1", vanishes, code.const("i1", True))
    mask = code.let(f"bitcast {code.type('i1')} {kept} to i16")
    zero = code.const(FLOAT, 0.0)
    return code.let(f"call {vector} @{symbol}({vector} {x}, {vector} {count}, {vector} {zero}, i16 {mask}, i32 4)", "exp")


def _power_of_two(code: Code, exponent: str) -> str:
    """2**exponent for exponents of normal numbers."""
    biased = code.binary("add", INT, exponent, code.const(INT, 127))
    return code.convert("bitcast", INT, code.binary("shl", INT, biased, code.const(INT, 23)), FLOAT)


def _polynomial(code: Code, coefficients: Sequence[float], x: str) -> str:
    """The polynomial with these coefficients, the constant first."""
    value = code.const(FLOAT, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = _fma(code, value, x, code.const(FLOAT, coefficient))
    return value


def _fma(code: Code, x: str, y: str, z: str) -> str:
    return code.intrinsic("fma", FLOAT, [x, y, z])


def _at_most(code: Code, x: str, limit: float) -> str:
    bound = code.const(FLOAT, limit)
    return code.select(code.binary("fcmp ogt", FLOAT, x, bound), FLOAT, bound, x)
