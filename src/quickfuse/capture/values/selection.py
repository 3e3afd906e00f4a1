"""What a mask selects of a tensor."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ...ir.segment import Call, Recipe
from ..effects import RecipeBook
from ..interpreter import Interpreter
from ..pytorch import selections, tensor_attributes
from ..symbolic import Selection
from .kind import Args, Kind, Kwargs, Then


class SelectionKind(Kind):
    """A `Selection`: operators on elements are those of all places; all else needs the elements."""

    asks_class = False
    rank = 6

    def attribute(self, i: Interpreter, base: Selection, name: str, then: Then) -> None:
        if name in ("dtype", "device"):
            then(getattr(base.values.meta, name))
        elif selections.is_of_elements(name) and callable(getattr(torch.Tensor, name, None)):
            tensor_attributes.method(i, base, name, then)
        else:
            selections.refuse(base)

    def _refuse(self, i: Interpreter, value: Selection, *operands: Any) -> Any:
        selections.refuse(value)

    item = set_item = iterate = length = truth = _refuse

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        return selections.called(i, "call_method", None, function.__name__, (value, *args), kwargs)

    def unary(self, i: Interpreter, function: Any, value: Selection, then: Then) -> None:
        then(selections.called(i, "call_function", function, function.__name__, (value,), {}))

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        then(selections.called(i, "call_function", function, function.__name__, (left, right), {}))

    def rebuild(self, book: RecipeBook, value: Selection) -> Recipe:
        selections.check_unchanged(book.i, value)
        return Call(operator.getitem, [book.recipe(value.values), book.recipe(value.mask)])
