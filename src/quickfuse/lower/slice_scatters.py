"""Rules of operators that put a tensor into a larger one, or keep a part of one: scatters of slices, triangles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import functional

from quickfuse.ir.expr import Expr, Index
from quickfuse.ir.reindex import IndexMap
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .computed_indices import I64, source, spread
from .context import Context
from .layout import Shape, replace_part
from .rules import ALL_DEVICES, NoRule, evaluator
from .symbolic import Tensor


def _sizes(shape: Any) -> Shape:
    if not isinstance(shape, (list, tuple)) or any(type(n) is not int for n in shape):
        raise NoRule
    return tuple(shape)


def _placed(ctx: Context, meta: Any, old: Expr, shape: Shape, part: Tensor, index_map: IndexMap) -> Tensor:
    """`old` with `part` in place of some elements. The old index is `index_map` of the part's."""
    if type(meta) is not TensorMeta or meta.shape != shape or (old.dtype is not meta.dtype):
        raise NoRule
    if not part.meta.numel:
        return made(ctx, meta, old)
    result = replace_part(old, shape, ops.via(source(ctx, part, 64), meta.dtype), part.meta.shape, index_map)
    if result is None:
        raise NoRule
    ctx.program.chooses = True
    return made(ctx, meta, result)


def _slice_map(shape: Shape, dim: Any, start: Any, end: Any, step: Any, part: Shape) -> IndexMap:
    if type(dim) is not int or type(step) is not int or any(type(n) not in (int, type(None)) for n in (start, end)):
        raise NoRule
    if not -len(shape) <= dim < len(shape) or step < 1:
        raise NoRule
    axis, ndim = dim % len(shape), len(shape)
    first, last, step = slice(start, end, step).indices(shape[axis])
    if part != tuple([len(range(first, last, step)) if k == axis else n for k, n in enumerate(shape)]):
        raise NoRule
    rows = [tuple([(step if k == axis else 1) * (j == k) for j in range(ndim)]) for k in range(ndim)]
    return IndexMap(tuple([first if k == axis else 0 for k in range(ndim)]), tuple(rows), ndim)


def _select_map(shape: Shape, dim: Any, index: Any) -> IndexMap:
    if type(dim) is not int or type(index) is not int or not -len(shape) <= dim < len(shape):
        raise NoRule
    axis, ndim = dim % len(shape), len(shape)
    if not -shape[axis] <= index < shape[axis]:
        raise NoRule
    rows = [tuple([int(k != axis and j == k - (k > axis)) for j in range(ndim - 1)]) for k in range(ndim)]
    return IndexMap(tuple([index % shape[axis] if k == axis else 0 for k in range(ndim)]), tuple(rows), ndim - 1)


def _diagonal_map(shape: Shape, offset: Any, dim1: Any, dim2: Any) -> IndexMap:
    if any(type(n) is not int for n in (offset, dim1, dim2)):
        raise NoRule
    ndim = len(shape)
    if any(not -ndim <= dim < ndim for dim in (dim1, dim2)):
        raise NoRule
    one, two = dim1 % ndim, dim2 % ndim
    others = [k for k in range(ndim) if k not in (one, two)]
    rows = [tuple([int(j == (ndim - 2 if k in (one, two) else others.index(k))) for j in range(ndim - 1)])
            for k in range(ndim)]  # fmt: skip
    first = {one: max(-offset, 0), two: max(offset, 0)}
    return IndexMap(tuple([first.get(k, 0) for k in range(ndim)]), tuple(rows), ndim - 1)


def _diagonal_shape(shape: Shape, offset: int, dim1: int, dim2: int) -> Shape:
    rows, columns = shape[dim1], shape[dim2]
    length = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    others = [n for k, n in enumerate(shape) if k not in (dim1 % len(shape), dim2 % len(shape))]
    return (*others, length)


def _zeros(meta: Any) -> Expr:
    if type(meta) is not TensorMeta:
        raise NoRule
    return ops.const(0, meta.dtype)


@rule("slice_scatter", "input src dim=0 start=None end=None step=1")
def slice_scatter(
    ctx: Context, meta: Any, input: Any, src: Any, dim: Any, start: Any, end: Any, step: Any
) -> Tensor:
    index_map = _slice_map(input.meta.shape, dim, start, end, step, src.meta.shape)
    return _placed(ctx, meta, ctx.formula(input), input.meta.shape, src, index_map)


@rule("select_scatter", "input src dim index")
def select_scatter(ctx: Context, meta: Any, input: Any, src: Any, dim: Any, index: Any) -> Tensor:
    shape = input.meta.shape
    index_map = _select_map(shape, dim, index)
    if src.meta.shape != (*shape[: dim % len(shape)], *shape[dim % len(shape) + 1 :]):
        raise NoRule  # eager refuses
    return _placed(ctx, meta, ctx.formula(input), shape, src, index_map)


@rule("diagonal_scatter", "input src offset=0 dim1=0 dim2=1")
def diagonal_scatter(ctx: Context, meta: Any, input: Any, src: Any, offset: Any, dim1: Any, dim2: Any) -> Tensor:
    shape = input.meta.shape
    index_map = _diagonal_map(shape, offset, dim1, dim2)
    if src.meta.shape != _diagonal_shape(shape, offset, dim1, dim2):
        raise NoRule  # eager refuses
    return _placed(ctx, meta, ctx.formula(input), shape, src, index_map)


@rule("diag_embed", "input offset=0 dim1=-2 dim2=-1")
def diag_embed(ctx: Context, meta: Any, input: Any, offset: Any, dim1: Any, dim2: Any) -> Tensor:
    if type(meta) is not TensorMeta:
        raise NoRule
    return _placed(ctx, meta, _zeros(meta), meta.shape, input, _diagonal_map(meta.shape, offset, dim1, dim2))


# --- parts that are kept ---


def _triangle(name: str, keep: Any) -> None:
    @evaluator(name)
    def triangle(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        diagonal = args[1] if len(args) > 1 else kwargs.get("diagonal", 0)
        tensor = args[0] if args else kwargs.get("input")
        if type(tensor) is not Tensor or type(diagonal) is not int or len(meta.shape) < 2 or len(args) > 2:
            raise NoRule
        ndim = len(meta.shape)
        away = ops.sub(Index(ndim - 1), Index(ndim - 2))
        value = ctx.formula(tensor)
        return ops.where(keep(away, ops.const(diagonal, I64)), value, ops.const(0, meta.dtype))


_triangle("tril", ops.le)
_triangle("triu", ops.ge)


@rule("eye", "n m=None dtype=None layout=None device=None pin_memory=None requires_grad=False")
def eye(ctx: Context, meta: Any, **options: Any) -> Tensor:
    if type(meta) is not TensorMeta or meta.device.type not in ALL_DEVICES or options["requires_grad"]:
        raise NoRule
    return made(ctx, meta, ops.via(ops.eq(Index(0), Index(1)), meta.dtype))


@rule("one_hot", "input num_classes=-1", [functional.one_hot])
def one_hot(ctx: Context, meta: Any, input: Any, num_classes: Any) -> Tensor:
    if type(meta) is not TensorMeta or type(num_classes) is not int or num_classes < 1 or input.dtype is not I64:
        raise NoRule
    shape, value = input.meta.shape, ctx.formula(input)
    inside = ops.bit_and(ops.ge(value, ops.const(0, I64)), ops.lt(value, ops.const(num_classes, I64)))
    ctx.raise_where(ops.bit_not(inside), shape, meta.device)
    ndim = len(shape) + 1
    return made(ctx, meta, ops.via(ops.eq(spread(value, shape, range(ndim - 1), ndim), Index(ndim - 1)), meta.dtype))


