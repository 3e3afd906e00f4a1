"""Arithmetic on numbers of the user's program: what each operation gives, and when Python refuses it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.guard import NumberExpr, added
from ...ir.number_code import CALLED, UFUNCS
from ...ir.source import Source
from ..symbolic import Symbol, TensorProxy, symbolic_leaves
from .results import OperatorFailed

#: Operators whose number operands are data: a number from outside may stay symbolic there.
SCALAR_OPERANDS = frozenset(
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow rsub lerp addcmul addcdiv clamp "
    "clamp_min clamp_max clip maximum minimum eq ne lt le gt ge greater less fill masked_fill where tensor full full_like "
    "iadd isub imul itruediv ipow truediv floordiv mod neg addmm addmv addr addbmm baddbmm".split()
)

#: Functions that give for NumPy's float64 what they give for Python's float, as long as that is finite, in the class that
#: NumPy gives it.
FLOAT_ARITHMETIC = frozenset({
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg, operator.pos, operator.abs, abs,
})  # fmt: skip
OF_NUMPY_AND_TENSORS = FLOAT_ARITHMETIC | {
    float, int, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, operator.not_,
    *(f for f in CALLED if f is not round),
}  # fmt: skip
OF_NUMPY = OF_NUMPY_AND_TENSORS | {max, min, *UFUNCS}
#: Functions of NumPy's numbers of all classes: NumPy itself computes them, before the graph runs.
OF_ALL_NUMPY = OF_NUMPY | {operator.floordiv, operator.mod}

#: What `math` says of a number.
_TESTS = frozenset({math.isfinite, math.isinf, math.isnan})
#: The functions of `math` that kernels compute of numbers out of tensors.
OF_TENSORS = _TESTS | {
    getattr(math, name)
    for name in "sqrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc "
    "lgamma".split()
}

DIVISIONS = frozenset({
    operator.truediv, operator.floordiv, operator.mod, operator.itruediv, operator.ifloordiv, operator.imod,
})  # fmt: skip

#: Arithmetic that has a result for all numbers of its kinds.
NEVER_RAISE = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, abs, float, operator.lt, operator.le,
    operator.gt, operator.ge, operator.eq, operator.ne, operator.not_, operator.and_, operator.or_, operator.xor, max, min,
    added, *_TESTS,
})  # fmt: skip

#: Arithmetic of whole numbers out of tensors that kernels can do, and of that what may leave the range of 64 bits.
_MAY_OVERFLOW = frozenset({operator.add, operator.sub, operator.mul, operator.neg, operator.abs, abs, added})
_WHOLE = _MAY_OVERFLOW | {operator.pos, int}

#: Arithmetic that has an int where its operands are, or where one of them is.
_GIVE_EITHER = _MAY_OVERFLOW | {operator.pos, operator.floordiv, operator.mod, operator.pow, max, min}

NUMBER_COMPARISONS = frozenset({operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne})
_COMPARISONS = NUMBER_COMPARISONS | {operator.not_}
_TO_INTEGER = frozenset({int, round, math.floor, math.ceil, math.trunc})


def kind_depends_on_values(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether numbers of the same kinds could give a result of another kind: `2 ** -1`, `(-2.0) ** 0.5`, `max(1, 2.5)`."""
    kinds = [o.cls if type(o) is Symbol else type(o) for o in operands]
    if function is max or function is min:
        return len(set(kinds)) > 1
    return function is operator.pow and kinds != [float, int] and numpy.float64 not in kinds


def kind_from_tensor(function: Callable[..., Any], operands: tuple[Any, ...]) -> type:
    """The kind of a number that is computed from one that only running the graph tells."""
    if function in _COMPARISONS or function in _TESTS:
        return bool
    if function is float or function is operator.truediv:
        return float
    kinds = [o.kind if type(o) is Symbol else type(o) for o in operands]
    if float in kinds and not (function in _TO_INTEGER and kinds[0] is float):
        if any(k not in (int, float, bool) for k in kinds):
            raise Unsupported("arithmetic between a tensor's number and another type")
        return float
    if function in (max, min):
        whole = all(kind is int for kind in kinds)
    elif function in (operator.floordiv, operator.mod):
        divisor = operands[1]
        known = divisor if type(divisor) is int else divisor.hint if kinds[1] is int and not divisor.from_tensor else 0
        whole = known > 0
    else:
        whole = function in _WHOLE
    if whole and all(kind in (int, bool) for kind in kinds) and not is_on_gpu(operands):
        return int
    raise Unsupported(f"integer {getattr(function, '__name__', function)} on a number from a tensor")


def may_be_int(function: Callable[..., Any], operands: tuple[Any, ...], kind: type) -> bool:
    """Whether Python may have an int where a number that is computed from tensors' is taken for a float."""
    if kind is not float or function not in _GIVE_EITHER:
        return False
    if function is not max and function is not min:
        return not any(o.kind is float and not o.may_be_int if type(o) is Symbol else type(o) is float for o in operands)
    floats = [(o.kind if type(o) is Symbol else type(o)) is float for o in operands]
    return any(type(o) is Symbol and o.may_be_int for o in operands) or not all(floats)


def check_kind(number: Any) -> None:
    """Refuse to tell the class of a number that may be an int or a float. Raises `Unsupported` if it may be either."""
    if type(number) is Symbol and number.may_be_int:
        raise Unsupported("a number of which only running the graph tells whether it is an int or a float")


def check_kinds(tensors: list[TensorProxy], *operands: Any) -> None:
    """The same for an operator's operands: it is all the same to those on floating-point and complex tensors alone."""
    if not tensors or not all(t.meta.dtype.is_floating_point or t.meta.dtype.is_complex for t in tensors):
        for leaf in symbolic_leaves(operands):
            check_kind(leaf)


def needed_of_whole_numbers(function: Callable[..., Any], operands: tuple[Any, ...]) -> Iterator[NumberExpr]:
    """What has to hold of the operands from outside, where kernels compute whole numbers."""
    yield from range_guards(operands, (torch.int64,))
    if function in DIVISIONS and type(operands[1]) is Symbol:
        yield NumberExpr("({} > 0)", (operands[1].expr,))


def may_overflow(function: Callable[..., Any], kind: type) -> bool:
    """Whether arithmetic with numbers out of tensors may give a whole number that kernels cannot hold."""
    return kind is int and function in _MAY_OVERFLOW


def may_divide_by_zero(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether only running the graph tells what a number is divided by."""
    return function in DIVISIONS and type(operands[1]) is Symbol and operands[1].from_tensor


def may_raise(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether Python refuses some numbers out of tensors, where `needed_of_operands` holds of the others."""
    return may_divide_by_zero(function, operands) if function in DIVISIONS else function not in NEVER_RAISE


def needed_of_operands(function: Callable[..., Any], operands: tuple[Any, ...]) -> list[NumberExpr]:
    """What has to hold of the operands from outside, where others come from tensors: that Python does not refuse them, and
    that the result is a real number."""
    if function in DIVISIONS:
        return _not_zero(operands[1])
    if function is operator.pow or function is operator.ipow:
        return _real_power(*operands)
    return []


def _not_zero(divisor: Any) -> list[NumberExpr]:
    if type(divisor) is Symbol and divisor.from_tensor:
        return []
    if not (divisor.hint if type(divisor) is Symbol else divisor):
        raise OperatorFailed("ZeroDivisionError: division by zero")
    return [NumberExpr("({} != 0)", (divisor.expr,))] if type(divisor) is Symbol else []


def _real_power(base: Any, exponent: Any) -> list[NumberExpr]:
    """Negative numbers have only whole powers."""
    if (exponent.kind is not float) if type(exponent) is Symbol else float(exponent).is_integer():
        return []
    if type(base) is Symbol and base.from_tensor:
        return []  # kernels see what is no number
    if not (base.hint if type(base) is Symbol else base) > 0:
        raise Unsupported("a power of a tensor's number, which may be complex")
    return [NumberExpr("({} > 0)", (base.expr,))] if type(base) is Symbol else []


def is_on_gpu(operands: tuple[Any, ...]) -> bool:
    """Whether arithmetic is about a number in a tensor that is not in the CPU's memory: the kernels that could tell that
    Python refuses it do not run there."""
    for operand in operands:
        if type(operand) is Symbol and operand.from_tensor:
            if operand.tensor is not None and operand.tensor.meta.device.type != "cpu":
                return True
            if operand.operation is not None and is_on_gpu(operand.operation[1]):
                return True
    return False


# numbers that operators convert to a tensor's type: eager raises where one is beyond its range ---------------------


#: Operators that convert numbers to the type of their result, or of the tensor that they change -> where in their arguments
#: these numbers are: the position, and the name.
_CONVERTED: dict[str, tuple[tuple[int, str], ...]] = {
    "fill": ((1, "value"),), "full": ((1, "fill_value"),), "full_like": ((1, "fill_value"),),
    "new_full": ((2, "fill_value"),), "fill_diagonal": ((1, "fill_value"),), "setitem": ((2, ""),),
    "masked_fill": ((2, "value"),), "index_fill": ((3, "value"),), "scatter": ((3, "value"), (3, "src")),
    "pad": ((3, "value"),), "constant_pad_nd": ((2, "value"),), "tensor": ((0, "data"),), "addcmul": ((3, "value"),),
    "clamp": ((1, "min"), (2, "max")), "clip": ((1, "min"), (2, "max")), "clamp_min": ((1, "min"),),
    "clamp_max": ((1, "max"),), "pow": ((0, "input"), (1, "exponent")), "where": ((1, "input"), (2, "other")),
    "scalar_tensor": ((0, "s"),), "threshold": ((1, "threshold"), (2, "value")),
    "hardshrink": ((1, "lambd"),), "softshrink": ((1, "lambd"),), "hardtanh": ((1, "min_val"), (2, "max_val")),
    "elu": ((1, "alpha"),), "celu": ((1, "alpha"),), "leaky_relu": ((1, "negative_slope"),),
    "softplus": ((1, "beta"), (2, "threshold")),
}  # fmt: skip
#: The operators that compute 16-bit numbers in single precision, to which they convert the others.
_IN_SINGLE_PRECISION = frozenset({"elu", "celu", "leaky_relu", "softplus"})
_ALPHA = ((-1, "alpha"),)


def converted_numbers(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The numbers and symbols among an operator's arguments that it converts. `name` has no underscores around it."""
    name = name.removeprefix("foreach_")
    places = _CONVERTED.get(name, ()) + (_ALPHA if "alpha" in kwargs else ())
    given = [args[k] if 0 <= k < len(args) else kwargs.get(keyword) for k, keyword in places]
    if name == "pad":  # which converts through a float: -5 does not become 251 then
        given = [float(value) if type(value) is int else value for value in given]
    return [number for value in given for number in _numbers(value)]


def converted_types(name: str, dtypes: set[torch.dtype]) -> set[torch.dtype]:
    """The types that an operator converts numbers to; `dtypes` are those of its results."""
    if name in _IN_SINGLE_PRECISION:
        return {torch.float32 if dtype.is_floating_point and dtype.itemsize == 2 else dtype for dtype in dtypes}
    return dtypes


def number_in_power(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Symbol, str] | None:
    """The number from outside that tensors are raised to, or that is raised to tensors, and for which values of it the
    formula of the gradient is one; None if there is no such number. `name` has no underscores around it."""
    if name not in ("pow", "ipow", "rpow") or not args:
        return None
    is_base = name == "rpow" or type(args[0]) is Symbol
    condition = "({} > 0)" if is_base else "({} != 0)"
    number = args[0] if type(args[0]) is Symbol else args[1] if len(args) > 1 else kwargs.get("exponent")
    known = type(number) is Symbol and not number.from_tensor and number.kind is not bool
    return (number, condition) if known else None


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _numbers(element)
    elif type(value) in (int, float, Symbol):
        yield value
    else:
        yield from (v for v in symbolic_leaves(value) if type(v) is Symbol)


def range_guards(numbers: Iterable[Any], dtypes: Iterable[torch.dtype]) -> Iterator[NumberExpr]:
    """The conditions under which the symbols among some numbers fit some types. Raises `Unsupported` where a number does
    not, so that the operator raises."""
    for number in numbers:
        for dtype in dtypes:
            if dtype is torch.bool:
                continue
            is_symbol = type(number) is Symbol
            value, kind = (number.hint, number.kind) if is_symbol else (number, type(number))
            if kind is bool or (is_symbol and number.from_tensor):
                continue
            lowest, largest = _limits(kind, dtype)
            inexact = kind is float and dtype.to_real().is_floating_point  # which infinity fits, and what is no number
            if not (lowest <= value <= largest or (inexact and value - value != 0)):
                raise Unsupported(f"a number beyond the range of {dtype}")
            if is_symbol:
                also = " or {0} - {0} != 0" if inexact else ""
                yield NumberExpr(f"({{1}} <= {{0}} <= {{2}}{also})", (number.expr, lowest, largest))


def _limits(kind: type, dtype: torch.dtype) -> tuple[Any, Any]:
    real = dtype.to_real()
    if real.is_floating_point:
        return -torch.finfo(real).max, torch.finfo(real).max
    limits = torch.iinfo(real)
    wraps = not limits.min and kind is int  # -1 becomes 255, as in C++
    return -limits.max if wraps else limits.min, limits.max


def is_setting(number: Any) -> bool:
    """Whether a number is computed from attributes alone, as the lengths that a chain of convolutions gives: they stay."""
    for source in (number,) if isinstance(number, Source) else number.sources():
        while source is not None and source.kind != "attr":
            source = source.base
        if source is None:
            return False
    return True
