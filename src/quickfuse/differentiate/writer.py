"""Writing the functional graph of ATen operators: nodes for operators, and the nodes of what traced tensors hold."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.arguments import map_leaves
from ..ir.gradients import Step
from ..ir.nodes import new_node
from ..ir.values import ObjectMeta, TensorMeta
from .layouts import Out, Spec
from .shapes import spec_of
from .traced import Memory, TracedTensor, make_traced

aten = torch.ops.aten

#: View operators that show the same elements: they need no node.
SAME_ELEMENTS = frozenset({aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default})

#: Views whose elements eager conjugates or negates when it reads them -> what computes the elements.
LAZY = {aten._conj.default: aten._conj_physical.default, aten._neg_view.default: aten.neg.default}

#: Constants with more elements stay with Python.
_LARGEST_CONSTANT = 64


class Writer:
    """Writes into `graph`. `trace` is noted on the nodes; `number_node` finds the node of a number that is an input."""

    def __init__(self, graph: Graph, number_node: Callable[[Any], Node | None]) -> None:
        super().__init__()
        self.graph = graph
        self.trace: Any = ()
        self.in_backward = False
        #: The nodes of generators of random numbers that are inputs, by the addresses of the stand-ins for them: operators
        #: get other objects for these.
        self.generators: dict[int, Node] = {}
        self._number_node = number_node
        #: The nodes of gradients that are taken more than once, by what they compute; None: while others are recorded.
        self.taken: dict[tuple[Any, str], Node] | None = None
        self._elements: dict[tuple[Node, int], Node] = {}

    def node_of(self, tensor: TracedTensor) -> Node:
        """The node of what a tensor holds now."""
        memory = tensor.memory
        if tensor.seen != memory.version:
            node = memory.node
            for step in tensor.path:
                node = self._step(step, node)
            tensor.known, tensor.seen = node, memory.version
        return tensor.known

    def _step(self, step: Step, node: Node) -> Node:
        if step.function in SAME_ELEMENTS:
            return node
        whole = self.emit(LAZY.get(step.function, step.function), node, *step.args, **dict(step.kwargs))
        return whole if step.index is None else self._element(whole, step.index)

    def emit(self, function: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a node; operands are nodes. Its metadata is worked out."""
        return self._node(function, args, kwargs, spec_of(function, *map_leaves(_stand_in, (args, kwargs))))

    def copy_laid_out(self, node: Node, stride: tuple[int, ...]) -> Node:
        """A copy of what `node` computes, with these strides."""
        meta = node.meta["val"]
        return self._node(aten.clone.default, (node,), {}, Out(TensorMeta(meta.dtype, meta.shape, stride, meta.device), 0))

    def _node(self, function: Any, args: Any, kwargs: Any, spec: Spec) -> Node:
        if self.taken is None or torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
            return self._new_node(function, args, kwargs, spec)
        key = (function, repr((args, kwargs)))
        if key not in self.taken:
            self.taken[key] = self._new_node(function, args, kwargs, spec)
        return self.taken[key]

    def _new_node(self, function: Any, args: Any, kwargs: Any, spec: Spec) -> Node:
        node = new_node(self.graph, "call_function", function, args, kwargs)
        node.meta["val"] = _metas(spec)
        node.meta["trace"] = self.trace
        node.meta["backward"] = self.in_backward
        return node

    def _element(self, node: Node, index: int) -> Node:
        known = self._elements.get((node, index))
        if known is None:
            known = new_node(self.graph, "call_function", operator.getitem, (node, index))
            known.meta["val"] = node.meta["val"][index]
            known.meta["trace"] = node.meta["trace"]
            known.meta["backward"] = node.meta["backward"]
            self._elements[node, index] = known
        return known

    def _operand(self, value: Any) -> Any:
        """An argument as it stands in the graph."""
        kind = type(value)
        if kind is TracedTensor:
            return self.node_of(value)
        if kind is list or kind is tuple:
            return [self._operand(v) for v in value]
        if kind is float or kind is int:
            node = self._number_node(value)
            return value if node is None else node
        if isinstance(value, torch.Tensor):
            return self._constant(value)
        return self.generators[value._cdata] if kind is torch.Generator else value

    def _constant(self, value: torch.Tensor) -> Node:
        """A tensor that PyTorch or the program made of plain values."""
        if type(value) is not torch.Tensor or value.numel() > _LARGEST_CONSTANT:
            raise Unsupported("a tensor that is no input")
        if value.is_complex() and value.numel() != 1:
            raise Unsupported("complex numbers")
        meta = TensorMeta(value.dtype, tuple(value.shape), value.stride(), value.device)
        if not meta.is_contiguous:
            raise Unsupported("a tensor that is no input")
        options = {"dtype": value.dtype, "device": value.device}
        if value.numel() == 1:
            return self._node(aten.full.default, (list(value.shape), self._operand(value.item())), options, Out(meta, 0))
        return self._node(torch.tensor, (value.tolist(),), options, Out(meta, 0))


def _stand_in(operand: Any) -> Any:
    """An operand given as a node, as a traced tensor for `spec_of`."""
    meta = operand.meta["val"] if type(operand) is Node else None
    if isinstance(meta, ObjectMeta):
        return None
    return make_traced(meta, Memory(operand, meta), (), operand) if isinstance(meta, TensorMeta) else operand


def _metas(spec: Spec) -> Any:
    if type(spec) is Out:
        return spec.meta
    if isinstance(spec, (list, tuple)):
        return tuple([_metas(s) for s in spec])
    return spec
