"""Each pointwise operator against eager PyTorch: types, promotion, broadcasting, special values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import quickfuse
from quickfuse.errors import Unsupported
from quickfuse.ir.loop import Extern
from schedule_interpreter import check

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -3.0, 0.25, 7.0, float("inf"), float("-inf"), float("nan")]


def sample(dtype: torch.dtype, *, positive: bool = False, seed: int = 0) -> torch.Tensor:
    """A column of ordinary and special values."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, (24,), generator=generator).bool()
    if not dtype.is_floating_point:
        low = 0 if positive or dtype is torch.uint8 else -9
        return torch.randint(low, 10, (24,), generator=generator).to(dtype)
    values = torch.cat([torch.randn(16, generator=generator) * 2, torch.tensor(SPECIAL)])
    return (values.abs() if positive else values).to(dtype)


def check_rule(function: Callable[..., Any], *inputs: Any, ulps: float = 4) -> None:
    """Check a function that must be lowered to loops, not to calls of PyTorch."""
    schedule = check(function, *inputs, ulps=ulps)
    assert not any(isinstance(step, Extern) for step in schedule.steps), "no rule applied"


UNARY_FLOAT = (
    "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf "
    "erfc lgamma reciprocal sigmoid deg2rad rad2deg sinc logit arcsin arctan"
).split()
UNARY_ANY = (
    "abs neg sign sgn square floor ceil trunc round isnan isinf isfinite isposinf isneginf signbit logical_not "
    "nan_to_num negative absolute"
).split()


@pytest.mark.parametrize("name", UNARY_FLOAT)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.uint8], ids=str)
def test_float_functions(name: str, dtype: torch.dtype) -> None:
    check_rule(getattr(torch, name), sample(dtype))


@pytest.mark.parametrize("name", UNARY_ANY)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_functions_of_any_type(name: str, dtype: torch.dtype) -> None:
    if _is_error(getattr(torch, name), sample(dtype)):
        pytest.skip("an error in eager")
    check_rule(getattr(torch, name), sample(dtype))


ACTIVATIONS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    F.relu, F.relu6, F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, F.mish, F.softplus,
    lambda x: F.softplus(x, beta=2.0, threshold=3.0), F.leaky_relu, lambda x: F.leaky_relu(x, 0.3), F.elu,
    lambda x: F.elu(x, 0.7), F.selu, F.celu, lambda x: F.celu(x, alpha=1.7), F.hardtanh,
    lambda x: F.hardtanh(x, -0.3, 0.7), F.hardswish, F.hardsigmoid, F.logsigmoid, F.hardshrink, F.softshrink,
    lambda x: F.softshrink(x, 0.2), F.softsign, F.tanhshrink, F.sigmoid, F.tanh, lambda x: F.threshold(x, 0.1, 20.0),
    lambda x: torch.relu(x), lambda x: F.dropout(x, 0.3, training=False) + 1,
]  # fmt: skip


@pytest.mark.parametrize("function", ACTIVATIONS, ids=range(len(ACTIVATIONS)))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_activations(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    x = sample(dtype)
    if function is F.gelu:
        x = x.nan_to_num(posinf=50, neginf=-50)  # eager's vectors and their tails disagree on infinities
    check_rule(function, x, ulps=8)


@pytest.mark.parametrize("name", "relu silu leaky_relu hardtanh relu6 elu mish".split())
def test_activations_in_place(name: str) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        return getattr(F, name)(x, inplace=True) * 2

    check_rule(body, sample(torch.float32))


BINARY = (
    "add sub mul div maximum minimum fmax fmin atan2 eq ne lt le gt ge logical_and logical_or logical_xor pow "
    "copysign true_divide xlogy remainder fmod floor_divide".split()
)
PAIRS = [
    (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
    (torch.float32, torch.float64), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float16),
    (torch.float32, torch.int64), (torch.int64, torch.bfloat16), (torch.int32, torch.int64), (torch.uint8, torch.int32),
    (torch.bool, torch.float32), (torch.int64, torch.bool),
]  # fmt: skip


def _is_error(function: Callable[..., Any], *inputs: Any) -> bool:
    try:
        function(*inputs)
    except (RuntimeError, ZeroDivisionError):
        return True
    return False


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_binary_operators(name: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    function = getattr(torch, name)
    x, y = sample(types[0]), sample(types[1], seed=1)
    if _is_error(function, x, y):
        pytest.skip("an error in eager")
    integers = not torch.promote_types(*types).is_floating_point
    if integers and name in ("remainder", "fmod", "floor_divide", "pow"):
        check(function, x, y)  # by zero it is an error, which only PyTorch can raise
    else:
        check_rule(function, x, y)


#: Operators whose second operand may be a number.
TAKE_NUMBERS = "add sub mul div eq ne lt le gt ge pow copysign true_divide xlogy remainder fmod floor_divide".split()


@pytest.mark.parametrize("name", TAKE_NUMBERS)
@pytest.mark.parametrize("number", [2, 0.1, -1.5, 3.0, True], ids=str)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_operators_with_a_number(name: str, number: float, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = sample(dtype)
    if _is_error(function, x, number):
        pytest.skip("an error in eager")
    check_rule(lambda x: function(x, number), x)
    if type(number) is float and name != "copysign":
        check(lambda x, number: function(x, number), x, number)


@pytest.mark.parametrize("name", "add sub mul truediv pow floordiv mod".split())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_numbers_on_the_left(name: str, dtype: torch.dtype) -> None:
    function = getattr(operator, name)
    x = sample(dtype, positive=True) + 1
    check(lambda x: function(2.5, x), x)
    check(lambda x, number: function(number, x), x, 0.3)


@pytest.mark.parametrize("rank", ["0-dim", "one element", "row"])
@pytest.mark.parametrize("types", PAIRS, ids=str)
def test_promotion_by_rank(rank: str, types: tuple[torch.dtype, torch.dtype]) -> None:
    x, y = sample(types[0])[:24].reshape(4, 6), sample(types[1], seed=1)[:6]
    y = {"0-dim": y[3].clone(), "one element": y[3:4].clone(), "row": y}[rank]
    check_rule(lambda x, y: (x * y, y / x, x > y, torch.add(x, y)), x, y)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("number", [0.1, 0.3, 1.7])
def test_numbers_are_rounded_as_in_eager(dtype: torch.dtype, number: float) -> None:
    """16-bit tensors with a number: eager rounds it first in some operators and not in others."""
    x = torch.arange(1, 3001, dtype=torch.float32).div(1000).to(dtype)[:2944]  # whole vectors: eager's tail differs

    def function(x: torch.Tensor, s: float) -> list[torch.Tensor]:
        return [x + s, x - s, x * s, x / s, s - x, x % s, x < s, x == s]

    def with_factor(x: torch.Tensor, s: float) -> list[torch.Tensor]:
        return [torch.add(x, x, alpha=s), x.addcmul(x, x, value=s)]

    check(function, x, number, exact=True)
    check(lambda x: function(x, number), x, exact=True)
    check(with_factor, x, number, exact=dtype.itemsize == 2)  # others by fused multiply and add


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_tensors_of_one_element_are_rounded_as_in_eager(dtype: torch.dtype) -> None:
    """Eager takes one on the right for a number, which has more bits than the other operand, but not one on the left."""
    x, scale = torch.randn(2944).to(dtype), torch.tensor(1.3, dtype=torch.float64)
    check(lambda x, s: (s * x, x * s, s.item() * x, torch.div(s, x), torch.div(x, s)), x, scale, exact=True)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_whole_quotients(mode: str, dtype: torch.dtype) -> None:
    """A quotient just below a whole number is rounded to it in 16 bits, and is that number then."""
    x, y = (torch.randn(2944) * 20).to(dtype), (torch.randn(2944) * 3).to(dtype)
    x[:16], y[:16] = torch.tensor(SPECIAL), torch.tensor(SPECIAL)
    x[16:32], y[16:32] = torch.tensor(SPECIAL), y[:16].flip(0)
    divisors = [y, y.view(64, 46), y[40:41].expand(2944), y[40:41], y[40], torch.tensor(1.3), 1.3]
    for divisor in divisors:
        shape = divisor.shape if isinstance(divisor, torch.Tensor) and divisor.ndim == 2 else (-1,)
        check(lambda x, y: torch.div(x, y, rounding_mode=mode), x.view(shape), divisor, exact=True)
    check(lambda x, y: (x // y, x.clone().floor_divide_(y), y.flip(0)[:, None] // x[:3]), x, y, exact=True)


TERNARY: list[Callable[..., Any]] = [
    torch.addcmul, lambda x, y, z: torch.addcmul(x, y, z, value=0.3), torch.addcdiv,
    lambda x, y, z: torch.addcdiv(x, y, z, value=-2.5), lambda x, y, z: torch.lerp(x, y, z),
    lambda x, y, z: torch.lerp(x, y, 0.1), lambda x, y, z: x.lerp(y, 0.9), lambda x, y, z: torch.where(x > y, y, z),
    lambda x, y, z: torch.where(x > 0, y, 1.0), lambda x, y, z: x.where(x < z, y), lambda x, y, z: torch.clamp(x, y, z),
    lambda x, y, z: torch.clamp(x, min=z), lambda x, y, z: x.clamp(max=0.4), lambda x, y, z: x.clamp(-0.5, 0.4),
    lambda x, y, z: x.clamp_min(0.2), lambda x, y, z: x.clip(y, z), lambda x, y, z: x.masked_fill(y > z, 0.7),
    lambda x, y, z: torch.hypot(x, y), lambda x, y, z: torch.rsub(x, y, alpha=2), lambda x, y, z: torch.frac(x),
    lambda x, y, z: torch.heaviside(x, y), lambda x, y, z: torch.max(x, y), lambda x, y, z: torch.min(y, z),
    lambda x, y, z: torch.div(x, y, rounding_mode="floor"), lambda x, y, z: torch.div(x, y, rounding_mode="trunc"),
    lambda x, y, z: torch.sub(x, y, alpha=0.7), lambda x, y, z: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    lambda x, y, z: x.logit(eps=0.1),
]  # fmt: skip


@pytest.mark.parametrize("function", TERNARY, ids=range(len(TERNARY)))
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operators_with_more_operands(function: Callable[..., Any], dtype: torch.dtype) -> None:
    if _is_error(function, *(sample(dtype) for _ in range(3))):
        pytest.skip("an error in eager")
    x, y, z = (sample(dtype, seed=k) for k in range(3))
    check_rule(function, x, y, z)
    check_rule(function, x.reshape(4, 8), y[:8].clone(), z[:4].reshape(4, 1).clone())


@pytest.mark.parametrize("function", [torch.logaddexp, torch.logaddexp2, torch.special.xlog1py], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logarithms_of_sums(function: Callable[..., Any], dtype: torch.dtype) -> None:
    x, y = sample(dtype), sample(dtype, seed=1)
    check_rule(function, x, y, ulps=16)
    check_rule(lambda x: function(x, x), x, ulps=16)


EXPONENTS = [0, 1, 2, 3, -1, -2, 0.5, -0.5, 2.0, 1.5, 4, -3]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64], ids=str)
def test_powers(exponent: float, dtype: torch.dtype) -> None:
    x = sample(dtype)
    if _is_error(torch.pow, x, exponent):
        pytest.skip("an error in eager")
    check_rule(lambda x: x**exponent, x)
    check(lambda x: exponent**x, x.abs())
    check_rule(lambda x: torch.float_power(x, exponent), x)


def test_integer_operators() -> None:
    x, y = sample(torch.int64), sample(torch.int64, positive=True, seed=1)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x & y, x | y, x ^ y, ~x, x << y, x >> y, x // 3, x % -4, torch.fmod(x, 3), x**2, x.clamp(0, 3), x / y]

    check_rule(function, x, y)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.bool], ids=str)
@pytest.mark.parametrize("target", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_conversions(source: torch.dtype, target: torch.dtype) -> None:
    x = sample(source)
    if source.is_floating_point and not target.is_floating_point and target is not torch.bool:
        x = x.nan_to_num(0, 1, 1).abs()  # C leaves other conversions undefined
    check_rule(lambda x: (x.to(target) if source is not target else x + 1, torch.empty_like(x, dtype=target).copy_(x)), x)


def test_conversions_that_return_their_operand() -> None:
    x = torch.randn(3, 4)
    check_rule(lambda x: (x.float(), x.to(torch.float32), x.contiguous(), x.type_as(x), x.t().contiguous(), x.double()), x)


def test_creation() -> None:
    def function(x: torch.Tensor, s: float) -> list[torch.Tensor]:
        return [
            torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 0.3), torch.full_like(x, s), torch.zeros(3, 2),
            torch.ones(2, dtype=torch.int64), torch.full((2, 2), s), torch.full((2,), 7), torch.tensor(1.5),
            torch.tensor(s), torch.arange(5), torch.arange(1, 9, 2), torch.arange(0.5, 3, 0.25),
            torch.arange(3, dtype=torch.bfloat16), x.new_zeros(2), x.new_full((2,), 3.0), x.clone(), torch.tensor(True),
            torch.scalar_tensor(2), x + torch.arange(5) * torch.arange(4).unsqueeze(1),
        ]  # fmt: skip

    with torch.no_grad():
        check(function, torch.randn(4, 5).bfloat16(), 0.3)


def test_out_arguments() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        torch.maximum(x, y, out=z)
        torch.add(x, y, alpha=2, out=x)
        return torch.mul(z, x, out=z)

    check_rule(function, sample(torch.float32), sample(torch.float32, seed=1), sample(torch.float32, seed=2))
    with pytest.raises(Unsupported, match="resized"), pytest.warns(UserWarning, match="resized"):
        check(lambda x, out: torch.mul(x, x, out=out), sample(torch.float32), torch.zeros(3))
    wide = sample(torch.float64)
    check_rule(lambda x, out: torch.mul(x, x, out=out), sample(torch.bfloat16), wide)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("numbers", [0.999, [0.999]], ids=["number", "numbers"])
def test_lists_that_are_multiplied_in_place(dtype: torch.dtype, numbers: Any) -> None:
    """Eager rounds the number to the tensor's 16 bits, for lists in place alone: 0.999 is 1 in bfloat16."""
    check_rule(lambda x: torch._foreach_mul_([x], numbers), sample(dtype), ulps=0)
    check_rule(lambda x: torch._foreach_mul([x], numbers), sample(dtype), ulps=0)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.int8], ids=str)
def test_quotients_remainders_and_signs_of_edge_values(dtype: torch.dtype) -> None:
    """Compiled: all pairs of special floats; whole numbers by constants, as by others PyTorch divides."""
    if dtype.is_floating_point:
        x, y = torch.cartesian_prod(*[torch.tensor([*SPECIAL, 1e-3, 100.25, -6e4], dtype=dtype)] * 2).unbind(1)
        divisors: list[Any] = [y.contiguous(), 3, -0.5]
    else:
        info = torch.iinfo(dtype)
        x = torch.tensor([info.min, info.min + 1, info.max, *range(9)], dtype=dtype)
        divisors = [1, 3, 7, *([-3] if info.min else [])]
    for divisor in divisors:

        def function(x: torch.Tensor, divisor: Any = divisor) -> Any:
            quotients = [torch.div(x, divisor, rounding_mode=mode) for mode in ("floor", "trunc")]
            return *quotients, x // divisor, x % divisor, x.fmod(divisor), x.sign(), x.isnan(), x.isinf(), x.isfinite()

        with torch.no_grad():
            for got, want in zip(quickfuse.compile(function)(x.contiguous()), function(x), strict=True):
                assert torch.equal(got.isnan(), want.isnan())
                assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
                assert torch.equal(got.signbit() & want.eq(0), want.signbit() & want.eq(0))
