"""Rules of reductions: sums, extrema and where they are, moments, norms, softmax.

What eager computes in float32 and rounds at the end is rounded at the end here, too. Sums are formed in `Space.wide`
types, so that their errors are no larger than eager's in any order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.values import TensorMeta

from . import ops
from .calls import made, rule
from .context import Context
from .layout import Shape
from .moments import moments
from .promotion import COMPUTE, is_float
from .rules import ALL_DEVICES, NoRule
from .space import Space
from .symbolic import Tensor

I64, BOOL = torch.int64, torch.bool


class Reading:
    """A tensor that is reduced: the space over its index, and its elements in the type that is computed in."""

    def __init__(self, ctx: Context, tensor: Any, dim: Any, dtype: Any = None, *, empty_is_all: bool = True) -> None:
        if type(tensor) is not Tensor or (dtype is not None and dtype not in COMPUTE):
            raise NoRule
        shape = tensor.meta.shape
        self.dtype: torch.dtype = dtype or tensor.dtype
        self.space = Space(ctx, shape, axes_of(dim, len(shape), empty_is_all), tensor.meta.device)
        self.value = ops.via(ctx.read(tensor), self.dtype, COMPUTE[self.dtype])

    def result(self, ctx: Context, meta: Any, value: Expr, keepdim: Any) -> Tensor:
        """A value of the space as the tensor `meta`."""
        if type(meta) is not TensorMeta or type(keepdim) is not bool:
            raise NoRule
        return ctx.fresh(meta, ops.via(self.space.result(value, keepdim), meta.dtype))


def axes_of(dim: Any, ndim: int, empty_is_all: bool = True) -> Shape:
    """The axes that a `dim` argument means."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim and empty_is_all):
        return tuple(range(ndim))
    given = dim if isinstance(dim, (list, tuple)) else (dim,)
    if any(type(d) is not int for d in given):
        raise NoRule
    return tuple(sorted({d % ndim for d in given if ndim}))


# --- sums and products ---


@rule("sum", "input dim=None keepdim=False dtype=None")
def total(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    if isinstance(meta, TensorMeta) and dtype is None:
        dtype = meta.dtype
    x = Reading(ctx, input, dim, dtype)
    if dtype is BOOL:
        return x.result(ctx, meta, x.space.largest(x.value), keepdim)
    return x.result(ctx, meta, x.space.sum(x.value), keepdim)


@rule("mean", "input dim=None keepdim=False dtype=None")
def mean(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    """The sum, divided by the count in the type that is computed in."""
    x = Reading(ctx, input, dim, dtype)
    compute = COMPUTE[x.dtype]
    summed = ops.via(x.space.sum(x.value), compute)
    return x.result(ctx, meta, ops.div(summed, x.space.number_of_elements(compute)), keepdim)


@rule("prod", "input dim=None keepdim=False dtype=None")
def product(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    if isinstance(meta, TensorMeta) and dtype is None:
        dtype = meta.dtype
    x = Reading(ctx, input, dim, dtype, empty_is_all=False)
    return x.result(ctx, meta, x.space.reduce(x.value, "mul"), keepdim)


def _logical(combine: str) -> Callable[..., Tensor]:
    def evaluate(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any) -> Tensor:
        x = Reading(ctx, input, dim, empty_is_all=not isinstance(dim, (list, tuple)))
        return x.result(ctx, meta, x.space.reduce(ops.via(x.value, BOOL), combine), keepdim)

    return evaluate


rule("any", "input dim=None keepdim=False")(_logical("or"))
rule("all", "input dim=None keepdim=False")(_logical("and"))


# --- extrema ---


def _extremum(space: Space, value: Expr, largest: bool) -> Expr:
    if not space.count:  # eager raises: nothing is the largest of no elements
        raise NoRule
    return space.largest(value) if largest else space.least(value)


def _place(space: Space, value: Expr, largest: bool) -> Expr:
    """Where the extremum is first, as an int64."""
    best = _extremum(space, value, largest)
    found = ops.eq(value, best)
    if is_float(value.dtype):
        found = ops.bit_or(found, ops.bit_and(ops.isnan(value), ops.isnan(best)))
    past = ops.const(torch.iinfo(I64).max, I64)
    return space.reduce(ops.where(found, space.position(), past), "minimum")


def _register_extrema(name: str, largest: bool) -> None:
    @rule(f"a{name}", "input dim=() keepdim=False")
    def extremum(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any) -> Tensor:
        x = Reading(ctx, input, dim)
        return x.result(ctx, meta, _extremum(x.space, x.value, largest), keepdim)

    @rule(f"arg{name}", "input dim=None keepdim=False")
    def place(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any) -> Tensor:
        x = Reading(ctx, input, dim)
        return x.result(ctx, meta, _place(x.space, x.value, largest), keepdim)

    @rule(name, "input dim=None keepdim=False")
    def with_place(ctx: Context, meta: Any, input: Any, dim: Any, keepdim: Any) -> Any:
        if dim is None:
            return extremum(ctx, meta, input, (), False)
        if type(dim) is not int or not isinstance(meta, (list, tuple)) or len(meta) != 2:
            raise NoRule  # or two tensors, whose rule is `maximum`
        x = Reading(ctx, input, dim)
        best = x.result(ctx, meta[0], _extremum(x.space, x.value, largest), keepdim)
        return [best, x.result(ctx, meta[1], _place(x.space, x.value, largest), keepdim)]


_register_extrema("max", True)
_register_extrema("min", False)


# --- moments ---


def _corrected_moments(space: Space, value: Expr, correction: float) -> tuple[Expr, Expr]:
    """Mean and variance in the space's wide type. An infinity makes both NaN, as in Welford's algorithm."""
    mean_, variance = moments(space, value, exactly=True)
    if correction:
        count = space.number_of_elements(mean_.dtype)
        freedom = ops.maximum(ops.sub(count, ops.const(correction, mean_.dtype)), ops.const(0, mean_.dtype))
        return ops.where(ops.isnan(variance), variance, mean_), ops.mul(variance, ops.div(count, freedom))
    return ops.where(ops.isnan(variance), variance, mean_), variance


def _register_moments(name: str, root: bool, with_mean: bool) -> None:
    @rule(name, "input dim=None unbiased=True keepdim=False correction=None")
    def evaluate(
        ctx: Context, meta: Any, input: Any, dim: Any, unbiased: Any, keepdim: Any, correction: Any
    ) -> Any:
        if type(dim) is bool:  # var(x, unbiased)
            dim, unbiased = None, dim
        if correction is None:
            correction = int(unbiased)
        if type(correction) not in (int, float) or type(input) is not Tensor or not is_float(input.dtype):
            raise NoRule
        x = Reading(ctx, input, dim)
        if x.space.count <= correction:
            raise NoRule  # eager warns
        mean_, spread = _corrected_moments(x.space, x.value, correction)
        result = x.result(ctx, meta[0] if with_mean else meta, ops.sqrt(spread) if root else spread, keepdim)
        return [result, x.result(ctx, meta[1], mean_, keepdim)] if with_mean else result


_register_moments("var", root=False, with_mean=False)
_register_moments("std", root=True, with_mean=False)
_register_moments("var_mean", root=False, with_mean=True)
_register_moments("std_mean", root=True, with_mean=True)


# --- norms ---


def norm_of(space: Space, value: Expr, order: float) -> Expr:
    """The vector norm of each row, in the type of the elements."""
    size = ops.absolute(value)
    if order == math.inf:
        return space.largest(size)
    if order == -math.inf:
        return space.least(size)
    if order == 0:
        return ops.via(space.sum(ops.ne(value, ops.like(value, 0))), value.dtype)
    if order == 1:
        return ops.via(space.sum(size), value.dtype)
    if order == 2:
        return ops.via(ops.sqrt(space.sum(ops.mul(value, value))), value.dtype)
    powers = space.sum(ops.power(size, ops.like(size, order)))
    return ops.via(ops.power(powers, ops.const(1 / order, powers.dtype)), value.dtype)


def _norm(ctx: Context, meta: Any, x: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    if type(order) not in (int, float) or type(x) is not Tensor or not is_float(dtype or x.dtype):
        raise NoRule
    reading = Reading(ctx, x, dim, dtype)
    if not reading.space.count and order in (math.inf, -math.inf):
        raise NoRule
    return reading.result(ctx, meta, norm_of(reading.space, reading.value, float(order)), keepdim)


@rule("", "x ord=2 dim=None keepdim=False dtype=None", [torch.linalg.vector_norm])
def vector_norm(ctx: Context, meta: Any, x: Any, ord: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    return _norm(ctx, meta, x, ord, dim, keepdim, dtype)


@rule("norm", "input p=2 dim=None keepdim=False dtype=None")
def norm(ctx: Context, meta: Any, input: Any, p: Any, dim: Any, keepdim: Any, dtype: Any) -> Tensor:
    return _norm(ctx, meta, input, p, dim, keepdim, dtype)


@rule("", "input ord=2 dtype=None", [torch._foreach_norm])
def foreach_norm(ctx: Context, meta: Any, input: Any, ord: Any, dtype: Any) -> Any:
    if not isinstance(meta, (list, tuple)) or len(meta) != len(input):
        raise NoRule
    if any(type(x) is not Tensor or x.meta.device.type not in ALL_DEVICES for x in input):
        raise NoRule
    return [_norm(ctx, m, x, ord, None, False, dtype) for m, x in zip(meta, input, strict=True)]


# --- softmax ---


def log_softmax_of(space: Space, value: Expr) -> Expr:
    shifted = ops.sub(value, space.largest(value))
    return ops.sub(shifted, ops.via(ops.log(space.sum(ops.exp(shifted))), value.dtype))


def softmax_of(space: Space, value: Expr) -> Expr:
    powers = ops.exp(ops.sub(value, space.largest(value)))
    return ops.div(powers, ops.via(space.sum(powers), value.dtype))


for _name, _formula in {"_softmax": softmax_of, "_log_softmax": log_softmax_of}.items():

    @rule(_name, "input dim half_to_float=False")
    def softmax(
        ctx: Context, meta: Any, input: Any, dim: Any, half_to_float: Any, formula: Any = _formula
    ) -> Tensor:
        if type(meta) is not TensorMeta or not is_float(meta.dtype):
            raise NoRule
        x = Reading(ctx, input, dim, meta.dtype if half_to_float else None)
        return made(ctx, meta, ops.via(formula(x.space, x.value), meta.dtype))
