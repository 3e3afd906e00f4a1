"""Recording: PyTorch operators on traced tensors become nodes of a functional graph of ATen operators.

A dispatch mode sees each operator below autograd, in forward and in backward. What changes a tensor in place is recorded
as the operator that returns the new contents.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Unsupported
from ..ir.gradients import Step
from ..ir.values import TensorMeta
from .inverses import write_through
from .layouts import Out, Spec
from .lists import is_on_lists, members
from .shapes import is_view, map_spec, spec_of, traced_in
from .traced import Memory, TracedTensor, make_traced

aten = torch.ops.aten

#: View operators that show the same elements: they need no node.
_SAME_ELEMENTS = frozenset({aten.detach.default, aten.alias.default, aten.lift.default, aten.lift_fresh.default})

#: Operators in place whose functional form is not the overload of their name without the underscore.
_FUNCTIONAL = {
    "aten::bernoulli_.float": aten.bernoulli.p,
    "aten::normal_": aten.normal_functional.default,
    "aten::copy_": aten.copy.default,
}

#: Constants with more elements stay with Python.
_LARGEST_CONSTANT = 64


class Recorder(TorchDispatchMode):
    """Records into `graph`. `trace` is noted on the nodes; `number_nodes` finds the node of a number that is an input."""

    def __init__(self, graph: Graph, number_node: Callable[[Any], Node | None]) -> None:
        super().__init__()
        self.graph = graph
        self.trace: Any = ()
        self.in_backward = False
        self.draws = False
        self._number_node = number_node
        self._elements: dict[tuple[Node, int], Node] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make each call import PyTorch's compiler

    # tensors ----------------------------------------------------------------------------------------------------

    def input(self, node: Node, meta: TensorMeta, position: int | None, requires_grad: bool) -> TracedTensor:
        """A traced tensor for a placeholder."""
        plain = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        return make_traced(plain, Memory(node, plain, position), (), node, 0, requires_grad)

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
        if step.function in _SAME_ELEMENTS:
            return node
        whole = self.emit(step.function, node, *step.args, **dict(step.kwargs))
        return whole if step.index is None else self._element(whole, step.index)

    # nodes ------------------------------------------------------------------------------------------------------

    def emit(self, function: Any, *args: Any, **kwargs: Any) -> Node:
        """Add a node; operands are nodes. Its metadata is worked out."""
        return self._node(function, args, kwargs, spec_of(function, _stand_ins(args), _stand_ins(kwargs)))

    def _node(self, function: Any, args: Any, kwargs: Any, spec: Spec) -> Node:
        node = self.graph.create_node("call_function", function, args, kwargs)
        node.meta["val"] = _metas(spec)
        node.meta["trace"] = self.trace
        node.meta["backward"] = self.in_backward
        return node

    def _element(self, node: Node, index: int) -> Node:
        known = self._elements.get((node, index))
        if known is None:
            known = self.graph.create_node("call_function", operator.getitem, (node, index), {})
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
        if isinstance(value, torch.Generator):
            raise Unsupported("a random generator of the program's own")
        return value

    def _constant(self, value: torch.Tensor) -> Node:
        """A tensor that PyTorch or the program made of plain values."""
        if type(value) is not torch.Tensor or value.numel() > _LARGEST_CONSTANT or value.device.type != "cpu":
            raise Unsupported("a tensor that is no input")
        if value.is_complex():
            raise Unsupported("complex numbers")
        meta = TensorMeta(value.dtype, tuple(value.shape), value.stride(), value.device)
        if not meta.is_contiguous:
            raise Unsupported("a tensor that is no input")
        options = {"dtype": value.dtype, "device": value.device}
        if value.numel() == 1:
            return self._node(aten.full.default, (list(value.shape), value.item()), options, Out(meta, 0))
        return self._node(torch.tensor, (value.tolist(),), options, Out(meta, 0))

    # the mode ---------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _SAME_ELEMENTS:
            return self._same(function, args[0])
        if is_on_lists(function):
            return self._on_lists(function, args, kwargs)
        schema = function._schema
        if schema.is_mutable:
            return self._in_place(function, args, kwargs)
        if function is aten.native_batch_norm.default and args[5] and args[3] is not None:
            return self._batch_norm(args)
        if is_view(function):
            return self._view(function, args, kwargs)
        if function is aten.native_batch_norm_backward.default and args[7]:  # it has no use for running statistics then
            args = (*args[:3], None, None, *args[5:])
        if torch.Tag.nondeterministic_seeded in function.tags and not _is_deterministic(function, args):
            self._note_draw()
        kwargs = {k: v for k, v in kwargs.items() if v is not None and not (k == "pin_memory" and v is False)}
        spec = spec_of(function, args, kwargs)
        node = self._node(function, tuple([self._operand(a) for a in args]), self._operands(kwargs), spec)
        return self._made(spec, node)

    def _on_lists(self, function: Any, args: Any, kwargs: Any) -> Any:
        with self:
            made = [call() for call in members(function, args, kwargs)]
        return None if function._schema.is_mutable and not function._schema.returns else made

    def _operands(self, kwargs: Any) -> Any:
        return {k: self._operand(v) for k, v in kwargs.items()} if kwargs else kwargs

    def _note_draw(self) -> None:
        if self.in_backward:
            raise Unsupported("random numbers drawn in backward")
        self.draws = True

    def _made(self, spec: Spec, node: Node) -> Any:
        """New tensors for the results of a node."""

        def fresh(out: Out, index: int | None) -> TracedTensor:
            own = node if index is None else self._element(node, index)
            return make_traced(out.meta, Memory(own, out.meta), (), own, out.offset)

        return map_spec(fresh, spec)

    def _same(self, function: Any, tensor: Any) -> TracedTensor:
        if type(tensor) is not TracedTensor:
            node = self._constant(tensor)
            meta = node.meta["val"]
            return make_traced(meta, Memory(node, meta), (), node)
        node = self.node_of(tensor)
        path = (*tensor.path, Step(function))
        return make_traced(tensor.meta, tensor.memory, path, node, int(tensor.storage_offset()))

    def _view(self, function: Any, args: Any, kwargs: Any) -> Any:
        base = args[0]
        if type(base) is not TracedTensor:
            raise Unsupported("a view of a tensor that is no input")
        if any(True for _ in traced_in((args[1:], kwargs))):
            raise Unsupported(f"{function} with several tensors")
        spec = spec_of(function, args, kwargs)
        options = self._operands(kwargs)
        node = self._node(function, (self.node_of(base), *[self._operand(a) for a in args[1:]]), options, spec)
        offset = int(base.storage_offset())
        if function is aten.as_strided.default and (base.path or base.memory.input is not None or offset):
            raise Unsupported("a view by strides of a part of a tensor, or of an input")

        def seen(out: Out, index: int | None) -> TracedTensor:
            own = node if index is None else self._element(node, index)
            path = (*base.path, Step(function, tuple(args[1:]), tuple(kwargs.items()), index))
            return make_traced(out.meta, base.memory, path, own, offset + out.offset)

        made = map_spec(seen, spec)
        return list(made) if isinstance(made, tuple) else made

    # changes in place -------------------------------------------------------------------------------------------

    def _in_place(self, function: Any, args: Any, kwargs: Any) -> Any:
        schema = function._schema
        written = [k for k, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
        if written != [0] or type(args[0]) is not TracedTensor:
            raise Unsupported(f"{schema.name}, which changes other things than its first operand")
        functional = _functional_form(function)
        for argument in schema.arguments[len(args) :]:  # defaults that the other form may not have
            if not argument.kwarg_only and argument.name not in kwargs:
                args = (*args, argument.default_value)
        if torch.Tag.nondeterministic_seeded in functional.tags:
            self._note_draw()
        target = args[0]
        spec = spec_of(functional, args, kwargs)
        kwargs = {k: v for k, v in kwargs.items() if v is not None}
        node = self._copied(target, args[1]) if functional is aten.copy.default else None
        if node is None:
            node = self._node(functional, tuple([self._operand(a) for a in args]), self._operands(kwargs), spec)
        self.write(target, node)
        return target

    def _copied(self, target: TracedTensor, source: Any) -> Node | None:
        """What `target` holds after `source` was copied to it, where that is `source` as it is."""
        if type(source) is not TracedTensor or source.meta != target.meta:
            return None
        return self.node_of(source)

    def write(self, tensor: TracedTensor, node: Node, declared: bool = True) -> None:
        """Note that a tensor holds what `node` computes from here on; `declared`: and that PyTorch counts the change."""
        if node.meta["val"] != tensor.meta:
            node = self.emit(aten.copy.default, self.node_of(tensor), node)
        memory = tensor.memory
        parents = [memory.node]
        for step in tensor.path[:-1]:
            parents.append(self._step(step, parents[-1]))
        for parent, step in zip(reversed(parents), reversed(tensor.path), strict=False):
            meta = parent.meta["val"]
            part = node
            node = write_through(self.emit, parent, meta, part, step)
            if node.meta["val"] != meta:
                node = self.emit(aten.copy.default, parent, node)
        memory.node = node
        memory.version += 1
        memory.changes += declared
        if not tensor.path:
            tensor.known, tensor.seen = node, memory.version

    def _batch_norm(self, args: Any) -> Any:
        """Batch normalisation in training changes the running statistics, although its schema does not say so."""
        function = aten._native_batch_norm_legit_functional.default
        spec = spec_of(function, args, {})
        node = self._node(function, tuple([self._operand(a) for a in args]), {}, spec)
        for position, index in ((3, 3), (4, 4)):
            self.write(args[position], self._element(node, index), declared=False)
        return self._made(spec[:3], node)


def _functional_form(function: Any) -> Any:
    """The operator that returns what `function` writes to its first operand."""
    name = function.name()
    if name in _FUNCTIONAL:
        return _FUNCTIONAL[name]
    base, _, overload = name.removeprefix("aten::").partition(".")
    packet = getattr(aten, base.removesuffix("_"), None) if base.endswith("_") and name.startswith("aten::") else None
    overloads = [] if packet is None else [overload or "default", *packet.overloads()]
    for candidate in overloads:
        functional = getattr(packet, candidate, None)
        if functional is not None and _takes_the_same(functional, function) and not is_view(functional):
            return functional
    raise Unsupported(f"{name}, which has no form that leaves its operand alone")


def _takes_the_same(functional: Any, function: Any) -> bool:
    if functional._schema.is_mutable:
        return False
    mine, theirs = functional._schema.arguments, function._schema.arguments
    return [(a.name, str(a.type)) for a in mine] == [(a.name, str(a.type)) for a in theirs]


def _is_deterministic(function: Any, args: Any) -> bool:
    """Whether an operator that may draw random numbers does not: attention without dropout."""
    for position, argument in enumerate(function._schema.arguments):
        if argument.name in ("dropout_p", "p"):
            value = args[position] if position < len(args) else argument.default_value
            return value == 0
    return False


def _stand_ins(value: Any) -> Any:
    """Operands given as nodes, as traced tensors for `spec_of`."""
    if type(value) is Node:
        meta = value.meta["val"]
        return make_traced(meta, Memory(value, meta), (), value) if isinstance(meta, TensorMeta) else value
    if isinstance(value, (list, tuple)):
        return type(value)([_stand_ins(v) for v in value])
    if isinstance(value, dict):
        return {k: _stand_ins(v) for k, v in value.items()}
    return value


def _metas(spec: Spec) -> Any:
    if type(spec) is Out:
        return spec.meta
    if isinstance(spec, (list, tuple)):
        return tuple([_metas(s) for s in spec])
    return spec

