"""Bytes and arrays of Python's own from outside (`bytearray`, `memoryview`, `array.array`): each element that is read is a
number from outside. What changes one is left to Python."""

from __future__ import annotations

import array
from typing import Any

from ...errors import Unsupported
from ..interpreter import Interpreter
from ..symbolic import ForeignObject
from .changing_parts import index_expression


def has_numbers(value: ForeignObject) -> bool:
    """Whether an object is one of these, of numbers in one row."""
    real = value.real
    if type(real) is memoryview:
        try:
            return real.ndim == 1 and real.format in ("B", "b", "h", "i", "l", "q", "f", "d")
        except ValueError:  # it was released
            return False
    return type(real) is bytearray or (type(real) is array.array and real.typecode != "u")


def length(i: Interpreter, value: ForeignObject) -> int:
    """`len(value)`, held by a guard."""
    i.outside.guard("length", value.source, len(value.real))
    return len(value.real)


def element(i: Interpreter, value: ForeignObject, key: Any) -> Any:
    """`value[key]` of one element."""
    if i.graph.contents.has_written_inputs():  # which may have this memory
        raise Unsupported(f"an item of a {type(value.real).__name__} behind a change in place of a tensor")
    index, expr = index_expression(i, key)
    if type(index) is not int:
        raise Unsupported(f"a part of a {type(value.real).__name__}")
    found = i.read(value.real.__getitem__, index)
    return i.outside.wrap(found, value.source.item(i.outside.key_of_expr(expr) if expr is not index else expr))


def elements(i: Interpreter, value: ForeignObject) -> list[Any]:
    """All elements in order."""
    return [element(i, value, k) for k in range(length(i, value))]
