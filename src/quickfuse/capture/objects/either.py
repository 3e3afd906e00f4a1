"""`max(1e-3, x.norm())`: the one of two numbers or 0-dim tensors that their values say, as long as only arithmetic uses it.

Arithmetic with a number gives another such one; an operator on the elements of a tensor is computed with both, and what
the values say chooses among the results. Where something else is done with it, the graph ends in front of the call that
gave it, as at any branch on a tensor's value.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace
from typing import Any

import torch

from ...errors import Unsupported
from ..inference.elementwise import DRAWN, is_elementwise
from ..inference.mutation import giving_another, is_in_place
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import TENSOR_TYPES, TensorProxy
from ..symbolic.graph_values import Either, Symbol

#: Operators on numbers that never fail. A tensor among the two may be one that the program has, too: none changes it.
_NEVER_FAIL = (operator.add, operator.sub, operator.mul)


def either(i: Interpreter, condition: Any, first: Any, second: Any) -> Any:
    """`first if condition else second`; NotImplemented where these are no such values."""
    known = all(_is_number(v) or _is_plain(v) for v in (first, second))
    if type(condition) is not TensorProxy or not known or i.graph.nested:
        return NotImplemented
    return i.mark_created(Either(condition, first, second, i.moment()))


def _is_number(value: Any) -> bool:
    """Whether a value is a number of Python's that is known before the graph runs."""
    if type(value) is Symbol:
        return value.cls is value.kind in (int, float) and not value.from_tensor
    return type(value) in (int, float)


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor of one floating-point number, without gradients."""
    if type(value) is not TensorProxy or value.cls not in TENSOR_TYPES:
        return False
    return value.meta.ndim == 0 and value.meta.dtype.is_floating_point and not value.meta.requires_grad


def unary(i: Interpreter, function: Any, value: Either) -> Either:
    """`-value` and the like."""
    if function not in (operator.neg, operator.pos, abs):
        raise value.left()
    return i.mark_created(value.with_both(*[i.now(i.kind_of(v).unary, i, function, v) for v in value.both]))  # type: ignore


def binary(i: Interpreter, function: Any, left: Any, right: Any) -> Any:
    """An operator of Python's with such a value on a side."""
    value = left if type(left) is Either else right
    other = right if value is left else left
    if type(other) is TensorProxy:
        return called(i, "call_function", function, (left, right), {})
    divides = function is operator.truediv and value is left and type(right) in (int, float) and right
    if not _is_number(other) or not (function in _NEVER_FAIL or divides):
        raise value.left()
    pairs = [(v, other) if value is left else (other, v) for v in value.both]
    return i.mark_created(value.with_both(*[i.now(i.binary, function, *pair) for pair in pairs]))


def called(i: Interpreter, kind: str, function: Any, args: Args, kwargs: Kwargs) -> Any:
    """An operator on the elements of tensors, one of whose operands is such a value. In place, it changes the first."""
    value = next(v for v in (*args, *kwargs.values()) if type(v) is Either)
    name = function if kind == "call_method" else function.__name__
    tensors = [v for v in (*args, *kwargs.values()) if type(v) is TensorProxy]
    in_place = is_in_place(function)
    first = args[0]
    plain = tensors and all(t.cls in TENSOR_TYPES and not t.meta.requires_grad for t in tensors)
    named: Any = SimpleNamespace(__name__=name)
    if not plain or not is_elementwise(named, kwargs) or name in DRAWN or (in_place and first is not tensors[0]):
        raise value.left()
    target = giving_another(kind, function)
    try:
        results = [_with(i, kind, target, args, kwargs, value, k) for k in range(2)]
    except Unsupported:
        raise value.left() from None
    if any(type(r) is not TensorProxy for r in results) or results[0].meta != results[1].meta:
        raise value.left()
    made = i.graph.call("call_function", torch.where, (value.condition, *results), {})
    if type(made) is not TensorProxy or made.meta != results[0].meta:
        raise value.left()
    if not in_place:
        return made
    if (made.meta.dtype, made.meta.shape) != (first.meta.dtype, first.meta.shape):
        raise value.left()
    i.graph.call("call_method", "copy_", (first, made), {})
    return first


def _with(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs, value: Either, k: int) -> Any:
    """The call with one of the two."""
    if any(type(v) is Either and v.condition is not value.condition for v in (*args, *kwargs.values())):
        raise value.left()
    given = [v.both[k] if type(v) is Either else v for v in args]
    options = {name: v.both[k] if type(v) is Either else v for name, v in kwargs.items()}
    if kind == "call_method":
        return i.call_now(i.attribute_now(given[0], target), (*given[1:],), options)
    return i.now(i.binary, target, *given) if len(given) == 2 and not options else i.call_now(target, (*given,), options)
