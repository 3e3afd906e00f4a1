"""Arrays of NumPy's that the captured code made of constants."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...errors import Unsupported
from ..graph.modes import SuspendedInside
from ..interpreter import Interpreter
from ..objects.native_functions import of_arrays
from ..symbolic import HeldArray, NativeHandler
from .kind import Kind, Then


class ArrayKind(Kind):
    """What is read of such an array is a constant. What would change it, or see its memory, ends the graph."""

    asks_class = False
    rank = 4  # of two of the same rank, the left one answers: neither knows the other

    def attribute(self, i: Interpreter, base: HeldArray, name: str, then: Then) -> None:
        if base.shared or name not in ("shape", "ndim", "size", "astype", "tolist"):
            raise Unsupported(f"the attribute {name} of an array of NumPy's")
        if name == "astype":
            then(NativeHandler(lambda i, dtype: HeldArray(i.native(base.array.astype, dtype), base.made_at)))
        elif name == "tolist":
            then(NativeHandler(lambda i: i.mark_created(base.array.tolist()) if base.array.ndim == 1 else _refuse()))
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


_OPERATORS = frozenset({operator.add, operator.sub, operator.mul, operator.truediv, operator.pow})


def _refuse() -> Any:
    raise Unsupported("the rows of an array of NumPy's as lists")
