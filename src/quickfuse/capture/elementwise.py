"""Metadata of elementwise operators, without PyTorch's slow Python rules for tensors without data.

The dtype, the errors and what is returned come from running the real operator on operands of one element each. The
shape is broadcasting; the strides follow the rule of PyTorch's `TensorIterator`, which lays a new result out like its
operands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.values import TensorMeta, contiguous_stride
from .stand_ins import StandIns, call
from .symbolic import TensorProxy

_UNARY = (
    "abs absolute acos acosh asin asinh atan atanh arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh deg2rad "
    "digamma erf erfc erfinv exp exp2 expm1 fix floor frac lgamma log log10 log1p log2 logical_not logit nan_to_num neg "
    "negative positive rad2deg reciprocal relu relu6 round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt square tan "
    "tanh trunc isnan isinf isfinite isneginf isposinf bitwise_not invert clone zero gelu silu mish softplus elu selu celu "
    "leaky_relu hardtanh hardswish hardsigmoid softsign tanhshrink hardshrink softshrink threshold "
    "zeros_like ones_like full_like float double half bfloat16 int long short char byte bool fill"
)
_BINARY = (
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow rsub atan2 arctan2 hypot copysign "
    "nextafter maximum minimum fmax fmin logaddexp logaddexp2 xlogy heaviside ldexp eq ne lt le gt ge greater greater_equal "
    "less less_equal not_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift lerp addcmul addcdiv where clamp clamp_min clamp_max clip float_power "
    "truediv floordiv mod and_ or_ xor lshift rshift iadd isub imul itruediv ifloordiv imod ipow iand ior ixor pos "
    "gcd lcm xlog1py zeta chebyshev_polynomial_t chebyshev_polynomial_u chebyshev_polynomial_v chebyshev_polynomial_w "
    "shifted_chebyshev_polynomial_t shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v "
    "shifted_chebyshev_polynomial_w hermite_polynomial_h hermite_polynomial_he laguerre_polynomial_l legendre_polynomial_p"
)
#: Copies, conversions and a few more: where the operand's elements fill their memory, the result has its very strides.
_KEEPS_LAYOUT = frozenset(
    "nan_to_num hardtanh relu6 fill clone float double half bfloat16 int long short char byte bool zeros_like ones_like "
    "full_like".split()
)
_NAMES = frozenset(f"{_UNARY} {_BINARY}".split())
_DUNDER = frozenset(f"__{n}__" for n in _NAMES) | frozenset(f"__r{n}__" for n in _NAMES)
#: In place, but not elementwise in the operand: a copy broadcasts and converts into it.
_COPIES = frozenset({"copy_"})


def is_elementwise(function: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether the rules of this module hold for an operator."""
    if kwargs.get("out") is not None or "memory_format" in kwargs or "device" in kwargs:
        return False
    name = getattr(function, "__name__", "").removeprefix("special_")
    return name in _DUNDER or name in _COPIES or name in _NAMES or name.strip("_") in _NAMES


def keeps_layout(function: Callable[..., Any], tensors: list[TensorProxy]) -> bool:
    """Whether the result has exactly the strides of the one operand."""
    return len(tensors) == 1 and getattr(function, "__name__", "") in _KEEPS_LAYOUT and is_dense(tensors[0].meta)


def run_on_one_element(function: Callable[..., Any], args: Any, kwargs: Any, grad: bool) -> tuple[Any, StandIns]:
    """The operator's result for operands of one element, and these operands."""
    operands = StandIns(lambda meta: torch.ones((1,) * meta.ndim, dtype=meta.dtype), torch.device("cpu"))
    return call(function, operands.of(args), operands.of(kwargs), grad), operands


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The common shape by PyTorch's broadcasting, None where there is none."""
    ndim = max(map(len, shapes), default=0)
    result = [1] * ndim
    for shape in shapes:
        for axis, size in enumerate(shape, ndim - len(shape)):
            if size != 1:
                if result[axis] not in (1, size):
                    return None
                result[axis] = size
    return tuple(result)


def result_stride(shape: tuple[int, ...], operands: list[TensorMeta]) -> tuple[int, ...]:
    """Strides of a fresh result of `shape`.

    Source: the documented behaviour of TensorIterator: operands of one dense layout hand it on (images with channels last
    with the usual strides of that); otherwise axes are ordered by the operands' strides, first operand first, and the
    result is dense in that order.
    """
    same = [m for m in operands if m.shape == shape]
    if len(same) == len(operands) and same:
        if all(is_contiguous(m) for m in same):
            return contiguous_stride(shape)
        if len(shape) == 4 and all(_agrees(m, channels_last_stride(shape)) for m in same):
            return channels_last_stride(shape)
        if all(m.stride == same[0].stride for m in same) and is_dense(same[0]):
            return same[0].stride
    if not operands or len(shape) < 2:
        return contiguous_stride(shape)
    strides = [_aligned_strides(m, shape) for m in operands]
    order = _axis_order(shape, strides)
    if order == list(reversed(range(len(shape)))):
        return contiguous_stride(shape)
    result = [0] * len(shape)
    step = 1
    for axis in order:
        result[axis] = step
        step *= shape[axis]
    return tuple(result)


def is_contiguous(meta: TensorMeta) -> bool:
    """Contiguous as PyTorch sees it: the strides of axes with one element do not matter."""
    return meta.numel == 0 or _agrees(meta, contiguous_stride(meta.shape))


def layout_is_simple(metas: list[TensorMeta]) -> bool:
    """Whether `result_stride` holds for every elementwise operator: for contiguous operands, and for operands of one layout
    in which each stride means something."""
    if all(meta.stride == contiguous_stride(meta.shape) for meta in metas):
        return True
    return len({(meta.shape, meta.stride) for meta in metas}) == 1 and 1 not in metas[0].shape


def _agrees(meta: TensorMeta, stride: tuple[int, ...]) -> bool:
    return all(s == w for s, w, n in zip(meta.stride, stride, meta.shape, strict=True) if n != 1)


def channels_last_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a batch of images with its channels last."""
    batch, channels, *sizes = shape
    first, *rest, last = contiguous_stride((batch, *sizes, channels))
    return (first, last, *rest)


def is_channels_last(meta: TensorMeta) -> bool:
    """Whether a batch of images (with one, two or three axes of pixels) is laid out with its channels last."""
    if meta.ndim not in (4, 5):
        return False
    tensor = torch.empty_strided(meta.shape, meta.stride, device="meta")
    last = torch.channels_last if meta.ndim == 4 else torch.channels_last_3d
    if not tensor.is_contiguous(memory_format=last):
        return False
    # Images of one pixel, or of one channel, are both; PyTorch goes by the strides of the axes of one element then.
    return not is_contiguous(meta) or meta.stride == channels_last_stride(meta.shape) != contiguous_stride(meta.shape)


def like_stride(meta: TensorMeta) -> tuple[int, ...]:
    """The strides of a new tensor "like" another one: the same where its elements fill their memory."""
    return meta.stride if is_dense(meta) else result_stride(meta.shape, [meta])


def is_dense(meta: TensorMeta) -> bool:
    """Whether the elements fill their memory without gaps or overlap; no elements always do."""
    expected = 1
    if 0 in meta.shape:
        return True
    for stride, size in sorted((s, n) for s, n in zip(meta.stride, meta.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _aligned_strides(meta: TensorMeta, shape: tuple[int, ...]) -> list[int]:
    offset = len(shape) - meta.ndim
    return [0] * offset + [
        0 if size == 1 and shape[axis] != 1 else stride
        for axis, (size, stride) in enumerate(zip(meta.shape, meta.stride, strict=True), offset)
    ]


def _axis_order(shape: tuple[int, ...], strides: list[list[int]]) -> list[int]:
    """Axes from the fastest to the slowest, by an insertion sort that leaves ambiguous pairs alone."""
    order = list(reversed(range(len(shape))))
    for start in range(1, len(shape)):
        moving = start
        for candidate in range(start - 1, -1, -1):
            verdict = _compare_axes(order[candidate], order[moving], shape, strides)
            if verdict > 0:
                order[candidate], order[moving] = order[moving], order[candidate]
                moving = candidate
            elif verdict < 0:
                break
    return order


def _compare_axes(first: int, second: int, shape: tuple[int, ...], strides: list[list[int]]) -> int:
    for operand in strides:
        a, b = operand[first], operand[second]
        if a == 0 or b == 0:
            continue
        if a != b:
            return -1 if a < b else 1
        if shape[first] > shape[second]:
            return 1
    return 0
