"""Device functions that generated Triton kernels call for operations which Triton has no operator for.

Arguments are blocks or single values of one type; results have that type. Float formulas are those of PyTorch's own
headers (`c10/util/generic_math.h`), so that results agree with eager in every special case. Constants stand next to a
typed operand only: Triton would widen an int8 that meets a separately made int32 constant.

This module imports Triton, so nothing imports it but generated source.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def trunc_div(x, y):  # type: ignore[no-untyped-def]
    """C's integer division; 0 where y is 0; wraps for the most negative number by -1."""
    # The divisors 0 and -1 can trap or overflow, which is undefined: they are replaced by 1 and answered apart.
    if x.dtype.is_int_signed():
        negated = y == -1
        quotient = x // tl.where((y == 0) | negated, y * 0 + 1, y)
        quotient = tl.where(negated, -x, quotient)
    else:
        quotient = x // tl.where(y == 0, y * 0 + 1, y)
    return tl.where(y == 0, x * 0, quotient)


@triton.jit
def int_fmod(x, y):  # type: ignore[no-untyped-def]
    """C's `%`; 0 where y is 0."""
    return tl.where(y == 0, x * 0, x - trunc_div(x, y) * y)


@triton.jit
def int_pow(x, y):  # type: ignore[no-untyped-def]
    """x to the power y by squaring, wrapping. A negative y gives the truncated quotient: 0 unless x is 1 or -1."""
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    result = x * 0 + y * 0 + 1
    factor = result * x
    exponent = result * y
    for _ in range(bits):
        result = tl.where((exponent & 1) != 0, result * factor, result)
        factor = factor * factor
        exponent = exponent >> 1
    if x.dtype.is_int_signed():
        odd = (y & 1) != 0
        sign = tl.where(odd, x, x * x)
        result = tl.where(y < 0, tl.where((x == 1) | (x == -1), sign, x * 0), result)
    return result


@triton.jit
def shift_left(x, y):  # type: ignore[no-untyped-def]
    """x << y; 0 where y is negative or not less than the width."""
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    return (x << (y & (bits - 1))) * ((y >= 0) & (y < bits)).to(x.dtype)


@triton.jit
def shift_right(x, y):  # type: ignore[no-untyped-def]
    """x >> y, arithmetic for signed types; all sign (or 0) where y is negative or not less than the width."""
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    in_range = ((y >= 0) & (y < bits)).to(x.dtype)
    shifted = x >> (y * in_range + (bits - 1) * (1 - in_range))
    return shifted if x.dtype.is_int_signed() else shifted * in_range


@triton.jit
def float_div(x, y):  # type: ignore[no-untyped-def]
    """x / y rounded to nearest. Triton's own `/` is an approximation for float32."""
    if x.dtype == tl.float32:
        return tl.div_rn(x, y)
    else:
        return x / y


@triton.jit
def sqrt(x):  # type: ignore[no-untyped-def]
    """The square root rounded to nearest. Triton's own is an approximation for float32."""
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


@triton.jit
def add(x, y):  # type: ignore[no-untyped-def]
    return x + y


@triton.jit
def mul(x, y):  # type: ignore[no-untyped-def]
    return x * y


@triton.jit
def maximum(x, y):  # type: ignore[no-untyped-def]
    """NaN if either is NaN, which is the one value that differs from itself."""
    if x.dtype == tl.float32:
        return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)  # an instruction, on devices of 8.0
    else:
        return tl.where((x > y) | (x != x), x, y)


@triton.jit
def minimum(x, y):  # type: ignore[no-untyped-def]
    """NaN if either is NaN."""
    if x.dtype == tl.float32:
        return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)
    else:
        return tl.where((x < y) | (x != x), x, y)


@triton.jit
def quick_exp(x):  # type: ignore[no-untyped-def]
    """The exponential, for float32 to some 2 ** -23 of `1 + |x|`. Triton's own is that approximation."""
    if x.dtype == tl.float32:
        return tl.exp(x)
    else:
        return libdevice.exp(x)


@triton.jit
def quick_div(x, y):  # type: ignore[no-untyped-def]
    """x / y, for float32 to 2 units in the last place. Triton's own is that approximation."""
    return x / y


@triton.jit
def scaled_sum(total, before, largest, values):  # type: ignore[no-untyped-def]
    """`total`, a sum of exponentials relative to `before`, with those of `values`, relative to `largest`, which is no less
    than all of them; `values` has one more axis, of what is added together.

    Where all values are negative infinity, exponentials are 0; with others that are infinite, or NaN, the result does not
    count: see `unscaled_sum`. The larger a difference, and the error of its exponential, the less it adds to the sum.
    """
    zero = tl.zeros_like(largest)
    base = tl.where(largest == float("-inf"), zero, largest)
    added = tl.sum(_exp_or_nothing(values - tl.expand_dims(base, 2)), 2)
    return tl.fma(total, _exp_or_nothing(before - base), added)


@triton.jit
def _exp_or_nothing(x):  # type: ignore[no-untyped-def]
    """The exponential as `quick_exp` has it, 0 where it is below the normal numbers: for those it takes twice as long."""
    if x.dtype == tl.float32:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2_E], tl.float32, True, 1)
    else:
        return libdevice.exp(x)


@triton.jit
def unscaled_sum(total, largest, maximum_of_row):  # type: ignore[no-untyped-def]
    """The sum of each row, relative to its maximum, of sums relative to the largest value of each column of a tile. Relative
    to an infinite value it is NaN, as the difference of infinite values is."""
    difference = tl.where(largest == maximum_of_row, tl.zeros_like(largest), largest - maximum_of_row)
    found = tl.sum(total * libdevice.exp(difference), 1)[:, None]
    return tl.where(maximum_of_row - maximum_of_row == 0, found, maximum_of_row - maximum_of_row)


@triton.jit
def _philox(seed, offset, turn, thread):  # type: ignore[no-untyped-def]
    """The four words (uint32) of a thread that begin `turn` times four words after an offset: see `ir/philox.py`."""
    counter = (offset >> 2) + turn.to(tl.int64)
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    thread = thread.to(tl.uint32)
    return tl.philox(seed, low, high, thread, thread * 0)


@triton.jit
def _uniform(word):  # type: ignore[no-untyped-def]
    return word.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10


@triton.jit
def _word(words, number):  # type: ignore[no-untyped-def]
    """The word of each element, by its number."""
    w0, w1, w2, w3 = words
    return tl.where(number < 2, tl.where(number == 0, w0, w1), tl.where(number == 2, w2, w3))


@triton.jit
def _of_neighbours(seed, offset, first, threads, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """The numbers of four neighbours, of which the first is given, in two more axes."""
    place = first // WIDTH
    thread, turn = place % threads, place // threads
    if WIDTH > 4:
        turn = turn * (WIDTH // 4) + first % WIDTH // 4
    w0, w1, w2, w3 = _philox(seed, offset, turn, thread)
    return tl.join(tl.join(_uniform(w0), _uniform(w2)), tl.join(_uniform(w1), _uniform(w3)))


@triton.jit
def random_number(seed, offset, element, threads, WIDTH: tl.constexpr, NEIGHBOURS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A number for each element, above 0 and no more than 1, as PyTorch's dropout draws it. NEIGHBOURS: see
    `TritonBuilder.neighbours`; four of them have their words from one turn of the generator."""
    if WIDTH >= 4 and NEIGHBOURS and element.shape[-1] % 4 == 0:
        if len(element.shape) == 2:
            rows: tl.constexpr = element.shape[0]
            columns: tl.constexpr = element.shape[1]
            first = tl.min(tl.reshape(element, [rows, columns // 4, 4]), 2)
            return tl.reshape(_of_neighbours(seed, offset, first, threads, WIDTH), [rows, columns])
        else:
            count: tl.constexpr = element.shape[0]
            first = tl.min(tl.reshape(element, [count // 4, 4]), 1)
            return tl.reshape(_of_neighbours(seed, offset, first, threads, WIDTH), [count])
    else:
        place = element // WIDTH
        thread, turn = place % threads, place // threads
        if WIDTH == 1:
            number = turn % 4
            turn = turn // 4
        elif WIDTH == 2:
            number = element % 2
        else:
            number = element % 4
            turn = turn * (WIDTH // 4) + element % WIDTH // 4
        return _uniform(_word(_philox(seed, offset, turn, thread), number))
