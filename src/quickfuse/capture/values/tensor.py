"""Tensors of the graph, those with sizes that are symbols, and what a mask selects of one."""

from __future__ import annotations

import operator
from typing import Any

import numpy
import torch

from ...errors import Unsupported
from ...ir.segment import Call, Recipe
from ...ir.values import as_parameter
from ..effects import RecipeBook
from ..inference.mutation import IN_PLACE_OF
from ..interpreter import Interpreter
from ..objects.changing_parts import changing_part
from ..objects.class_attributes import python_method
from ..objects.containers import tensor_index
from ..objects.keys import concrete_key
from ..pytorch import dynamic_sizes, numbered_parts, selections, tensor_attributes
from ..pytorch.operators import call_tensor_method, tensor_operator
from ..pytorch.torch_function import call_torch
from ..symbolic import DynamicSize, DynamicTensor, Selection, Symbol, TensorProxy, is_numpy, real_of, type_of
from ..symbolic.raising import TensorOfOtherSizes, raise_in_program
from .kind import Args, Kind, Kwargs, Then, itself


class TensorKind(Kind):
    """A `TensorProxy`: what is asked of it becomes a node of the graph, or follows from its metadata."""

    asks_class = False
    rank = 4

    def attribute(self, i: Interpreter, base: TensorProxy, name: str, then: Then) -> None:
        tensor_attributes.load(i, base, name, then)

    def set_attribute(self, i: Interpreter, base: TensorProxy, name: str, value: Any) -> None:
        tensor_attributes.store(i, base, name, value)

    def delete_attribute(self, i: Interpreter, base: TensorProxy, name: str) -> None:
        tensor_attributes.erase(i, base, name)

    def item(self, i: Interpreter, base: TensorProxy, key: Any, then: Then) -> None:
        if (part := changing_part(i, base, key)) is not None:
            then(part)
            return
        key = numbered_parts.with_changing_numbers(i, base, key)
        operands = (base, tensor_index(i, concrete_key(i, key)))
        then(call_torch(i, "call_function", operator.getitem, operands, {}))

    def set_item(self, i: Interpreter, base: TensorProxy, key: Any, value: Any) -> None:
        key = concrete_key(i, numbered_parts.with_changing_numbers(i, base, key))
        if type(value) is Selection:
            selections.assigned(i, base, key, value)
            return
        if isinstance(real_of(value), numpy.float64):  # a float, for PyTorch as well
            value = i.outside.number(value)
        of_numpy = is_numpy(real_of(value)) or (type(value) is Symbol and value.cls not in (value.kind, numpy.float64))
        if of_numpy or python_method(i, value, "__index__") is not None:  # which count for indices only
            raise Unsupported(f"a {type_of(value).__name__} as an element of a tensor")
        operands = (base, tensor_index(i, key), tensor_index(i, value))
        call_torch(i, "call_function", operator.setitem, operands, {})

    def iterate(self, i: Interpreter, value: TensorProxy) -> Any:
        i.graph.check_modes()
        if value.meta.ndim == 0:
            raise_in_program(TypeError("iteration over a 0-d tensor"))
        return iter(i.graph.call("call_method", "unbind", (value, 0), {}))

    def length(self, i: Interpreter, value: TensorProxy) -> int:
        i.graph.check_modes()
        if not value.meta.shape:
            raise_in_program(TypeError("len() of a 0-d tensor"))
        return int(value.meta.shape[0])

    def truth(self, i: Interpreter, value: TensorProxy) -> bool:
        i.graph.check_modes()
        return i.truth_in_tensor(value)

    def unary(self, i: Interpreter, function: Any, value: TensorProxy | DynamicTensor, then: Then) -> None:
        then(call_torch(i, "call_function", function, (value,), {}))

    def method(self, i: Interpreter, function: Any, value: Any, args: Args, kwargs: Kwargs) -> Any:
        return call_tensor_method(i, value, function.__name__, args, kwargs)

    def backwards(self, i: Interpreter, value: TensorProxy) -> Any:
        return iter(list(self.iterate(i, value))[::-1])

    def binary(self, i: Interpreter, function: Any, left: Any, right: Any, then: Then) -> None:
        if type(left) not in (TensorProxy, DynamicTensor):  # nothing to change in place
            function = IN_PLACE_OF.get(function, function)
        then(tensor_operator(i, function, left, right))

    key = itself

    def rebuild(self, book: RecipeBook, value: TensorProxy) -> Recipe:
        made = book.output(value)
        return Call(as_parameter, [made]) if value.cls is torch.nn.Parameter and value.source is None else made


#: Attributes that guards and the captured call tell.
_KNOWN = frozenset("dtype device ndim requires_grad layout itemsize is_cpu is_cuda".split())


class DynamicTensorKind(TensorKind):
    """A `DynamicTensor`: what is asked of it becomes a call in the graph, or follows from its sizes."""

    rank = 5
    set_attribute, delete_attribute, set_item = Kind.set_attribute, Kind.delete_attribute, Kind.set_item
    iterate, truth, backwards, key = Kind.iterate, Kind.truth, Kind.backwards, Kind.key

    def attribute(self, i: Interpreter, base: DynamicTensor, name: str, then: Then) -> None:
        if not callable(getattr(torch.Tensor, name, callable)):
            i.graph.check_modes()
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

    def rebuild(self, book: RecipeBook, value: DynamicTensor) -> Recipe:
        return book.output(value)

    def length(self, i: Interpreter, value: DynamicTensor) -> Any:
        i.graph.check_modes()
        size = dynamic_sizes.call_method(i, value, "__len__", (), {})
        return i.outside.concrete(size)


class ForeignTensorKind(Kind):
    """A `ForeignTensor`, of which nothing is known but its class."""

    asks_class = False
    rank = 7

    def _refuse(self, i: Interpreter, *operands: Any) -> Any:
        raise TensorOfOtherSizes

    attribute = set_attribute = delete_attribute = item = set_item = delete_item = contains = iterate = length = _refuse
    truth = binary = unary = method = backwards = call = key = _refuse


class SelectionKind(Kind):
    """A `Selection`: operators on elements are those of all places; all else needs the elements."""

    asks_class = False
    rank = 6

    def attribute(self, i: Interpreter, base: Selection, name: str, then: Then) -> None:
        if not callable(getattr(torch.Tensor, name, callable)):
            i.graph.check_modes()
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
