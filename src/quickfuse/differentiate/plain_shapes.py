"""Rules for the metadata of operators that are in most models, where their operands are of the usual kind.

PyTorch describes them by functions written in Python, the first of which to be called imports its compiler: that takes a
second. A rule returns `NotImplemented` for operands that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.values import TensorMeta
from .layouts import Out, Spec, laid_out, memory_format_of
from .traced import TracedTensor

aten = torch.ops.aten

#: Operators on the elements of one or two tensors, with results of the same type.
_ON_ELEMENTS = (
    "abs acos asin atan cos cosh elu erf erfc exp exp2 expm1 gelu gelu_backward hardsigmoid hardswish hardtanh leaky_relu "
    "log log1p mish neg reciprocal relu rsqrt sigmoid sigmoid_backward silu silu_backward sin sinh softplus sqrt tan "
    "tanh tanh_backward"
).split()


def _on_elements(*operands: Any, **options: Any) -> Spec:
    tensors = [o.meta for o in (*operands, *options.values()) if type(o) is TracedTensor]
    return like_first(tensors) if tensors[0].dtype.is_floating_point else NotImplemented


def _threshold_backward(grad: Any, x: Any, threshold: Any) -> Spec:
    return _on_elements(x, grad)


def _with_numbers(first: Any, second: Any, *factors: Any, **options: Any) -> Spec:
    known = all(type(o) in (TracedTensor, int, float) for o in (second, *factors, *options.values()))
    return _on_elements(first, second) if known and type(first) is TracedTensor else NotImplemented


def _with_whole_numbers(first: Any, second: Any, *factors: Any, **options: Any) -> Spec:
    counted = type(first) is TracedTensor and first.meta.dtype is torch.int64
    if counted and all(type(o) is int for o in (second, *factors, *options.values())):
        return like_first([first.meta])
    return _with_numbers(first, second, *factors, **options)


def _copy(x: Any, *, memory_format: Any = None, **options: Any) -> Spec:
    return NotImplemented if options or memory_format not in (None, torch.preserve_format) else like_first([x.meta])


def like_first(tensors: list[TensorMeta]) -> Spec:
    """The first tensor decides on the order of axes, if it is not repeated along one. The result has no gaps."""
    first, *others = tensors
    for other in others:
        sizes = zip(reversed(other.shape), reversed(first.shape), strict=False)
        fits = other.ndim <= first.ndim and all(n in (1, size) for n, size in sizes)
        if not fits or (other.dtype, other.device) != (first.dtype, first.device):
            return NotImplemented
    if all(t.is_contiguous and t.shape == first.shape for t in tensors):
        return _contiguous(first.shape, first)
    if min(first.shape) < 2 or 0 in first.stride or len({*first.stride}) < first.ndim:
        return NotImplemented
    stride, step = [0] * first.ndim, 1
    for axis in sorted(range(first.ndim), key=lambda k: first.stride[k]):
        stride[axis] = step
        step *= first.shape[axis]
    return Out(TensorMeta(first.dtype, first.shape, tuple(stride), first.device), 0)


def _reduced(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Spec:
    if dtype is not None or not dim or not x.meta.dtype.is_floating_point or not x.meta.ndim:
        return NotImplemented
    gone = {k % x.meta.ndim for k in dim}
    sizes = [1 if k in gone else size for k, size in enumerate(x.meta.shape) if keepdim or k not in gone]
    return _contiguous(tuple(sizes), x.meta)


def _moments(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Spec:
    made = _reduced(x, dim or range(x.meta.ndim), keepdim)
    return NotImplemented if made is NotImplemented else (made, made)


def _mm(left: Any, right: Any) -> Spec:
    one, two = left.meta, right.meta
    if one.ndim != 2 or two.ndim != 2 or one.shape[1] != two.shape[0] or one.dtype != two.dtype:
        return NotImplemented
    return _contiguous((one.shape[0], two.shape[1]), one)


def _bmm(left: Any, right: Any) -> Spec:
    one, two = left.meta, right.meta
    if one.ndim != 3 or two.ndim != 3 or one.shape[::2] != (two.shape[0], two.shape[1]) or one.dtype != two.dtype:
        return NotImplemented
    return _contiguous((*one.shape[:2], two.shape[2]), one)


def _mv(matrix: Any, vector: Any) -> Spec:
    one, two = matrix.meta, vector.meta
    fits = (one.ndim, two.ndim, one.dtype) == (2, 1, two.dtype) and one.shape[1] == two.shape[0]
    return _contiguous(one.shape[:1], one) if fits else NotImplemented


def _dot(left: Any, right: Any) -> Spec:
    fits = left.meta.ndim == 1 and (left.meta.shape, left.meta.dtype) == (right.meta.shape, right.meta.dtype)
    return _contiguous((), left.meta) if fits else NotImplemented


def _added_to(product: Callable[[Any, Any], Spec]) -> Callable[..., Spec]:
    """The rule of a product that is added to something, which is broadcast."""

    def rule(added: Any, left: Any, right: Any, *, beta: Any = 1, alpha: Any = 1) -> Spec:
        made, one = product(left, right), added.meta
        if made is NotImplemented or one.dtype != made.meta.dtype or one.ndim > made.meta.ndim:
            return NotImplemented
        fits = all(n in (1, size) for n, size in zip(reversed(one.shape), reversed(made.meta.shape), strict=False))
        return made if fits else NotImplemented

    return rule


def _linear(input: Any, weight: Any, bias: Any = None) -> Spec:
    one, two = input.meta, weight.meta
    if two.ndim != 2 or one.ndim < 2 or one.shape[-1] != two.shape[1] or one.dtype != two.dtype or not one.is_contiguous:
        return NotImplemented
    if bias is not None and (bias.meta.dtype != one.dtype or bias.meta.shape != two.shape[:1]):
        return NotImplemented
    return _contiguous((*one.shape[:-1], two.shape[0]), one)


def _stack(tensors: Any, dim: int = 0) -> Spec:
    first = tensors[0].meta
    if any(_kind(t.meta) != _kind(first) for t in tensors) or not -first.ndim - 1 <= dim <= first.ndim or first.ndim > 2:
        return NotImplemented
    shape = list(first.shape)
    shape.insert(dim % (first.ndim + 1), len(tensors))
    return _contiguous(tuple(shape), first)


def _cat(tensors: Any, dim: int = 0) -> Spec:
    """Of tensors with several axes: vectors may be without elements, and then do not count."""
    first = tensors[0].meta
    axis = dim % max(first.ndim, 1)
    if any((_kind(t.meta, axis), t.meta.ndim) != (_kind(first, axis), first.ndim) for t in tensors) or first.ndim < 2:
        return NotImplemented
    shape = list(first.shape)
    shape[axis] = sum(t.meta.shape[axis] for t in tensors)
    formats = {memory_format_of(t) for t in tensors}
    return laid_out(shape, formats.pop() if len(formats) == 1 else None, first)


def _kind(meta: TensorMeta, axis: int | None = None) -> Any:
    """What tensors have in common that are joined along an axis."""
    return meta.dtype, meta.device, [size for k, size in enumerate(meta.shape) if k != axis]


def _softmax(x: Any, dim: int, half_to_float: bool) -> Spec:
    return NotImplemented if half_to_float or not x.meta.dtype.is_floating_point else _contiguous(x.meta.shape, x.meta)


def _softmax_backward(grad: Any, result: Any, dim: int, dtype: torch.dtype) -> Spec:
    known = grad.meta.dtype is dtype and result.meta.dtype is dtype
    return _contiguous(grad.meta.shape, grad.meta) if known else NotImplemented


def _nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any) -> Spec:
    """The loss and the weight of all elements, both reduced to one number."""
    if reduction == 0 or not x.meta.dtype.is_floating_point:
        return NotImplemented
    return _contiguous((), x.meta), _contiguous((), x.meta)


def _nll_loss_backward(grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any, total: Any) -> Spec:
    return _contiguous(x.meta.shape, x.meta) if x.meta.is_contiguous else NotImplemented


def _multi_margin_loss_backward(grad: Any, x: Any, *options: Any, **named: Any) -> Spec:
    return _contiguous(x.meta.shape, x.meta)


def _embedding(weight: Any, indices: Any, *options: Any) -> Spec:
    if weight.meta.ndim != 2:
        return NotImplemented
    return _contiguous((*indices.meta.shape, weight.meta.shape[1]), weight.meta)


def _gather(x: Any, dim: int, index: Any, **options: Any) -> Spec:
    return _contiguous(index.meta.shape, x.meta)


def _embedding_backward(grad: Any, indices: Any, count: int, *options: Any) -> Spec:
    return _contiguous((count, grad.meta.shape[-1]), grad.meta)


def _arange(*limits: Any, dtype: Any = None, device: Any = None, **options: Any) -> Spec:
    """Of `end`, `start, end` or `start, end, step` in whole numbers."""
    start, end, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
    if not all(type(n) is int for n in limits) or step == 0 or (end - start) * step < 0 or any(options.values()):
        return NotImplemented
    shape = (len(range(start, end, step)),)
    return Out(TensorMeta(dtype or torch.int64, shape, (1,), torch.device(device or "cpu")), 0)


def _full(size: Any, value: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Spec:
    if dtype is None or any(options.values()):
        return NotImplemented
    return Out(TensorMeta.dense(dtype, tuple(size), torch.device(device or "cpu")), 0)


def _contiguous(shape: tuple[int, ...], like: TensorMeta) -> Out:
    return Out(TensorMeta.dense(like.dtype, shape, like.device), 0)


#: Operator -> what it returns for these operands.
RULES: dict[Any, Callable[..., Spec]] = {
    **{getattr(aten, name).default: _on_elements for name in _ON_ELEMENTS},
    **{getattr(aten, name).Tensor: _with_whole_numbers for name in ("add", "sub", "mul")},
    **{getattr(aten, name).Scalar: _with_whole_numbers for name in ("add", "sub", "mul")},
    **{getattr(aten, name).default: _copy for name in ("clone", "empty_like", "zeros_like", "ones_like")},
    aten.arange.default: _arange,
    aten.arange.start: _arange,
    aten.arange.start_step: _arange,
    aten.full.default: _full,
    aten.threshold_backward.default: _threshold_backward,
    aten.div.Tensor: _with_numbers,
    aten.div.Scalar: _with_numbers,
    aten.mean.dim: _reduced,
    aten.sum.dim_IntList: _reduced,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.mv.default: _mv,
    aten.dot.default: _dot,
    aten.vdot.default: _dot,
    aten.addmm.default: _added_to(_mm),
    aten.baddbmm.default: _added_to(_bmm),
    aten.addmv.default: _added_to(_mv),
    aten.var_mean.correction: _moments,
    aten.std_mean.correction: _moments,
    aten.linear.default: _linear,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.embedding.default: _embedding,
    aten.gather.default: _gather,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten.nll_loss_forward.default: _nll_loss,
    aten.nll_loss2d_forward.default: _nll_loss,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.multi_margin_loss_backward.default: _multi_margin_loss_backward,
}
