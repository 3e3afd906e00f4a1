"""Numbers that compiled code receives or computes, and scalars of classes of the user's and of NumPy's."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.segment import Call, Computed, Recipe
from ...ir.source import Source
from ..class_attributes import python_method
from ..containers import as_index
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..raising import raise_in_program
from ..symbolic import ForeignScalar, Symbol, type_of
from .kind import Kind, Then
from .outside import OutsideKind


class NumberKind(Kind):
    """A `Symbol`: control flow that looks at it is a guard on the outcome."""

    asks_class = False

    def attribute(self, i: Interpreter, base: Symbol, name: str, then: Then) -> None:
        if name not in ("is_integer", "bit_length", "real", "__class__"):
            raise Unsupported(f"the attribute {name} of a number")
        then(getattr(i.outside.concrete(base), name))

    def iterate(self, i: Interpreter, value: Symbol) -> Any:
        raise_in_program(TypeError(f"'{value.kind.__name__}' object is not iterable"))

    def truth(self, i: Interpreter, value: Symbol) -> bool:
        return i.truth_in_tensor(value) if value.from_tensor else i.outside.truth(value)

    def key(self, i: Interpreter, value: Symbol) -> Any:
        return i.outside.concrete(value)

    def rebuild(self, book: RecipeBook, value: Symbol) -> Recipe:
        """By its path, by arithmetic on paths, or, if it comes out of a tensor, by `item()` on an output."""
        if not value.from_tensor:
            return book.existing(value.expr) if isinstance(value.expr, Source) else Computed(value.expr)  # type: ignore[arg-type]
        graph = book.i.graph
        if graph.mutated and not graph.contents.still_holds(value):  # the tensor may hold another number by now
            return book.output(value)
        if value.tensor is not None:
            return Call(torch.Tensor.item, [book.recipe(book.without_gradient(value.tensor))])
        assert value.operation is not None
        function, operands = value.operation
        return Call(function, [book.recipe(operand) for operand in operands])


class ScalarKind(OutsideKind):
    """A `ForeignScalar`: what its class leaves to the builtin one is done with the plain value."""

    def item(self, i: Interpreter, base: ForeignScalar, key: Any, then: Then) -> None:
        then(i.native(operator.getitem, i.outside.concrete(base), as_index(i, key)))

    def contains(self, i: Interpreter, container: ForeignScalar, element: Any) -> bool:
        return bool(i.native(operator.contains, i.outside.concrete(container), i.outside.concrete(element)))

    def iterate(self, i: Interpreter, value: ForeignScalar) -> Any:
        return i.iterator(i.outside.concrete(value))

    def length(self, i: Interpreter, value: ForeignScalar) -> int | None:
        return len(i.outside.concrete(value)) if value.cls in (str, bytes) else None

    def native_truth(self, i: Interpreter, value: ForeignScalar) -> bool:
        return i.truth(i.outside.number(value))

    def truth(self, i: Interpreter, value: ForeignScalar) -> bool:
        if value.cls in (str, bytes) and python_method(i, value, "__bool__") is None:
            return super().truth(i, value)
        return super().truth(i, value)

    def key(self, i: Interpreter, value: ForeignScalar) -> Any:
        if any(python_method(i, value, name) is not None for name in ("__hash__", "__eq__")):
            raise Unsupported(f"hashing a {type_of(value).__name__}")
        return i.outside.concrete(value)
