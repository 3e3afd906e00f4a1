"""Numbers and texts that Python makes after the graph, of numbers which only the graph tells, or which keep changing:
means of losses, say, and what is written of them.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import operator
import os.path
import statistics
import string
from collections.abc import Callable
from typing import Any

import numpy

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ..interpreter import Args, Interpreter, Kwargs
from ..objects import native_functions, numpy_functions
from ..objects.native_functions import plain_copy
from ..symbolic import FormedText, LateNumber, NativeHandler, Symbol, type_of
from .messages import filters_now
from .text import example_of, fits_float, joined, late_parts, text_of

#: Operators that raise for no floats, and those that raise for a divisor of zero alone.
_NEVER_FAIL = frozenset({operator.add, operator.sub, operator.mul})
_DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})

#: Functions of a list of floats that raise for none, NumPy's where it only warns -> the class of what they give. Not so
#: `statistics.fmean`, which refuses infinities of both signs.
_OF_LISTS: dict[Callable[..., Any], type] = {
    **dict.fromkeys(
        (numpy.mean, numpy.median, numpy.std, numpy.var, numpy.sum, numpy.max, numpy.min, numpy.average), numpy.float64
    ),
    **dict.fromkeys((statistics.mean, statistics.median), float),
}
#: Those of them that give a float of whole numbers, too.
_OF_WHOLE_NUMBERS = frozenset({numpy.mean, numpy.average, numpy.median, numpy.std, numpy.var})


#: Those made inside. Those from outside may grow.
_SEQUENCES = (list, tuple, collections.deque)


def late_arithmetic(i: Interpreter, function: Callable[..., Any], left: Any, right: Any) -> LateNumber | None:
    """An operator on a number that is computed after the graph and another; None where it may fail, or NumPy may warn."""
    divides = function in _DIVISIONS and _is_not_zero(i, right)
    of_numpy = [type_of(number) is numpy.float64 for number in (left, right)]
    fits = all(known or _is_float_or_fits(i, number) for number, known in zip((left, right), of_numpy, strict=True))
    if not (divides or function in _NEVER_FAIL) or not fits or (any(of_numpy) and not _numpy_only_warns(i)):
        return None
    return LateNumber(function, (left, right), numpy.float64 if any(of_numpy) else float)


def _is_not_zero(i: Interpreter, number: Any) -> bool:
    """Whether a number is known not to be zero; of one from outside, a guard holds it."""
    if type(number) is not Symbol:
        return type(number) in (int, float) and number != 0
    known = not number.from_tensor and bool(number.hint)
    if known:
        i.outside.require(NumberExpr("({} != 0)", (number.expr,)), True)
    return known


def late_extremum(function: Callable[..., Any], numbers: list[Any]) -> LateNumber | None:
    """`max(numbers)` or `min(numbers)`, where all are floats and one is computed after the graph."""
    late = any(type(number) is LateNumber for number in numbers) and _are_floats(numbers)
    return LateNumber(function, tuple(numbers)) if late and len(numbers) > 1 else None


def late_order(numbers: list[Any], reverse: bool) -> list[LateNumber] | None:
    """`sorted(numbers, reverse=reverse)`, where all are floats and only the graph tells some of them."""
    if len(numbers) > _MOST_SORTED or not (_are_late(numbers) and _are_floats(numbers)):
        return None
    return [LateNumber(_place_in_order, (k, reverse, *numbers)) for k in range(len(numbers))]


#: So many numbers are sorted anew for each of their places.
_MOST_SORTED = 32


def _place_in_order(k: int, reverse: bool, *numbers: float) -> float:
    return sorted(numbers, reverse=reverse)[k]


def _are_late(numbers: list[Any]) -> bool:
    """Whether some numbers are told by the graph alone."""
    return any(type(n) is LateNumber or (type(n) is Symbol and n.from_tensor) for n in numbers)


def _are_floats(numbers: list[Any]) -> bool:
    return all(type_of(n) is float and not (type(n) is Symbol and n.may_be_int) for n in numbers)


def _is_float_or_fits(i: Interpreter, number: Any) -> bool:
    """Whether a number is a float, or one that Python makes a float of."""
    kind = type_of(number)
    if type(number) is Symbol:
        return kind in (float, bool) or (kind is int and fits_float(i, number))
    return kind in (float, bool) or (kind is int and abs(number) < 1 << 53)


def _numpy_only_warns(i: Interpreter) -> bool:
    """Whether NumPy does no more than warn of infinities: an exception would come after the graph, where no handler of the
    program's is any more. Guards hold it."""
    settings = numpy.geterr()
    i.outside.guard("state", None, ("numpy.geterr()", settings))
    return {*settings.values()} <= {"ignore", "warn"} and all(action != "error" for action, *_ in filters_now(i))


def _of_list(i: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> LateNumber | None:
    """A function of a list, where only the graph tells a number in it; None for others."""
    numbers = [*args[0]] if len(args) == 1 and not kwargs and type(args[0]) in _SEQUENCES else []
    known = _are_floats(numbers) or (function in _OF_WHOLE_NUMBERS and all(_is_float_or_fits(i, n) for n in numbers))
    cls = _OF_LISTS[function]
    if not (_are_late(numbers) and known and (cls is float or _numpy_only_warns(i))):
        return None
    return LateNumber(function, (i.mark_created(numbers),), cls)


def _rounded(i: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> LateNumber | None:
    """`numpy.round`, where only the graph tells the number; None for others."""
    value, decimals = (*args, kwargs.get("decimals", 0))[:2] if args else (None, 0)
    is_float = type_of(value) in (float, numpy.float64) and not (type(value) is Symbol and value.may_be_int)
    plain = type(decimals) is int and len(args) <= 2 and kwargs.keys() <= {"decimals"}
    if not (is_float and plain and _are_late([value]) and _numpy_only_warns(i)):
        return None
    return LateNumber(function, (value, decimals), numpy.float64)


# texts ----------------------------------------------------------------------------------------------------------------


#: Methods of texts that give a text for any text.
_METHODS = frozenset(
    "capitalize casefold center expandtabs ljust lower lstrip removeprefix removesuffix replace rjust rstrip strip swapcase "
    "title upper zfill".split()
)


def formed(i: Interpreter, function: Callable[..., str], args: Args, kwargs: Kwargs) -> FormedText | None:
    """`function(*args, **kwargs)` as a text that is formed later; None where nothing in the arguments needs that, or the
    function refuses such arguments."""
    if kwargs.keys() & _MAY_REFUSE or all(late_parts(i, value) is None for value in args):
        return None
    found = [late_parts(i, value, all_numbers=True) for value in args]
    given = [plain_copy(i, value) if part is None else part for value, part in zip(args, found, strict=True)]
    named = {name: plain_copy(i, value) for name, value in kwargs.items()}
    try:
        if type(function(*map(example_of, given), **named)) is not str:
            return None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    return FormedText(functools.partial(function, **named) if named else function, *given)


#: Options of `json.dumps` that call other functions, or refuse some numbers.
_MAY_REFUSE = frozenset({"allow_nan", "cls", "default"})


def method_of_text(i: Interpreter, base: FormedText, name: str) -> NativeHandler:
    """A method of a text that is formed later. Raises `Unsupported` where the text has to be known."""
    if name not in _METHODS:
        raise Unsupported(f"the attribute {name} of a str")
    function = getattr(str, name)

    def call(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        made = formed(i, function, (base, *args), kwargs)
        if made is None:
            raise Unsupported(f"the method {name} of a str")
        return made

    return NativeHandler(call)


def by_template(i: Interpreter, template: str, args: Args, kwargs: Kwargs) -> Any:
    """`template.format(*args, **kwargs)` as an f-string with the same fields; None where one is irregular, so that Python is
    to say what is wrong with it."""
    given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    try:
        fields = [*string.Formatter().parse(template)]
    except ValueError:
        return None
    firsts = [name.split(".")[0] for _, name, _, _ in fields if name is not None]
    counter = None if any(first.isdecimal() for first in firsts) else itertools.count()
    parts: list[Any] = []
    for literal, name, spec, conversion in fields:
        parts.append(literal)
        if name is None:
            continue
        first, *attributes = name.split(".")
        key: Any = int(first) if first.isdecimal() else first or (counter and next(counter))
        regular = "[" not in name and "{" not in (spec or "") and (conversion or "s") in _CONVERSIONS
        if key not in given or not regular or not all(attributes):
            return None
        value = given[key]
        for attribute in attributes:
            value = i.attribute_now(value, attribute)
        if conversion:
            value = text_of(i, value, _CONVERSIONS[conversion])
        parts.append(text_of(i, value, "format", spec or "", later=type(value) is Symbol))  # if another part is
    return joined(i, parts)


#: The conversions of `%` and of `format` that write an object as its class says.
_CONVERSIONS = {"s": "str", "r": "repr"}


def _later(function: Callable[..., Any], late: Callable[..., Any]) -> Callable[..., Any]:
    """The handler of a function that `late` has an answer for where it is to be called after the graph."""
    otherwise = native_functions.HANDLERS.get(function) or numpy_functions.HANDLERS[function]

    def handler(i: Interpreter, *args: Any, **kwargs: Any) -> Any:
        made = late(i, function, args, kwargs)
        return otherwise(i, *args, **kwargs) if made is None else made

    return handler


HANDLERS: dict[Any, Callable[..., Any]] = {
    **{function: _later(function, _of_list) for function in _OF_LISTS},
    **{function: _later(function, _rounded) for function in (numpy.round, numpy.around)},
    **{function: _later(function, formed) for function in (json.dumps, os.path.join)},
}
