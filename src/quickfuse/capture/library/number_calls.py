"""Functions of the standard library on numbers from outside: the outcome of each comparison counts, not the value."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.number_code import template_of
from ..branches.held_contents import float_in
from ..inference.number_operators import OF_TENSORS
from ..inference.results import OperatorFailed
from ..interpreter import Interpreter
from ..objects import numpy_functions
from ..objects.class_attributes import python_method
from ..objects.keys import check_conversions
from ..symbolic import LateNumber, Symbol, TensorProxy, is_constant, type_of

#: The same questions to numbers and to tensors: branches on what tensors answer are known beforehand (see `assertions`).
_TESTS = {math.isfinite: torch.isfinite, math.isnan: torch.isnan, math.isinf: torch.isinf}
#: What NumPy asks of numbers, as `math` does, but its answers are bools of its own.
_TESTS_OF_NUMPY = {numpy.isfinite: math.isfinite, numpy.isnan: math.isnan, numpy.isinf: math.isinf}
_NUMBERS = (Symbol, int, float, bool)


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that stays arithmetic where it is given a number from outside."""

    said = f"__{function.__name__}__" if function in (math.floor, math.ceil, math.trunc) else ""

    def handler(i: Interpreter, *args: Any) -> Any:
        if said and len(args) == 1 and (method := python_method(i, args[0], said)) is not None:
            return i.call_now(method, args)
        for value in args:
            check_conversions(i, value)
        plain = [float_in(i, a) if type(a) is TensorProxy else i.outside.number_of_numpy(a) for a in args]
        symbols = [a for a in plain if type(a) is Symbol]
        known = all(type(a) in _NUMBERS for a in plain)
        known &= function in OF_TENSORS or not any(s.from_tensor for s in symbols)
        if function in _TESTS and symbols and (answer := _asked_of_tensor(i, function, symbols[0])) is not None:
            return answer
        if symbols and known and template_of(function, len(plain)) is not None:
            with contextlib.suppress(OperatorFailed):
                return i.graph.number(function, *plain)
        plain = [i.outside.concrete(a) for a in plain]
        if not all(is_constant(a) for a in plain):
            raise Unsupported(f"{function.__module__}.{function.__name__} of a {type(args[0]).__name__}")
        return i.native(function, *plain)

    return handler


def _test_of_numpy(function: Callable[..., Any]) -> Callable[..., Any]:
    """One of NumPy's questions, to which only running the graph tells the answer where it does so of the number."""
    asked = _TESTS_OF_NUMPY[function]
    otherwise = numpy_functions.HANDLERS[function]

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        number = args[0] if len(args) == 1 and not kwargs else None
        if type(number) is not Symbol or number.kind is not float or not number.from_tensor or number.may_be_int:
            return otherwise(i, *args, **kwargs)
        found = _asked_of_tensor(i, asked, number)
        if found is None:
            found = i.graph.number(asked, number)
            found.operation = (function, (number,))  # the program sees NumPy's bool
        found.cls = numpy.bool_
        return found

    return handler


def _asked_of_tensor(i: Interpreter, asked: Callable[..., Any], number: Symbol) -> Symbol | None:
    """What the tensor answers from which a number was read, apart from autograd; None where it no longer holds that."""
    if number.tensor is None or (i.graph.mutated and not i.graph.contents.still_holds(number)):
        return None
    tensor = i.graph.call("call_method", "detach", (number.tensor,), {})
    return i.graph.item(i.graph.call("call_function", _TESTS[asked], (tensor,), {}))  # type: ignore[no-any-return]


def _round(i: Interpreter, value: Any, *digits: Any) -> Any:
    if type(value) is TensorProxy:
        raise Unsupported("round() of a tensor")
    any_float = len(digits) == 1 and type(digits[0]) is int and digits[0] >= 0  # can be rounded so
    if any_float and type(value) is Symbol and value.from_tensor and value.kind is value.cls is float:
        return LateNumber(round, (value, digits[0]))
    if any_float and type(value) is LateNumber:
        return LateNumber(round, (value, digits[0]), value.cls)
    if type(value) is Symbol or is_constant(value):
        return _function(round)(i, value, *digits)
    if (method := python_method(i, value, "__round__")) is None:
        raise Unsupported(f"round() of a {type_of(value).__name__}")
    return i.call_now(method, (value, *digits))


def truth_as_number(i: Interpreter, value: Any) -> Any:
    """`bool(value)`, where a number is wanted and no branch follows at once: a symbol where only running the graph tells."""
    if type(value) is TensorProxy:
        meta = value.meta
        one = type(meta.numel) is int and meta.numel == 1 and not meta.dtype.is_complex
        if not one or value.cls not in (torch.Tensor, torch.nn.Parameter) or i.graph.nested:
            return i.truth(value)
    elif type(value) is not Symbol or not value.from_tensor:
        return i.truth(value)
    if i.graph.contents.of(value) is not None:
        return i.truth(value)
    number = i.graph.item(value) if type(value) is TensorProxy else value
    if number.cls is not number.kind:  # what comparing one of NumPy's gives is not Python's bool either
        return i.graph.number(operator.not_, i.graph.number(operator.not_, number))
    return number if number.kind is bool else i.graph.number(operator.ne, number, 0)


HANDLERS: dict[Any, Callable[..., Any]] = {
    abs: lambda i, value: i.now(i.kind_of(value).unary, i, abs, value),
    round: _round,
    **{f: _function(f) for f in vars(math).values() if callable(f) and not isinstance(f, type)},
    **{f: _test_of_numpy(f) for f in _TESTS_OF_NUMPY},
}
