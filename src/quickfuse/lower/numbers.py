"""Arithmetic between Python numbers: on the host where it knows them, in a 0-dim loop where they come from a tensor."""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from quickfuse.errors import Unsupported
from quickfuse.ir.expr import FLOAT_FUNCTIONS, Const, Expr, Scalar
from quickfuse.ir.guard import added, literal
from quickfuse.ir.number_code import template_of
from quickfuse.ir.values import NumberMeta

from . import ops
from .context import Context
from .promotion import is_float
from .symbolic import Tensor
from .views import element_view

DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}

# --- numbers of the host ---


def host_number(ctx: Context, target: Any, args: Sequence[Any], name: str, meta: NumberMeta) -> Scalar:
    """The number that a node computes from others, as Python code. Equal code is computed once."""
    template = template_of(_IN_PLACE.get(target, target), len(args))
    if template is None:
        raise Unsupported(f"{getattr(target, '__name__', target)} of numbers")
    template = template[1:-1] if template.startswith("(") else template  # it stands alone
    return ctx.host_number(name, template.format(*map(_operand_code, args)), DTYPES[meta.kind])


def _operand_code(value: Any) -> str:
    if type(value) is Scalar:
        return value.name
    if type(value) in (bool, int, float):
        return literal(value)
    raise Unsupported(f"Python arithmetic with a {type(value).__name__}")


# --- numbers that come out of tensors ---


def _compared(name: str) -> Callable[..., Expr]:
    build: Callable[..., Expr] = getattr(ops if name in ("eq", "ne") else operator, name)
    return lambda dtype, x, y: build(*_common(x, y))


def _common(x: Expr, y: Expr) -> tuple[Expr, Expr]:
    wide = torch.float64 if is_float(x.dtype) or is_float(y.dtype) else torch.int64
    return ops.via(x, wide), ops.via(y, wide)


def _in_result_type(build: Callable[..., Expr]) -> Callable[..., Expr]:
    return lambda dtype, *args: build(*(ops.via(a, dtype) for a in args))


def _integer_quotient(build: Callable[..., Expr]) -> Callable[..., Expr]:
    def rule(dtype: torch.dtype, x: Expr, y: Expr) -> Expr:
        if not is_float(dtype) and not (type(y) is Scalar or (type(y) is Const and y.value)):  # guards see to the former
            raise Unsupported("division of a tensor's number by an integer that may be zero")
        return build(ops.via(x, dtype), ops.via(y, dtype))

    return rule


def _power(dtype: torch.dtype, x: Expr, y: Expr) -> Expr:
    if not is_float(dtype) and not (type(y) is Const and y.value >= 0):
        raise Unsupported("an integer power of a tensor's number")
    return ops.power(ops.via(x, dtype), ops.via(y, dtype))


def _extreme(build: Callable[[Expr, Expr], Expr]) -> Callable[..., Expr]:
    """Python's `max` and `min`: the first argument unless another one is beyond it."""

    def rule(dtype: torch.dtype, *args: Expr) -> Expr:
        best = args[0]
        for other in args[1:]:
            best = ops.where(build(*_common(other, best)), ops.via(other, dtype), ops.via(best, dtype))
        return best

    return rule


def _added(dtype: torch.dtype, start: Expr, *numbers: Expr) -> Expr:
    """Python's `sum`: the sum of the rounding errors from the second float on, before 3.14 of floats only, is added at the
    end, unless a number was infinite or none."""
    total, lost, floats = ops.via(start, dtype), ops.const(0.0, dtype), is_float(start.dtype)
    for element in numbers:
        number = ops.via(element, dtype)
        before, total = total, total + number
        exact, floats = not floats, floats or is_float(element.dtype)
        if exact or not (is_float(element.dtype) or sys.version_info >= (3, 14)):
            continue
        larger = ops.absolute(before) >= ops.absolute(number)
        lost = lost + ops.where(larger, (before - total) + number, (number - total) + before)
    unusable = _any([ops.isnan(lost), ops.isinf(lost), ops.eq(lost, 0)])
    return ops.where(unusable, total, total + lost)


#: Python's operator -> formula (result type, operands), in float64 and int64 as in Python.
_FROM_TENSOR: dict[Callable[..., Any], Callable[..., Expr]] = {
    **{f: _in_result_type(f) for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg)},
    **{f: _in_result_type(lambda x: x) for f in (operator.pos, float, int, bool)},
    operator.floordiv: _integer_quotient(ops.floor_div),
    operator.mod: _integer_quotient(ops.remainder),
    operator.pow: _power,
    operator.abs: _in_result_type(ops.absolute),
    operator.not_: lambda dtype, x: ~ops.via(x, torch.bool),
    **{getattr(operator, name): _compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    abs: _in_result_type(ops.absolute),
    round: lambda dtype, x: ops.via(ops.rounded(x) if is_float(x.dtype) else x, dtype),
    added: _added,
    max: _extreme(operator.gt),
    min: _extreme(operator.lt),
    **{
        getattr(math, name): _in_result_type(partial(ops.unary, name))
        for name in ("sqrt", *FLOAT_FUNCTIONS) if name != "exp2"
    },
    math.isnan: lambda dtype, x: ops.isnan(ops.via(x, torch.float64)),
    math.isinf: lambda dtype, x: ops.isinf(ops.via(x, torch.float64)),
    math.isfinite: lambda dtype, x: ops.absolute(ops.via(x, torch.float64)) < math.inf,
}
_IN_PLACE = {
    getattr(operator, f"i{name}"): getattr(operator, name) for name in "add sub mul truediv floordiv mod pow".split()
} | {pow: operator.pow}


def number_from_tensor(
    ctx: Context, target: Any, args: Sequence[Any], meta: NumberMeta, never_raises: bool = False
) -> Tensor:
    """The number that a node computes from a tensor, or from such a number.

    Where Python would raise an exception for the operands' values, the graph runs in eager mode, unless somebody knows
    that it `never_raises`.
    """
    device = _device(args)
    dtype = DTYPES[meta.kind]
    operands = [_operand(ctx, a, device) for a in args]
    if target == "item" or target is torch.Tensor.item:
        return ctx.number(ops.via(operands[0], dtype), device)
    rule = _FROM_TENSOR.get(_IN_PLACE.get(target, target))
    if rule is None:
        raise Unsupported(f"{getattr(target, '__name__', target)} of a number from a tensor")
    try:
        value = rule(dtype, *operands)
    except TypeError as error:
        raise Unsupported(f"{getattr(target, '__name__', target)} with {len(operands)} operands") from error
    if never_raises:
        refused = None
    elif dtype is torch.int64 and target not in _DIVISIONS:
        rounded = ops.via(rule(torch.float64, *operands), torch.float64)
        refused = ~(ops.absolute(rounded) < _WHOLE_BELOW)
    else:
        refused = _refused(_IN_PLACE.get(target, target), args, operands, value)
    if refused is not None:
        if device.type != "cpu":
            raise Unsupported(f"{target.__name__} of a number on a GPU, for which Python may raise an exception")
        ctx.raise_where(refused, ())
    return ctx.number(ops.via(value, dtype), device)


#: Whole numbers below this one fit into 64 bits, also where they were rounded.
_WHOLE_BELOW = 2.0**62
_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})
#: What has a result for all numbers, and the same one in Python and in C.
_TOTAL = frozenset({math.tanh, math.atan, math.asinh, math.erf, math.erfc})


def _refused(function: Callable[..., Any], args: Sequence[Any], operands: list[Expr], value: Expr) -> Expr | None:
    """Where Python raises an exception, or gives something else than C. None where it never does."""
    if function in _DIVISIONS:
        divisor = operands[1]
        if type(args[1]) is Scalar or (type(divisor) is Const and divisor.value):  # a guard sees to the former
            return None
        return ops.eq(divisor, 0)
    if not is_float(value.dtype) or function in _TOTAL:
        return None
    if function is not operator.pow and getattr(math, getattr(function, "__name__", ""), None) is not function:
        return None
    # As Python's own wrappers around C's functions: no NaN that was none before, and infinity only from infinity.
    operands = [ops.via(operand, value.dtype) for operand in operands]
    was_nan = _any([ops.isnan(operand) for operand in operands])
    was_infinite = _any([ops.isinf(operand) for operand in operands])
    invalid = ops.isnan(value) & ~was_nan
    return invalid | ops.isinf(value) & ~(was_nan | was_infinite)


def _any(conditions: list[Expr]) -> Expr:
    return functools.reduce(operator.or_, conditions)


def _device(args: Sequence[Any]) -> torch.device:
    devices = [a.meta.device for a in args if type(a) is Tensor]
    if not devices:
        raise Unsupported("a number from a tensor that no tensor is seen to give")
    return next((d for d in devices if d.type != "cpu"), devices[0])


def _operand(ctx: Context, value: Any, device: torch.device) -> Expr:
    if type(value) is Tensor:
        if value.meta.numel != 1:
            raise Unsupported("the number in a tensor of several elements")
        if value.meta.shape:
            value = element_view(value, (0,) * len(value.meta.shape))
        return ctx.read_as(value, (), device)
    if type(value) is Scalar:
        return value
    if type(value) in DTYPES:
        return ops.const(value, DTYPES[type(value)])
    raise Unsupported(f"arithmetic of a number from a tensor with a {type(value).__name__}")

