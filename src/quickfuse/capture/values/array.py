"""Arrays of NumPy's: those that the captured code made of constants, and those from outside."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...errors import Unsupported
from ...ir.guard import NumberExpr
from ..interpreter import Interpreter
from ..objects.arrays import note_read
from ..objects.containers import as_index
from ..objects.native_functions import of_arrays
from ..outside.guarding import expression
from ..symbolic import ForeignArray, HeldArray, NativeHandler, Symbol, type_of
from ..symbolic.raising import SuspendedInside
from .kind import Kind, Then
from .outside import ForeignKind


class ArrayKind(Kind):
    """What is read of such an array is a constant. What would change it, or see its memory, ends the graph."""

    asks_class = False
    rank = 4  # of two of the same rank, the left one answers: neither knows the other

    def attribute(self, i: Interpreter, base: HeldArray, name: str, then: Then) -> None:
        of_rows = name == "tolist" and base.array.ndim != 1
        if base.shared or of_rows or name not in ("shape", "ndim", "size", "astype", "tolist"):
            raise Unsupported(f"the attribute {name} of an array of NumPy's")
        if name == "astype":
            then(NativeHandler(lambda i, dtype: HeldArray(i.native(base.array.astype, dtype), base.made_at)))
        elif name == "tolist":
            then(NativeHandler(lambda i: i.mark_created(base.array.tolist())))
        else:
            then(getattr(base.array, name))

    def iterate(self, i: Interpreter, value: HeldArray) -> Any:
        if value.shared or value.array.ndim != 1:
            raise Unsupported("iterating over the rows of an array of NumPy's")
        return iter(list(value.array))

    def length(self, i: Interpreter, value: HeldArray) -> int | None:
        return len(value.array) if value.array.ndim else None

    def item(self, i: Interpreter, base: HeldArray, key: Any, then: Then) -> None:
        key = i.outside.concrete(key)
        if base.shared or type(key) is not int or base.array.ndim != 1:
            raise Unsupported("a part of an array of NumPy's")
        then(i.native(np.ndarray.__getitem__, base.array, key))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if function not in _OPERATORS:
            raise Unsupported(f"{function.__name__} of an array of NumPy's")
        then(of_arrays(i, function, left, right))

    def rebuild(self, book: Any, value: HeldArray) -> Any:
        raise SuspendedInside(value.made_at, "an array of NumPy's that is made inside and outlives the graph")


class ForeignArrayKind(ForeignKind):
    """An array of NumPy's from outside: its items are numbers from outside, and guards hold nothing of what is in it."""

    def item(self, i: Interpreter, base: ForeignArray, key: Any, then: Then) -> None:
        index, expr = _index(i, key)
        value = i.native(np.ndarray.__getitem__, base.real, index)
        if type(value) is not np.ndarray and base.real.dtype.kind not in "fiub":
            raise Unsupported("an item of an array of other things than numbers")
        if type(value) is not np.ndarray:
            note_read(i, base)
        then(i.outside.wrap(value, base.source.item(i.outside.key_of_expr(expr) if isinstance(expr, NumberExpr) else expr)))

    def length(self, i: Interpreter, value: ForeignArray) -> int | None:
        shape = value.real.shape
        i.outside.guard("equal", value.source.attr("shape"), shape)
        return shape[0] if shape else None

    def attribute(self, i: Interpreter, base: ForeignArray, name: str, then: Then) -> None:
        if name in ("shape", "ndim", "size"):
            then(i.outside.wrap(getattr(base.real, name), base.source.attr(name)))
        else:
            super().attribute(i, base, name, then)


def _index(i: Interpreter, key: Any) -> tuple[Any, Any]:
    """An index into an array in the captured call, and as generated code writes it: a number, or an expression."""
    if type(key) is Symbol and key.kind is int and key.cls is int and not key.from_tensor:
        return key.hint, expression(key.expr)
    if type(key) is tuple:
        parts = [_index(i, k) for k in key]
        text = ", ".join(["{}"] * len(parts))
        return tuple([p for p, _ in parts]), NumberExpr(f"({text},)", tuple([expr for _, expr in parts]))
    if type(key) is slice:
        bounds = [(None, None) if bound is None else _index(i, bound) for bound in (key.start, key.stop, key.step)]
        return slice(*[b for b, _ in bounds]), NumberExpr("_slice({}, {}, {})", tuple([expr for _, expr in bounds]))
    plain = as_index(i, key)
    if type(plain) is not int:
        raise Unsupported(f"a {type_of(key).__name__} as an index of an array of NumPy's")
    return plain, plain


_OPERATORS = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.pow})
