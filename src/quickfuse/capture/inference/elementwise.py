"""Which operators are elementwise, and layouts of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.values import TensorMeta, contiguous_stride

_UNARY = (
    "abs absolute acos acosh asin asinh atan atanh arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh deg2rad "
    "digamma erf erfc erfinv exp exp2 expm1 fix floor frac lgamma log log10 log1p log2 logical_not logit nan_to_num neg "
    "negative positive rad2deg reciprocal relu relu6 round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan "
    "tanh trunc i0 i0e i1 i1e isnan isinf isfinite isneginf isposinf bitwise_not invert clone zero gelu silu mish softplus "
    "elu selu celu leaky_relu hardtanh hardswish hardsigmoid softsign tanhshrink hardshrink softshrink threshold "
    "float double half bfloat16 int long short char byte bool fill rrelu"
)
#: What fills a tensor with random numbers, or makes one of them.
_RANDOM = (
    "normal uniform exponential geometric log_normal cauchy random bernoulli poisson binomial _standard_gamma "
    "_sample_dirichlet dropout"
)
_LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"
_BINARY = (
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow rsub atan2 arctan2 hypot copysign "
    "nextafter maximum minimum fmax fmin logaddexp logaddexp2 xlogy heaviside ldexp eq ne lt le gt ge greater greater_equal "
    "less less_equal not_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift lerp addcmul addcdiv where clamp clamp_min clamp_max clip float_power "
    "truediv floordiv mod and_ or_ xor lshift rshift iadd isub imul itruediv ifloordiv imod ipow iand ior ixor pos "
    "gcd lcm xlog1py zeta _dirichlet_grad "
    "chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p "
    "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fake_quantize_learnable_per_tensor_affine "
    "fake_quantize_learnable_per_channel_affine"
)
_NAMES = frozenset(f"{_UNARY} {_BINARY} {_RANDOM} {_LIKE}".split())
#: Operators that draw random numbers.
DRAWN = frozenset(form for name in f"{_RANDOM} {_LIKE} rrelu".split() for form in (name, f"{name}_"))
_DUNDER = frozenset(f"__{n}__" for n in _NAMES) | frozenset(f"__r{n}__" for n in _NAMES)
#: Arguments by which a result is laid out as no operand is.
_LAYOUT = ("memory_format", "device")
#: In place, but not elementwise in the operand: a copy broadcasts and converts into it.
_COPIES = frozenset({"copy_"})


def is_elementwise(function: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether the elements of an operator's result come from the same elements of its operands, which are broadcast; of an
    operator on lists, of the members."""
    name = getattr(function, "__name__", "")
    if kwargs.get("out") is not None or (not name.endswith("_like") and not kwargs.keys().isdisjoint(_LAYOUT)):
        return False
    name = name.removeprefix("special_").removeprefix("_foreach_")
    return name in _DUNDER or name in _COPIES or name in _NAMES or name.strip("_") in _NAMES


def is_contiguous(meta: TensorMeta) -> bool:
    """Contiguous as PyTorch sees it: the strides of axes with one element do not matter."""
    strides = zip(meta.stride, contiguous_stride(meta.shape), meta.shape, strict=True)
    return meta.numel == 0 or all(stride == wanted for stride, wanted, size in strides if size != 1)
