"""Recording a captured program as a functional graph of ATen operators that can be differentiated by who runs it.

Gradients are recorded (`differentiate/`) below autograd, where autograd's formulas have been applied. An exported graph is
recorded without autograd: operators that PyTorch composes of others stay whole if backends look for them, and what the
program kept from autograd (`detach`, `torch.no_grad()`) becomes nodes of `aten.detach`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ..differentiate.drawing import order_in_memory
from ..differentiate.layouts import RULES, Out, Spec
from ..differentiate.recorder import Recorder
from ..differentiate.traced import Memory, TracedTensor, make_traced
from ..errors import Unsupported
from ..ir.values import TensorMeta

aten = torch.ops.aten
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd

#: Operators that PyTorch composes of others, and that stay whole: those that backends have kernels for.
WHOLE = frozenset({
    aten.linear.default, aten.matmul.default, aten.conv1d.default, aten.conv2d.default, aten.conv3d.default,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
    aten.scaled_dot_product_attention.default, aten.dropout.default, aten.lstm.input, aten.gru.input,
    aten.rnn_tanh.input, aten.rnn_relu.input, aten.adaptive_avg_pool2d.default,
    aten.max_pool1d.default, aten.max_pool2d.default, aten.max_pool3d.default,
})  # fmt: skip
_CONVOLUTIONS = {aten.conv1d.default: 1, aten.conv2d.default: 2, aten.conv3d.default: 3}
#: Forms of operators that PyTorch chooses where nothing needs gradients -> those that have derivatives.
_DIFFERENTIABLE = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}
#: What keeps a tensor from autograd.
DETACHING = frozenset({aten.detach.default, aten.detach_.default})


class ProgramRecorder(Recorder):
    """Records a program for export. `grad` tells whether the program is in a region with autograd; `needs_grad` says it of
    placeholders, and `may_need_grad` whether a placeholder could be given a tensor that needs gradients."""

    def __init__(self, graph: Graph, number_node: Callable[[Any], Node | None]) -> None:
        super().__init__(graph, number_node)
        self.grad = True
        self.needs_grad: set[Node] = set()
        self.may_need_grad: set[Node] = set()
        self._detached: dict[Node, Node] = {}
        self._cut: set[int] = set()
        self._cut_memories: list[Memory] = []
        self._carries: dict[Node, bool] = {}
        self.finishing = False
        #: The name of the captured call that is being recorded, and what capture knows of its results.
        self.captured: tuple[str, Any] = ("", None)

    # what autograd would follow ---------------------------------------------------------------------------------

    def carries(self, node: Node) -> bool:
        """Whether gradients may flow to a node's operands through it."""
        known = self._carries
        stack = [node]  # graphs are deep: no recursion
        while stack:
            at = stack[-1]
            operands = at.all_input_nodes if self._passes_gradients(at) else []
            pending = [] if at in known else [n for n in operands if n not in known]
            stack += pending
            if not pending:
                known.setdefault(at, at in self.may_need_grad or any(known[n] for n in operands))
                stack.pop()
        return known[node]

    def _passes_gradients(self, node: Node) -> bool:
        """Whether gradients of what a node computes may be gradients of its operands."""
        meta = node.meta.get("val")
        return node.target is not aten.detach.default and not (isinstance(meta, TensorMeta) and not _is_differentiable(meta))

    def detached(self, node: Node) -> Node:
        """A node's value, kept from autograd."""
        meta = node.meta.get("val")
        if not isinstance(meta, TensorMeta) or not self.carries(node):
            return node
        known = self._detached.get(node)
        if known is None:
            known = self._detached[node] = super()._node(aten.detach.default, (node,), {}, Out(meta, 0))
        return known

    def _node(self, function: Any, args: Any, kwargs: Any, spec: Spec) -> Node:
        if not self.grad:
            args, kwargs = torch.fx.map_arg((args, kwargs), self.detached)
        if function is aten.copy.default and isinstance(args[1], Node) and self.carries(args[1]):
            assert type(spec) is Out
            return self._differentiable_copy(args[0], args[1], spec.meta)
        return super()._node(function, args, _explicit(function, args, kwargs, spec), spec)

    def _differentiable_copy(self, target: Node, source: Node, meta: TensorMeta) -> Node:
        """What `target` holds after `source` was copied to it: `aten.copy` has no derivative. The result looks like `meta`,
        and may be `source` itself."""
        found = source.meta["val"]
        if (found.dtype, found.device) != (meta.dtype, meta.device):
            source = self.emit(aten._to_copy.default, source, dtype=meta.dtype, device=meta.device)
        if found.shape != meta.shape:
            source = self.emit(aten.expand.default, source, list(meta.shape))
        if not source.meta["val"].looks_like(meta):
            order = order_in_memory(meta)
            moved = self.emit(aten.permute.default, source, order)
            moved = self.emit(aten.clone.default, moved, memory_format=torch.contiguous_format)
            source = self.emit(aten.permute.default, moved, [order.index(k) for k in range(len(order))])
        if not source.meta["val"].looks_like(meta):  # there are gaps between the elements
            return super()._node(aten.slice_scatter.default, (self.detached(target), source), {}, Out(meta, 0))
        if source.meta["val"].stride == meta.stride:
            return source
        return super()._node(aten.view.default, (source, list(meta.shape)), {}, Out(meta, 0))

    def node_of(self, tensor: TracedTensor) -> Node:
        if id(tensor.memory) in self._cut and self.grad and not self.finishing:
            raise Unsupported(
                "a tensor that needs gradients, and is used after it was changed outside of autograd",
                "change a copy of it instead, or export under torch.no_grad()",
            )
        return super().node_of(tensor)

    def write(self, tensor: TracedTensor, node: Node, declared: bool = True) -> None:
        memory = tensor.memory
        apart = not self.grad or any(step.function in DETACHING for step in tensor.path)
        if apart and self._needs_gradients(memory.node):
            self._cut.add(id(memory))
            self._cut_memories.append(memory)  # so that no other gets its identity
        super().write(tensor, node, declared)

    def _copied(self, target: TracedTensor, source: Any) -> Node | None:
        node = super()._copied(target, source)
        return node if node is None or self.grad else self.detached(node)

    def _needs_gradients(self, node: Node) -> bool:
        stack, seen = [node], set()
        while stack:
            at = stack.pop()
            if at in self.needs_grad:
                return True
            if at not in seen and at.target is not aten.detach.default:
                seen.add(at)
                stack += at.all_input_nodes
        return False

    def _step(self, step: Any, node: Node) -> Node:
        return self.detached(node) if step.function in DETACHING else super()._step(step, node)

    def _same(self, function: Any, tensor: Any) -> TracedTensor:
        made = super()._same(function, tensor)
        if function in DETACHING and type(tensor) is TracedTensor:
            made.known = self.detached(made.known)
        return made

    # operators --------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is aten.dropout.default and not (args[2] and args[1]):
            return args[0]
        if function is aten.detach_.default and type(args[0]) is TracedTensor and not self.carries(self.node_of(args[0])):
            return args[0]  # of a constant
        if function in _CONVOLUTIONS and args[0].ndim != _CONVOLUTIONS[function] + 2:  # without a batch
            return self._taken_apart(function, args, kwargs)
        function = _DIFFERENTIABLE.get(function, function)
        if function in WHOLE:
            return self._whole(function, args, kwargs)
        if _is_composite(function):
            return self._taken_apart(function, args, kwargs)
        return super().__torch_dispatch__(function, types, args, kwargs)

    def _taken_apart(self, function: Any, args: Any, kwargs: Any) -> Any:
        with self:
            return function._op_dk(_COMPOSITE, *args, **kwargs)

    def _whole(self, function: Any, args: Any, kwargs: Any) -> Any:
        name, meta = self.captured
        spec = _as_captured(meta) if function._schema.name == f"aten::{name}" else None
        if spec is None and function in _CONVOLUTIONS:
            spec = _convolved(_CONVOLUTIONS[function], *args, **kwargs)
        if spec is None:
            return super().__torch_dispatch__(function, (), args, kwargs)
        if torch.Tag.nondeterministic_seeded in function.tags:
            self._note_draw()
        node = self._node(function, tuple([self._operand(a) for a in args]), self._operands(kwargs), spec)
        return self._made(spec, node)

    def laid_out(self, tensor: TracedTensor, meta: TensorMeta) -> TracedTensor:
        """The result of an operator that stays whole, with the strides that it has when it runs: without data it may take
        another way."""
        node = tensor.known
        base = node.args[0] if node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem" else node
        if not isinstance(base, Node) or base.target not in WHOLE or tensor.meta.shape != meta.shape or tensor.path:
            return tensor
        plain = TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device)
        node.meta["val"] = plain
        return make_traced(plain, Memory(node, plain), (), node)


def _as_captured(meta: Any) -> Spec:
    """The results of an operator as capture knows them; None where it does not."""
    if isinstance(meta, TensorMeta):
        return Out(TensorMeta(meta.dtype, meta.shape, meta.stride, meta.device), 0)
    if isinstance(meta, (list, tuple)) and all(isinstance(m, TensorMeta) for m in meta):
        return tuple([_as_captured(m) for m in meta])
    return None


def _is_differentiable(meta: TensorMeta) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex


_composites: dict[Any, bool] = {}


def _is_composite(function: Any) -> bool:
    """Whether PyTorch composes an operator of others, on all devices and for autograd."""
    known = _composites.get(function)
    if known is None:
        name = function.name()
        known = _composites[function] = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    return known


def _convolved(
    axes: int, input: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,), dilation: Any = (1,),
    groups: int = 1,
) -> Spec:  # fmt: skip
    return RULES[aten.convolution.default](
        input, weight, bias, stride, padding, dilation, False, [0] * axes, groups
    )


def _explicit(function: Any, args: Any, kwargs: Any, spec: Spec) -> Any:
    """Options of an operator that makes a tensor out of nothing: what they default to is a setting of the process."""
    names = _factory_options(function)
    if not names or type(spec) is not Out:
        return kwargs
    return {"dtype": spec.meta.dtype, "device": spec.meta.device, **kwargs}


def makes_tensors(graph: Graph) -> bool:
    """Whether a program makes tensors out of nothing, which eager mode would make on the default device."""
    return any(node.target is torch.tensor or _factory_options(node.target) for node in graph.nodes)


_factories: dict[Any, bool] = {}


def _factory_options(function: Any) -> bool:
    known = _factories.get(function)
    if known is None:
        schema: Any = getattr(function, "_schema", None)
        known = schema is not None and not any("Tensor" in str(a.type) for a in schema.arguments)
        known = known and {"dtype", "device"} <= {a.name for a in schema.arguments}
        _factories[function] = known
    return known
