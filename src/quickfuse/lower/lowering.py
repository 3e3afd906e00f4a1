"""The walk over the graph: nodes in order, each to a handler, and at the end the stores and outputs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, Node

from quickfuse.errors import Unsupported
from quickfuse.ir.arguments import map_leaves
from quickfuse.ir.effects import Effects
from quickfuse.ir.expr import Load
from quickfuse.ir.loop import Buffer, Extern, GeneratorInput, Handed, HostScalar, Loop, Program, StoreKind
from quickfuse.ir.modes import enter_inference, leave_inference
from quickfuse.ir.values import DynamicMeta, NumberMeta, ObjectMeta, TensorMeta, overlaps_itself

from . import ops
from .aten import native_handler, overload_handler
from .batches import batch_products
from .biases import add_biases_in_loops
from .chunked_products import chunk_products
from .context import Context, StreamOf
from .convolution import CONVOLUTIONS, channels_last_meta, is_image
from .epilogues import join_activations
from .equality import compared_for_equality
from .expansion import Expand, Expansion, expansion
from .extern import extern, handed_on, name_of, numbered_operands
from .in_place import scatter_in_place
from .numbers import DTYPES, host_number, number_from_tensor
from .outputs import Outputs
from .products import LinearCall, activation_after
from .rematerialised import rematerialise
from .rules import NoRule
from .shared_concatenations import SharedConcatenations
from .small_products import use_small_products
from .symbolic import Storage, Tensor, whole_load
from .targets import FUNCTIONS, METHODS, Handler

#: What has no meaning in a lowered program, which is only made where no gradients are needed, and hands out no leaf.
_IGNORED = frozenset({torch._C._set_grad_enabled, enter_inference, leave_inference, "requires_grad_"})
_NEVER = (None, 1 << 60)


def lower(
    graph: Graph, free: Collection[int] = (), expand: Expand | None = None, stream: StreamOf | None = None
) -> Program:
    """Lower a torch-level graph to loops and calls of PyTorch operators.

    Each node's `meta["val"]` holds its `TensorMeta`, its `NumberMeta`, or a tuple or list of these. Inputs that the
    graph changes in place are stored to once, at the end. Outputs at the positions `free` may have any strides; a
    placeholder whose `meta["lies"]` is another `TensorMeta` comes with the strides of that. `expand` takes operators apart
    that PyTorch composes of others. `stream` tells how it draws random numbers on a GPU, for kernels to draw the same ones.

    Raises:
        Unsupported: where the graph has an operator without a rule that PyTorch cannot safely be called for.
    """
    return _Lowering(free, expand, stream).run(graph)


def _handler(kind: str, target: Any) -> Handler | None:
    """What lowers a call, where that is known."""
    if kind == "call_method":
        return METHODS.get(target)
    handler = FUNCTIONS.get(target)
    if handler is not None:
        return handler
    return overload_handler(target) if isinstance(target, (OpOverload, OpOverloadPacket)) else native_handler(target)


#: Operators with a rule that call PyTorch on memory.
_CALLING = CONVOLUTIONS | {"linear", "matmul", "mm", "addmm"}


def _needs_memory(node: Node) -> bool:
    """Whether a call's operands have to be in memory as tensors are."""
    handler = _handler(node.op, node.target)
    return handler is None or name_of(node.target) in _CALLING


def _looking_like(tensor: Tensor, meta: TensorMeta) -> Tensor:
    """A new tensor with the strides that the operator gives to axes of one element: parts may give others."""
    if not tensor.whole or tensor.meta.stride == meta.stride:
        return tensor
    storage = Storage(meta, tensor.storage.value)
    storage.pending = tensor.storage.pending
    return Tensor(storage, meta)


class _Lowering:
    def __init__(self, free: Collection[int], expand: Expand | None, stream: StreamOf | None) -> None:
        self.ctx = Context(stream)
        self.free = free
        self.expand = expand
        self.values: dict[Node, Any] = {}
        self.inputs: list[Tensor] = []
        #: Storages with the number of calls of PyTorch before the node whose result they are, by their ids.
        self.formed: dict[int, tuple[Storage, int]] = {}
        self.calls = 0
        self.counted_steps = 0

    def run(self, graph: Graph) -> Program:
        values = self.values
        self.shared = SharedConcatenations(graph, _needs_memory)  # the graph's, not that of parts of an operator
        compared = compared_for_equality(graph)
        for node in graph.nodes:
            kind = node.op
            if node in values:  # came with what was before
                continue
            if kind == "call_function" or kind == "call_method":
                self._offer_across_calls(node)
                values[node] = self._call(kind, node)
                if node in compared and type(values[node]) is Tensor:
                    self.ctx.compute_once(values[node].storage)
                self._remember_when(values[node])
            elif kind == "placeholder":
                values[node] = self._placeholder(node)
            elif kind == "output":
                self._finish(self._resolve(node.args[0]))
            else:
                raise Unsupported(f"a graph node of kind {kind}")
        return self.ctx.program

    def _offer_across_calls(self, node: Node) -> None:
        """Operands whose formulas would be computed after calls that their own operands were there before may be stored."""
        for operand in node.all_input_nodes if self.calls else ():
            value = self.values[operand]
            if type(value) is Tensor and self.formed.get(id(value.storage), _NEVER)[1] < self.calls:
                del self.formed[id(value.storage)]
                self.ctx.offer(value.storage, 2)

    def _remember_when(self, value: Any) -> None:
        steps = self.ctx.program.steps
        if len(steps) != self.counted_steps:
            self.calls += sum([type(step) is Extern for step in steps[self.counted_steps :]])
            self.counted_steps = len(steps)
        for part in value if type(value) in (tuple, list) else (value,):
            if type(part) is Tensor and part.storage.buffer is None:
                self.formed.setdefault(id(part.storage), (part.storage, self.calls))

    def _placeholder(self, node: Node) -> Any:
        ctx, meta = self.ctx, node.meta["val"]
        inputs = ctx.program.inputs
        if isinstance(meta, NumberMeta):
            inputs.append(None)
            return ctx.host_number(node.name, node.name, DTYPES[meta.kind])
        if type(meta) is DynamicMeta:
            inputs.append(None)
            return HostScalar(node.name, node.name, torch.int64)
        if isinstance(meta, ObjectMeta):
            inputs.append(None)
            return GeneratorInput(node.name, node.name, torch.int64)
        if not isinstance(meta, TensorMeta):
            raise Unsupported(f"an input of type {type(meta).__name__}")
        buffer = Buffer(node.name, node.meta.get("lies", meta), "input", len(inputs))
        inputs.append(buffer)
        tensor = Tensor(Storage(meta, whole_load(buffer), buffer), meta)
        self.inputs.append(tensor)
        return tensor

    def _call(self, kind: str, node: Node) -> Any:
        ctx = self.ctx
        target: Any = node.target
        args, kwargs = self._resolve(node.args), self._resolve(node.kwargs)
        meta = node.meta.get("val")
        if type(meta) is NumberMeta:
            if meta.from_tensor:
                return number_from_tensor(ctx, target, args, meta, node.meta.get("never_raises", False))
            return host_number(ctx, target, args, node.name, meta)
        if type(meta) is DynamicMeta or any(type(self.values[n]) in (Handed, HostScalar) for n in node.all_input_nodes):
            return handed_on(ctx, kind, target, args, kwargs, meta)
        effects: Effects | None = node.meta.get("effects")
        ctx.begin()
        first = len(ctx.program.steps)
        if node in self.shared:
            joined = self.shared.joined(ctx, node, args[0] if args else kwargs["tensors"], meta)
            if joined is not None:
                return joined
        handler = _handler(kind, target)
        activated = activation_after(node)
        if handler is not None and activated is not None:
            handler = partial(self._with_activation, handler, *activated)
        failed: Unsupported | None = None
        if handler is not None:
            try:
                value = handler(ctx, args, kwargs, meta)
                if effects is None or not effects.written or self._are_assigned(effects.written, args, kwargs):
                    return self._offered(value, node, first)
            except NoRule:
                pass
            except Unsupported as unsupported:
                failed = unsupported
            ctx.undo()
        elif target in _IGNORED:
            return args[0] if kind == "call_method" else None
        stacks = target is torch.stack and not kwargs and isinstance(meta, TensorMeta) and len(args) == 1
        if stacks and all(type(member) is Tensor and not member.meta.shape for member in args[0]):
            return self._stack(args[0], meta)
        parts = expansion(self.expand, kind, target, args, kwargs, meta) if self.expand and not effects else None
        if parts is not None:
            return self._offered(self._in_parts(parts, meta), node, first)
        if getattr(meta, "neg", False):  # loops would read the numbers as they lie in memory
            raise Unsupported("a view of numbers that are to be negated")
        try:
            return extern(ctx, kind, target, args, kwargs, meta, effects)
        except Unsupported as unsupported:
            raise failed or unsupported from None

    def _offered(self, value: Any, node: Node, first: int) -> Any:
        """What a node gives, now a temporary if the schedule is to decide about it: it has several users, or was computed
        from reductions, which are among the steps from `first` on."""
        if type(value) is Tensor and value.whole:
            to_convolve = is_image(value) and any(name_of(user.target) in CONVOLUTIONS for user in node.users)
            steps = [step for step in self.ctx.program.steps[first:] if isinstance(step, Loop)]
            uses = len(node.users) + any(step.stores[0].kind is StoreKind.REDUCE for step in steps)
            self.ctx.offer(value.storage, uses, channels_last_meta(value.meta) if to_convolve else None)
        return value

    def _in_parts(self, parts: Expansion, meta: Any) -> Any:
        """Lower a call as what it is composed of."""
        operands = iter(parts.operands)
        results: list[Any] = []
        for node in parts.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(operands)
            elif node.op == "output":
                results = [self.values[n] for n in node.args[0]]
            else:
                self.values[node] = self._call(node.op, node)
        if isinstance(meta, TensorMeta):
            return self._laid_out(results[0], meta)
        given = iter(results)
        return [None if m is None else self._laid_out(next(given), m) for m in meta]  # what is not asked for is not there

    def _laid_out(self, tensor: Tensor, meta: TensorMeta) -> Tensor:
        """A result with the strides and the type that it has where the call is one."""
        if not tensor.meta.looks_like(meta):
            return self.ctx.fresh(meta, ops.via(self.ctx.read(tensor), meta.dtype))
        return _looking_like(tensor, meta)

    def _with_activation(
        self, handler: Handler, reader: Node, activation: LinearCall, ctx: Context, args: Any, kwargs: Any, meta: Any
    ) -> Any:
        """Lower a linear layer together with the activation that reads its result."""
        value = handler(ctx, args, {**kwargs, "activation": activation}, meta)
        self.values[reader] = value
        return value

    def _are_assigned(self, written: tuple[int, ...], args: Any, kwargs: Any) -> bool:
        """Whether a rule has changed all operands that the operator changes. Rules may not know of an option that does."""
        operands = numbered_operands((args, kwargs))
        return all(self.ctx.is_assigned(operands[k].storage) for k in written)

    def _resolve(self, value: Any) -> Any:
        """Arguments with what nodes stand for in place of these."""
        return map_leaves(lambda leaf: self.values[leaf] if type(leaf) is Node else leaf, value)

    def _stack(self, members: Any, meta: TensorMeta) -> Tensor:
        """A stack of 0-dim tensors remembers its members, which is all that most uses of one need."""
        ctx = self.ctx
        copies = [ctx.fresh(m.meta, ctx.read(m)) for m in members]
        storage = Storage(meta, None)
        storage.pending = lambda: ctx.read(extern(ctx, "call_function", torch.stack, (copies,), {}, meta))
        result = Tensor(storage, meta)
        result.stacked = copies
        return result

    # the end of the graph ---------------------------------------------------------------------------------------

    def _finish(self, outputs: Any) -> None:
        for tensor in self.inputs:
            self._store_input(tensor.storage)
        flat = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        self._check_aliases({id(value.storage) for value in flat if type(value) is Tensor})
        made = Outputs(self.ctx, flat, self.free)
        self.ctx.program.outputs.extend(made.results())
        self.ctx.program.versions = made.versions()
        scatter_in_place(self.ctx.program)
        batch_products(self.ctx.program)
        chunk_products(self.ctx.program)
        use_small_products(self.ctx.program)
        join_activations(self.ctx.program)
        add_biases_in_loops(self.ctx.program)
        rematerialise(self.ctx.program)

    def _check_aliases(self, returned: set[int]) -> None:
        """Refuse programs in which it matters that two storages are one: values are kept for each of them."""
        for base, alias, before in self.ctx.aliases:
            both = id(alias) in returned and (id(base) in returned if base.buffer is None else before > 0)
            if base.mutated > before or alias.mutated or both:
                raise Unsupported("memory that is seen as two types")

    def _store_input(self, storage: Storage) -> None:
        buffer, value = storage.buffer, storage.now()
        if not storage.mutated or (isinstance(value, Load) and value.access == whole_load(buffer).access):
            return
        if overlaps_itself(buffer.meta.shape, buffer.meta.stride):
            raise Unsupported("an in-place operator on a tensor whose elements share memory")
        self.ctx.store(buffer, value)
