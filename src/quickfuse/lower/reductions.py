"""Rules of reductions: sums, extrema and where they are, moments, norms, softmax.

What eager computes in float32 and rounds at the end is rounded at the end here, too. Sums are formed in `Space.wide`
types, so that their errors are no larger than eager's in any order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule, several
from .context import Context
from .layout import Shape
from .moments import moments
from .promotion import COMPUTE, is_float
from .rules import ALL_DEVICES, no_rule_if
from .space import Space
from .symbolic import Tensor

I64, BOOL = torch.int64, torch.bool


class Reading:
    """A tensor that is reduced: the space over its index, and its elements in the type that is computed in."""

    def __init__(self, ctx: Context, tensor: Tensor, dim: Any, dtype: Any = None, *, empty_is_all: bool = True) -> None:
        no_rule_if(dtype is not None and dtype not in COMPUTE)
        shape = tensor.meta.shape
        self.dtype: torch.dtype = dtype or tensor.dtype
        self.space = Space(ctx, shape, axes_of(dim, len(shape), empty_is_all), tensor.meta.device)
        self.value = ops.via(ctx.read(tensor), self.dtype, COMPUTE[self.dtype])

    def result(self, ctx: Context, meta: Any, value: Expr, keepdim: bool) -> Tensor:
        """A value of the space as the tensor `meta`."""
        no_rule_if(type(meta) is not TensorMeta)
        return ctx.fresh(meta, ops.via(self.space.result(value, keepdim), meta.dtype))


def axes_of(dim: Any, ndim: int, empty_is_all: bool = True) -> Shape:
    """The axes that a `dim` argument means."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim and empty_is_all):
        return tuple(range(ndim))
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    no_rule_if(any(type(d) is not int or not -max(ndim, 1) <= d < max(ndim, 1) for d in given))  # eager refuses
    return tuple(sorted({d % ndim for d in given if ndim}))


# --- sums and products ---


@rule("sum")
def total(
    ctx: Context, meta: TensorMeta, input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x = Reading(ctx, input, dim, dtype or meta.dtype)
    return x.result(ctx, meta, (x.space.largest if x.dtype is BOOL else x.space.sum)(x.value), keepdim)


@rule("mean")
def mean(ctx: Context, meta: TensorMeta, input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """The sum, divided by the count in the type that is computed in."""
    x = Reading(ctx, input, dim, dtype)
    compute = COMPUTE[x.dtype]
    summed = ops.via(x.space.sum(x.value), compute)
    return x.result(ctx, meta, summed / x.space.number_of_elements(compute), keepdim)


@rule("prod")
def product(
    ctx: Context, meta: TensorMeta, input: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x = Reading(ctx, input, dim, dtype or meta.dtype, empty_is_all=False)
    return x.result(ctx, meta, x.space.reduce(x.value, "mul"), keepdim)


def _logical(
    combine: str, ctx: Context, meta: TensorMeta, input: Tensor, dim: Any = None, keepdim: bool = False
) -> Tensor:
    x = Reading(ctx, input, dim, empty_is_all=not isinstance(dim, (list, tuple)))
    return x.result(ctx, meta, x.space.reduce(ops.via(x.value, BOOL), combine), keepdim)


rule("any")(partial(_logical, "or"))
rule("all")(partial(_logical, "and"))


# --- extrema ---


def _extremum(space: Space, value: Expr, largest: bool) -> Expr:
    no_rule_if(not space.count)  # eager raises: nothing is the largest of no elements
    return space.largest(value) if largest else space.least(value)


def _place(space: Space, value: Expr, largest: bool) -> Expr:
    """Where the extremum is first, as an int64."""
    best = _extremum(space, value, largest)
    found = ops.eq(value, best)
    if is_float(value.dtype):
        found = found | ops.isnan(value) & ops.isnan(best)
    past = ops.const(torch.iinfo(I64).max, I64)
    return space.reduce(ops.where(found, space.position(), past), "minimum")


def _register_extrema(name: str, largest: bool) -> None:
    @rule(f"a{name}")
    def extremum(ctx: Context, meta: Any, input: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
        x = Reading(ctx, input, dim)
        return x.result(ctx, meta, _extremum(x.space, x.value, largest), keepdim)

    @rule(f"arg{name}")
    def place(ctx: Context, meta: Any, input: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        x = Reading(ctx, input, dim)
        return x.result(ctx, meta, _place(x.space, x.value, largest), keepdim)

    @rule(name)
    def with_place(ctx: Context, meta: Any, input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        if dim is None:
            return extremum(ctx, meta, input, (), False)
        metas, x = several(meta, 2), Reading(ctx, input, dim)
        best = x.result(ctx, metas[0], _extremum(x.space, x.value, largest), keepdim)
        return [best, x.result(ctx, metas[1], _place(x.space, x.value, largest), keepdim)]


_register_extrema("max", True)
_register_extrema("min", False)


# --- moments ---


def _corrected_moments(space: Space, value: Expr, correction: float) -> tuple[Expr, Expr]:
    """Mean and variance in the space's wide type. An infinity makes both NaN, as in Welford's algorithm."""
    mean_, variance = moments(space, value, exactly=True)
    mean_ = ops.where(ops.isnan(variance), variance, mean_)
    if not correction:
        return mean_, variance
    count = space.number_of_elements(mean_.dtype)
    return mean_, variance * (count / ops.maximum(count - correction, 0))


def _spread(
    root: bool, with_mean: bool, ctx: Context, meta: Any, input: Tensor, dim: Any = None, unbiased: Any = True,
    keepdim: bool = False, correction: float | None = None,
) -> Any:  # fmt: skip
    if type(dim) is bool:  # var(x, unbiased)
        dim, unbiased = None, dim
    correction = int(unbiased) if correction is None else correction
    x = Reading(ctx, input, dim)
    no_rule_if(not is_float(input.dtype) or x.space.count <= correction)  # eager warns of the latter
    mean_, spread = _corrected_moments(x.space, x.value, correction)
    result = x.result(ctx, meta[0] if with_mean else meta, ops.sqrt(spread) if root else spread, keepdim)
    return [result, x.result(ctx, meta[1], mean_, keepdim)] if with_mean else result


for _name, _root in (("var", False), ("std", True)):
    rule(_name)(partial(_spread, _root, False))
    rule(f"{_name}_mean")(partial(_spread, _root, True))


# --- norms ---


def norm_of(space: Space, value: Expr, order: float) -> Expr:
    """The vector norm of each row, in the type of the elements."""
    size = ops.absolute(value)
    if order == math.inf:
        return space.largest(size)
    if order == -math.inf:
        return space.least(size)
    if order == 0:
        return ops.via(space.sum(ops.ne(value, 0)), value.dtype)
    if order == 1:
        return ops.via(space.sum(size), value.dtype)
    if order == 2:
        return ops.via(ops.sqrt(space.sum(value * value)), value.dtype)
    powers = space.sum(ops.power(size, order))
    return ops.via(ops.power(powers, 1 / order), value.dtype)


def _norm(ctx: Context, meta: Any, x: Tensor, order: float, dim: Any, keepdim: bool, dtype: Any) -> Tensor:
    no_rule_if(not is_float(dtype or x.dtype))
    reading = Reading(ctx, x, dim, dtype)
    no_rule_if(not reading.space.count and order in (math.inf, -math.inf))
    return reading.result(ctx, meta, norm_of(reading.space, reading.value, float(order)), keepdim)


@rule("", [torch.linalg.vector_norm])
def vector_norm(
    ctx: Context, meta: TensorMeta, x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    return _norm(ctx, meta, x, ord, dim, keepdim, dtype)


@rule("norm")
def norm(
    ctx: Context, meta: TensorMeta, input: Tensor, p: float = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    return _norm(ctx, meta, input, p, dim, keepdim, dtype)


@rule("", [torch._foreach_norm])
def foreach_norm(ctx: Context, meta: Any, input: Any, ord: float = 2, dtype: Any = None) -> Any:
    no_rule_if(any(type(x) is not Tensor or x.meta.device.type not in ALL_DEVICES for x in input))
    return [_norm(ctx, m, x, ord, None, False, dtype) for m, x in zip(several(meta, len(input)), input, strict=True)]


# --- softmax ---


def log_softmax_of(space: Space, value: Expr) -> Expr:
    shifted = value - space.largest(value)
    return shifted - ops.via(ops.log(space.sum(ops.exp(shifted))), value.dtype)


def softmax_of(space: Space, value: Expr) -> Expr:
    powers = ops.exp(value - space.largest(value))
    return powers / ops.via(space.sum(powers), value.dtype)


def _softmax(
    formula: Callable[[Space, Expr], Expr],
    ctx: Context,
    meta: TensorMeta,
    input: Tensor,
    dim: int,
    half_to_float: bool = False,
) -> Tensor:
    no_rule_if(not is_float(meta.dtype))
    x = Reading(ctx, input, dim, meta.dtype if half_to_float else None)
    return made(ctx, meta, ops.via(formula(x.space, x.value), meta.dtype))


rule("_softmax")(partial(_softmax, softmax_of))
rule("_log_softmax")(partial(_softmax, log_softmax_of))
