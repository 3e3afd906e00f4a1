"""Operators on tensors some of whose sizes are other ones in each call, such as a cache that grows with every token.

Such a size is a symbol, and an operator on such a tensor is a call in the graph, between the kernels. What it returns is
worked out three times, with all of these sizes a few larger: a size that stays is a number, one that grows with them a
formula, and anything else ends the graph. That is a guess from three samples, so the graph looks at those sizes that
matter when it runs, of what kernels read and of what the program asks, and leaves the call to Python where they are others.

Of what shares memory with such a tensor, this much is known: what has a view of dynamic sizes is not changed in place, a
view of what kernels compute is not handed out, and the graph looks whether an input of dynamic sizes shares memory with
one that it changes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.dynamic import of_sizes
from ...ir.sharing import base_of
from ...ir.source import Source
from ...ir.values import DynamicMeta, TensorMeta, stride_in_order
from ..inference.metadata import result_of
from ..inference.mutation import IN_PLACE_OF, giving_another, is_in_place, name_of
from ..inference.results import OperatorFailed, Result, SameTensor, View, map_structure, meta_in, tensors_in
from ..interpreter import Args, Interpreter, Kwargs
from ..symbolic import TENSOR_TYPES, DynamicSize, DynamicTensor, Symbol, TensorProxy, mapped, tensors_among

_LEAVES = (TensorMeta, View, SameTensor)

#: By how much the sizes are larger for which a result is worked out.
_LARGER = (0, 3, 10)


def dynamic_in(arguments: Any) -> bool:
    """Whether a tensor of dynamic sizes is among the arguments of an operator."""
    return any(type(leaf) is DynamicTensor for leaf in _leaves(arguments))


def sizes_in(i: Interpreter, arguments: Any) -> bool:
    """Whether a size that is a symbol is among them."""
    return any(i.outside.is_dynamic_size(leaf) for leaf in _leaves(arguments))


def _leaves(arguments: Any) -> Iterator[Any]:
    found: list[Any] = []
    mapped(found.append, arguments)
    return iter(found)


def call(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """A call of an operator of which some operands are tensors of dynamic sizes, or such sizes."""
    name, function = name_of(target), getattr(torch.Tensor, target) if kind == "call_method" else target
    graph = i.graph
    if graph.nested or graph.autocast.is_active or i.outside.function_classes:
        raise Unsupported(f"{name} of a tensor of dynamic sizes")
    if kwargs.get("out") is not None or function is operator.setitem:
        raise Unsupported(f"{name} in place with a tensor of dynamic sizes")
    if is_in_place(function) or function in IN_PLACE_OF:
        return _in_place(i, kind, target, args, kwargs)
    if any(t.meta.requires_grad for t in tensors_among([args, kwargs])) and graph.keeps_history:
        raise Unsupported(f"gradients of {name} of a tensor of dynamic sizes")
    of_call = _Operands(i, args, kwargs)
    results = [of_call.result(function, 0), *[of_call.larger_result(function, larger) for larger in _LARGER[1:]]]
    if any(r.written or r.changed for r in results):
        raise Unsupported(f"{name} in place with a tensor of dynamic sizes")
    structures = [r.structure for r in results]
    graph.operators += 1
    made_on = [meta_in(leaf, of_call.stand_ins[0]).device for leaf in tensors_in(structures[0])]
    meta = DynamicMeta(made_on[0] if made_on else torch.device("cpu"))
    if isinstance(structures[0], _LEAVES):
        node = graph.dynamic_call(kind, target, args, kwargs, meta)
        return of_call.wrapped(node, structures)
    if not isinstance(structures[0], (list, tuple)) or len({len(s) for s in structures}) > 1:
        raise Unsupported(f"{name} of a tensor of dynamic sizes")
    node = graph.dynamic_call(kind, target, args, kwargs, meta)
    made = []
    for k, elements in enumerate(zip(*structures, strict=True)):
        element = graph.dynamic_call("call_function", operator.getitem, (node, k), {}, meta)
        made.append(of_call.wrapped(element, list(elements)))
    return map_structure(lambda _, k: made[k], structures[0])


def _in_place(i: Interpreter, kind: str, target: Any, args: Args, kwargs: Kwargs) -> Any:
    """An operator that changes its first operand. What is new, and of which nobody has a view, may as well be another tensor
    from here on."""
    changed, name = args[0] if args else None, name_of(target)
    another = giving_another(kind, target)
    known = another != target and (kind == "call_function" or hasattr(torch.Tensor, another))
    if not known or type(changed) is not DynamicTensor or changed.source is not None or changed.shared:
        raise Unsupported(f"{name} in place with a tensor of dynamic sizes")
    made = call(i, kind, another, args, kwargs)
    same = type(made) is DynamicTensor and made.meta.dtype == changed.meta.dtype and made.meta.shape == changed.meta.shape
    if not same or made.shared:
        raise Unsupported(f"{name} in place with a tensor of dynamic sizes")
    changed.node, changed.sizes, changed.looked_at = made.node, made.sizes, False
    return changed


class _Operands:
    """The operands of one call."""

    def __init__(self, i: Interpreter, args: Args, kwargs: Kwargs) -> None:
        self.i = i
        self.args, self.kwargs = args, kwargs
        leaves = [*_leaves([args, kwargs])]
        self.tensors = [leaf for leaf in leaves if type(leaf) in (TensorProxy, DynamicTensor)]
        if any(type(t) is TensorProxy and t.cls not in TENSOR_TYPES for t in self.tensors):
            raise Unsupported("a subclass of torch.Tensor beside a tensor of dynamic sizes")
        #: Of each result that was worked out.
        self.stand_ins: list[list[TensorProxy]] = []
        sizes = [s for t in self.tensors if type(t) is DynamicTensor for s in t.sizes]
        self.symbols = [s for s in (*sizes, *leaves) if i.outside.is_dynamic_size(s)]

    def result(self, function: Callable[..., Any], larger: int) -> Result:
        """What the call gives where all dynamic sizes are so much larger."""
        stand_ins: dict[int, Any] = {}

        def at(value: Any) -> Any:
            if type(value) is DynamicTensor:
                meta = _meta_at(self.i, value, larger)
                return stand_ins.setdefault(id(value), TensorProxy(meta, value.node))
            return number_at(self.i, value, larger) if self.i.outside.is_dynamic_size(value) else value

        args, kwargs = mapped(at, self.args), mapped(at, self.kwargs)
        tensors = [*tensors_among([args, kwargs])]
        self.stand_ins.append(tensors)
        return result_of(function, args, kwargs, tensors, False)

    def larger_result(self, function: Callable[..., Any], larger: int) -> Result:
        """The same, for sizes that the call has not got."""
        try:
            return self.result(function, larger)
        except OperatorFailed as error:
            raise Unsupported(f"{name_of(function)} of sizes that do not grow together: {error}") from error

    def wrapped(self, node: torch.fx.Node, structures: list[Any]) -> Any:
        """What the program gets for a result of the node."""
        leaves = [meta_in(s, self.stand_ins[k]) if isinstance(s, _LEAVES) else s for k, s in enumerate(structures)]
        if not all(type(leaf) is TensorMeta for leaf in leaves) or len({leaf.ndim for leaf in leaves}) > 1:
            raise Unsupported("a result of another kind of an operator on a tensor of dynamic sizes")
        sizes = tuple([self._size(values) for values in zip(*(leaf.shape for leaf in leaves), strict=True)])
        base = self.tensors[structures[0].index] if isinstance(structures[0], (View, SameTensor)) else None
        fixed = base is None and all(type(size) is int for size in sizes)
        if fixed:
            meta = replace(leaves[0], requires_grad=False)
            checked = self.i.graph.dynamic_call("call_function", of_sizes, (node, sizes), {}, meta)
            proxy = TensorProxy(meta, checked)
            self.i.graph.history.note_tensor(checked, proxy)
            return proxy
        made = DynamicTensor(replace(leaves[0], requires_grad=False), sizes, node, None)
        if base is not None:
            made.shared = True
            if type(base) is DynamicTensor:
                base.shared, made.shares = True, base.shares
            else:
                base_node = base_of(self.i.graph.node_of(base))
                self.i.graph.seen_dynamically.add(base_node)
                made.shares = base_node.op != "placeholder" or base_node.name in self.i.graph.mutated
        return made

    def _size(self, values: tuple[int, ...]) -> Any:
        """A size of a result: a number, or a formula of the operands' dynamic sizes."""
        first, second, third = values
        if first == second == third:
            return first
        for symbol in self.symbols:
            if values == tuple([number_at(self.i, symbol, larger) for larger in _LARGER]):
                return symbol
        slope, rest = divmod(second - first, _LARGER[1])
        if rest or third - first != slope * _LARGER[2]:
            raise Unsupported("a size that is no simple formula of dynamic sizes")
        alike = [s for s in self.symbols if number_at(self.i, s, 1) == s.hint + 1]
        if not alike:
            raise Unsupported("a size that is no simple formula of dynamic sizes")
        graph = self.i.graph
        made = alike[0] if slope == 1 else graph.number(operator.mul, alike[0], slope)
        more = first - made.hint
        return made if more == 0 else graph.number(operator.add, made, more)


def sizes_of(i: Interpreter, tensor: DynamicTensor) -> tuple[Any, ...]:
    """The sizes, which are looked at when the graph runs where capture worked them out."""
    if tensor.source is None and not tensor.looked_at:
        meta = tensor.node.meta["val"]
        tensor.node = i.graph.dynamic_call("call_function", of_sizes, (tensor.node, tensor.sizes), {}, meta)
        tensor.looked_at = True
    return tensor.sizes


def number_at(i: Interpreter, symbol: Any, larger: int) -> Any:
    """A number, where all dynamic sizes are so much larger."""
    if type(symbol) is not Symbol or symbol.from_tensor:
        return symbol
    if isinstance(symbol.expr, Source):
        return symbol.hint + larger if symbol.expr in i.outside.dynamic_sizes else symbol.hint
    if symbol.operation is None:
        raise Unsupported("a number without a path to it")
    function, operands = symbol.operation
    return function(*[number_at(i, operand, larger) for operand in operands])


def _meta_at(i: Interpreter, tensor: DynamicTensor, larger: int) -> TensorMeta:
    meta = tensor.meta
    if not larger:
        return meta
    shape = tuple([number_at(i, size, larger) for size in tensor.sizes])
    order = sorted(range(meta.ndim), key=lambda k: -meta.stride[k])
    stride = stride_in_order(shape, order)
    stride = tuple([0 if was == 0 else step for was, step in zip(meta.stride, stride, strict=True)])
    return TensorMeta(meta.dtype, shape, stride, meta.device)


def call_method(i: Interpreter, tensor: DynamicTensor, name: str, args: Args, kwargs: Kwargs) -> Any:
    """What a method answers without a call: metadata."""
    if name in _ANSWERS and not (args or kwargs):
        return _ANSWERS[name](i, tensor)
    if name == "size" and len(args) == 1 and not kwargs:
        return sizes_of(i, tensor)[i.outside.concrete(args[0])]
    return NotImplemented


def _numel(i: Interpreter, tensor: DynamicTensor) -> Any:
    number: Any = 1
    for size in sizes_of(i, tensor):
        symbolic = type(number) is Symbol or type(size) is Symbol
        number = i.graph.number(operator.mul, number, size) if symbolic else number * size
    return number


_ANSWERS: dict[str, Callable[[Interpreter, DynamicTensor], Any]] = {
    "size": lambda i, t: DynamicSize(sizes_of(i, t)), "__len__": lambda i, t: sizes_of(i, t)[0],
    **dict.fromkeys(("dim", "ndimension"), lambda i, t: t.meta.ndim), **dict.fromkeys(("numel", "nelement"), _numel),
    "element_size": lambda i, t: t.meta.dtype.itemsize,
    "is_floating_point": lambda i, t: t.meta.dtype.is_floating_point, "is_complex": lambda i, t: t.meta.dtype.is_complex,
}  # fmt: skip
