"""Functions of NumPy's on arrays and lists of numbers from outside, which generated code calls before the graph runs.

What they give is from outside as well, with the expression of the call as its path: a number is a symbol, an array may be
read, become a tensor or be returned.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import numpy

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ...ir.reading import HEAP_TYPE, array_of
from ...ir.source import Source
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import ForeignArray, ForeignScalar, HeldArray, ShadowContainer, Symbol, is_constant, is_numpy
from .arrays import note_read

#: The types of what generated code writes down as it is.
_WRITTEN = (int, float, bool, str, type(None))
#: What NumPy makes an array of one axis of, where there are numbers in it.
_SEQUENCES = (list, collections.deque)
#: Elements of arrays: whole numbers, floats and bools.
_NUMBERS = "fiub"


def is_from_outside(i: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether there is an array from outside among the arguments, or a list or deque with numbers that may change."""
    return any(type(a) is ForeignArray or _changes(i, a) for a in (*args, *kwargs.values()))


def _changes(i: Interpreter, value: Any) -> bool:
    elements = _elements(value)
    numbers = (float, int, bool, Symbol)
    if not elements or not all(type(e) in numbers for e in elements) or any(_is_late(e) for e in elements):
        return False
    return any(type(e) is float or (type(e) is Symbol and e.kind is float) for e in elements) and (
        type(value) is ShadowContainer or any(type(e) is Symbol for e in elements)
    )


def _is_late(element: Any) -> bool:
    return type(element) is Symbol and (element.from_tensor or element.cls is not element.kind)


def _elements(value: Any) -> Any:
    """What is in a list or tuple, without a look that needs a guard."""
    if type(value) is ShadowContainer:
        plain = value.items is None and type(value.real) in _SEQUENCES
        return [*value.real, *value.added] if plain else value.items if type(value.items) in _SEQUENCES else ()
    return value if type(value) in (*_SEQUENCES, tuple) else ()


def called_before(i: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a function without side effects gives, in each call before the graph runs. Where NumPy warns, the program does it
    itself."""
    if function is numpy.cross:  # which is deprecated for some shapes
        raise Unsupported("numpy.cross of arrays from outside")
    reals, exprs = zip(*[_operand(i, a) for a in args], strict=True)
    named = {name: _operand(i, value) for name, value in kwargs.items()}
    if "ddof" in kwargs:  # of so many elements or fewer NumPy warns
        for array in (a for a in args if type(a) is ForeignArray):
            i.outside.guard("equal", array.source.attr("shape"), array.real.shape)
    given = {name: real for name, (real, _) in named.items()}
    try:  # first on what cannot be written to
        array_of(function, *map(_read_only, reals), **{name: _read_only(real) for name, real in given.items()})
        found = array_of(function, *reals, **given)
    except FloatingPointError:
        raise Unsupported(f"numpy.{function.__name__} of numbers for which it may warn") from None
    except Exception as error:
        raise Unsupported(f"numpy.{function.__name__} that raises {type(error).__name__}") from None
    if type(found) is numpy.ndarray and found.dtype.kind not in _NUMBERS:
        raise Unsupported(f"an array of {found.dtype} from numpy.{function.__name__}")
    if not isinstance(found, (numpy.ndarray, numpy.number, numpy.bool_, float, int, list)):
        raise Unsupported(f"numpy.{function.__name__} that gives a {type(found).__name__}")
    holes = ", ".join(["{}"] * len(exprs) + [f"{name}={{}}" for name in named])
    operands = (*exprs, *(expr for _, expr in named.values()))
    expr = i.outside.key_of_expr(NumberExpr(f"_array_of({{}}, {holes})", (_constant(i, function), *operands)))
    base = next(expr.sources())
    return i.outside.wrap(found, base.computed(expr))


def _operand(i: Interpreter, value: Any) -> tuple[Any, Any]:
    """An argument in the captured call, and as generated code writes it."""
    kind = type(value)
    if kind is ForeignArray:
        if type(value.real) is not numpy.ndarray or value.real.dtype.kind not in _NUMBERS:
            raise Unsupported("arithmetic of an array of other things than numbers")
        note_read(i, value)
        i.outside.guard("equal", value.source.attr("dtype"), value.real.dtype)
        return value.real, value.source
    if kind is HeldArray:
        if value.memory.shared:
            raise Unsupported("an array of NumPy's whose memory a tensor has, too")
        return value.array, _constant(i, value.array)
    if kind is Symbol and not value.from_tensor:
        return value.hint, value.expr
    if kind is ForeignScalar and is_numpy(value.real):
        return value.real, value.source
    if kind is ShadowContainer and value.items is None:
        parts = [_operand(i, element) for element in value.added]
        i.outside.guard("type", value.source, type(value.real))
        holes = ", ".join(["*_only_numbers({})", *["{}"] * len(parts)])
        return [*value.real, *(real for real, _ in parts)], NumberExpr(f"[{holes}]", (value.source, *(e for _, e in parts)))
    if kind in (*_SEQUENCES, tuple) or kind is ShadowContainer:
        parts = [_operand(i, element) for element in _elements(value)]
        holes = ", ".join(["{}"] * len(parts))
        made = NumberExpr(f"({holes},)" if kind is tuple and parts else f"[{holes}]", tuple(e for _, e in parts))
        return (tuple if kind is tuple and parts else list)(real for real, _ in parts), made
    if kind is slice:
        bounds = [_operand(i, bound) for bound in (value.start, value.stop, value.step)]
        return slice(*[real for real, _ in bounds]), NumberExpr("_slice({}, {}, {})", tuple(e for _, e in bounds))
    if kind in _WRITTEN:
        return value, value
    if is_constant(value) or isinstance(value, numpy.dtype) or (isinstance(value, type) and not value.__flags__ & HEAP_TYPE):
        return value, _constant(i, value)
    raise Unsupported(f"a function of NumPy's of a {kind.__name__}")


def _read_only(value: Any) -> Any:
    if type(value) is not numpy.ndarray:
        return value
    view = value.view()
    view.flags.writeable = False
    return view


def _constant(i: Interpreter, value: Any) -> Source:
    label = getattr(value, "__name__", None) or repr(value)
    return i.outside.roots.constant(label, value)


def rows(i: Interpreter, array: ForeignArray) -> list[Any]:
    """What iterating over an array gives."""
    count = i.kind_of(array).length(i, array)
    if count is None:
        raise Unsupported("iterating over an array of NumPy's without an axis")
    return [i.now(i.item, array, k) for k in range(count)]


def picked(i: Interpreter, array: ForeignArray, key: Any) -> Any:
    """`array[key]` with other arrays as indices."""
    return called_before(i, operator.getitem, (array, key), {})
