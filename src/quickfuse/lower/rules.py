"""Rules of pointwise operators, and the table that they register in.

A rule is a formula on scalar expressions under a decorator that says what it is called and how its operands are
promoted:

    @pointwise("add", operands="self other", numbers={"alpha": 1})
    def add(x, y, alpha):
        return x + ops.scaled(y, alpha)

The one rule serves `torch.add`, `Tensor.add`, `add_`, `out=`, `operator.add` and `torch._foreach_add`: `targets.py`
knows the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import HALF_TYPES, Expr, Scalar
from quickfuse.ir.values import TensorMeta

from . import ops
from .context import Context
from .parameters import NoRule as NoRule
from .parameters import Parameters, no_rule_if
from .promotion import COMPUTE, NUMBER, NUMBER_KEYS, Key, Promotion, check_supported, common_dtype
from .symbolic import Tensor, may_overlap

#: (context, arguments by position, by name, metadata of the result) -> the result's value, in the result's type.
Evaluator = Callable[[Context, Sequence[Any], Mapping[str, Any], TensorMeta], Expr]

#: name of an operator, without a trailing underscore -> its evaluator.
EVALUATORS: dict[str, Evaluator] = {}

ALL_DEVICES = frozenset({"cpu", "cuda"})


def evaluator(names: str) -> Callable[[Evaluator], Evaluator]:
    """Register a function that reads its arguments itself."""

    def register(function: Evaluator) -> Evaluator:
        for name in names.split():
            assert name not in EVALUATORS, name
            EVALUATORS[name] = function
        return function

    return register


def bound(names: str) -> Callable[[Callable[..., Expr]], Callable[..., Expr]]:
    """Register a function `(ctx, meta, *parameters)`, whose annotations say what it takes: see `parameters.py`."""

    def register(function: Callable[..., Expr]) -> Callable[..., Expr]:
        parameters = Parameters(function)

        def evaluate(ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
            value: Expr = parameters.call(function, parameters.bind(args, kwargs, meta), ctx, meta)
            return value

        evaluator(names)(evaluate)
        return function

    return register


class Pointwise:
    """The evaluator of a formula.

    operands: names of the tensor operands in order; numbers may stand in for tensors.
    numbers, options: the parameters that follow, with their defaults. Numbers reach the formula as expressions of the
        compute type, options as they are.
    promotion: what the common type follows from.
    exact_numbers: device types on which eager does not round a Python number to the tensors' 16-bit type before
        computing in 32 bits.
    needs: which of `device` (its type) and `common` (the common type) the formula takes by name.
    """

    __slots__ = ("compute", "defaults", "exact_numbers", "names", "needs", "numbers", "operands", "promotion", "total")

    def __init__(
        self, compute: Callable[..., Expr], operands: str = "self", numbers: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None, promotion: Promotion = Promotion.SAME,
        exact_numbers: frozenset[str] = frozenset(), needs: str = "",
    ) -> None:  # fmt: skip
        self.compute = compute
        self.operands = len(operands.split())
        self.numbers = len(numbers or {})
        self.defaults = (_MISSING,) * self.operands + (*(numbers or {}).values(), *(options or {}).values())
        self.names = {name: k for k, name in enumerate([*operands.split(), *(numbers or {}), *(options or {})])}
        self.names["input"] = 0
        self.total = len(self.defaults)
        self.promotion = promotion
        self.exact_numbers = exact_numbers
        self.needs = needs.split()

    def __call__(self, ctx: Context, args: Sequence[Any], kwargs: Mapping[str, Any], meta: TensorMeta) -> Expr:
        if kwargs or len(args) != self.total:
            args = self._bind(args, kwargs)
        n = self.operands
        common = common_dtype(tuple([promotion_key(a) for a in args[:n]]), self.promotion, ctx.default_dtype)
        compute = COMPUTE[common]
        shape, device = meta.shape, meta.device
        exact = common not in HALF_TYPES or device.type in self.exact_numbers
        exprs: list[Any] = [operand(ctx, a, shape, device, common, compute, exact) for a in args[:n]]
        if exact and common in HALF_TYPES and device.type == "cpu" and type(args[0]) is Tensor and not args[0].is_number:
            # Eager's kernels for the CPU take a tensor of one element for a number on the right only.
            exprs[0] = operand(ctx, args[0], shape, device, common, compute, False)
        if self.numbers:
            steps = (compute,) if exact or not self.exact_numbers else (common, compute)
            exprs += [number(ctx, a, shape, device, steps) for a in args[n : n + self.numbers]]
        exprs += args[n + self.numbers :]
        facts = {"device": device.type, "common": common} if self.needs else {}
        return finish(self.compute(*exprs, **{name: facts[name] for name in self.needs}), common, meta.dtype)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        no_rule_if(len(args) > self.total)
        bound = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            no_rule_if(name not in self.names)
            bound[self.names[name]] = value
        no_rule_if(any(value is _MISSING for value in bound))
        return bound


_MISSING = object()


def pointwise(names: str, **settings: Any) -> Callable[[Callable[..., Expr]], Pointwise]:
    """Register a formula under `names`; `settings` are those of `Pointwise`."""

    def register(compute: Callable[..., Expr]) -> Pointwise:
        rule = Pointwise(compute, **settings)
        evaluator(names)(rule)
        return rule

    return register


def promotion_key(value: Any) -> Key:
    """How an operand takes part in type promotion."""
    if type(value) is Tensor:
        return value.key
    if type(value) is Scalar:
        return (value.dtype, NUMBER)
    key = NUMBER_KEYS.get(type(value))
    no_rule_if(key is None)
    return key


def operand(
    ctx: Context, value: Any, shape: tuple[int, ...], device: torch.device, common: torch.dtype, compute: torch.dtype,
    exact: bool,
) -> Expr:  # fmt: skip
    """An operand as an expression of the compute type, over `shape`.

    Operands are rounded to the common type first, but for numbers where `exact`.
    """
    if type(value) is Tensor:
        meta = value.meta
        here = meta.shape == shape and meta.device == device
        expr = ctx.formula(value) if here else ctx.read_as(value, shape, device)
        if expr.dtype is compute and common is compute:
            return expr
        check_supported(expr.dtype)
        alone = value.is_number or (meta.device.type == "cpu" and meta.numel == 1)
        return ops.via(expr, compute) if common is compute or (exact and alone) else ops.via(expr, common, compute)
    return given(value, compute) if exact else given(value, common, compute)


def number(
    ctx: Context, value: Any, shape: tuple[int, ...], device: torch.device, steps: tuple[torch.dtype, ...]
) -> Expr:
    """A number parameter, converted through the types `steps`. A one-element tensor stands for what it holds."""
    if type(value) is Tensor:
        no_rule_if(value.meta.shape)
        return ops.via(ctx.read_as(value, shape, device), *steps)
    return given(value, *steps)


def given(value: Any, *steps: torch.dtype) -> Expr:
    """A number of Python's or of the host, converted through the types `steps`."""
    if type(value) is Scalar:
        return ops.via(value, *steps)
    no_rule_if(type(value) not in NUMBER_KEYS)
    return ops.const(value, *steps)


def finish(value: Expr, common: torch.dtype, result: torch.dtype) -> Expr:
    """The value of a formula, rounded to the common type as eager rounds it, in the type of the result."""
    if value.dtype is torch.bool or common not in HALF_TYPES:
        return value if value.dtype is result else ops.via(value, result)
    return ops.via(value, common, result)


def into(ctx: Context, evaluate: Evaluator, out: Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
    """Evaluate for the tensor `out`, which keeps its type and shape.

    Raises:
        Unsupported: where an operand overlaps `out` without being the same elements, which eager refuses or garbles.
    """
    for value in args:
        if type(value) is Tensor and value.storage is out.storage and value is not out and may_overlap(value, out):
            raise Unsupported("an in-place operator between overlapping tensors")
    ctx.assign(out, evaluate(ctx, args, kwargs, out.meta))
    return out
