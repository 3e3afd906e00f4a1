"""Tensors of the graph with sizes that are symbols."""

from __future__ import annotations

import operator
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.segment import Recipe
from ..effects import RecipeBook
from ..inference.mutation import IN_PLACE_OF
from ..interpreter import Interpreter
from ..objects.containers import concrete_key, tensor_index
from ..pytorch import dynamic_sizes, tensor_attributes
from ..pytorch import functions as torch_calls
from ..pytorch.torch_function import call_torch
from ..symbolic import DynamicSize, DynamicTensor, TensorProxy
from .kind import Args, Kind, Kwargs, Then

#: Attributes that guards and the captured call tell.
_KNOWN = frozenset("dtype device ndim requires_grad layout itemsize is_cpu is_cuda".split())


class DynamicTensorKind(Kind):
    """A `DynamicTensor`: what is asked of it becomes a call in the graph, or follows from its sizes."""

    asks_class = False
    rank = 5

    def attribute(self, i: Interpreter, base: DynamicTensor, name: str, then: Then) -> None:
        if name == "shape":
            then(DynamicSize(dynamic_sizes.sizes_of(i, base)))
        elif name in _KNOWN:
            then(tensor_attributes.FROM_META[name](base.meta))
        elif name == "__class__":
            then(torch.Tensor)
        elif name == "mT":
            then(call_torch(i, "call_method", "transpose", (base, -2, -1), {}))
        elif base.source is None and not hasattr(torch.Tensor, name):
            tensor_attributes.raise_lacking(i, base, torch.Tensor, name)
        elif callable(getattr(torch.Tensor, name, None)) and not name.startswith("__"):
            tensor_attributes.method(i, base, name, then)
        else:
            raise Unsupported(f"the attribute {name} of a tensor of dynamic sizes")

    def item(self, i: Interpreter, base: DynamicTensor, key: Any, then: Then) -> None:
        then(call_torch(i, "call_function", operator.getitem, (base, tensor_index(i, concrete_key(i, key))), {}))

    def length(self, i: Interpreter, value: DynamicTensor) -> Any:
        size = dynamic_sizes.call_method(i, value, "__len__", (), {})
        return i.outside.concrete(size)

    def unary(self, i: Interpreter, function: Any, value: DynamicTensor, then: Then) -> None:
        then(call_torch(i, "call_function", function, (value,), {}))

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        return torch_calls.call_tensor_method(i, value, function.__name__, args, kwargs)

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if type(left) not in (DynamicTensor, TensorProxy):  # nothing to change in place
            function = IN_PLACE_OF.get(function, function)
        then(torch_calls.tensor_operator(i, function, left, right))

    def rebuild(self, book: RecipeBook, value: DynamicTensor) -> Recipe:
        return book.output(value)
