"""Building the torch.fx graph of a segment: placeholders, operator nodes and grad mode."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.default_device import device_around
from ...ir.effects import NO_EFFECTS, Effects
from ...ir.guard import NumberExpr
from ...ir.modes import filling_of_memory
from ...ir.nodes import new_node
from ...ir.sharing import base_of
from ...ir.source import Source
from ...ir.values import NumberMeta, TensorMeta
from ..inference.metadata import result_of
from ..inference.mutation import changed_tensors, is_in_place, name_of
from ..inference.number_operators import check_kinds, converted_numbers, converted_types, number_in_power, range_guards
from ..inference.results import (
    Result,
    SameTensor,
    View,
    effects_of,
    follows_default_dtype,
    map_structure,
    meta_in,
    metas_in,
    tensors_in,
)
from ..inference.tensor_subclasses import class_of_results, give_class, is_function_class, without_torch_function
from ..symbolic import DynamicTensor, Symbol, TensorProxy, is_numpy, mapped, tensors_among
from .arithmetic import arguments_of_power, arithmetic, hold_numbers
from .builder import Builder, bring_in
from .contents import Contents
from .failing import REASON as FAILING
from .failing import may_fail
from .history import ViewGroups
from .leaves import Leaves
from .modes import Autocast, ChangedSettings, Inference
from .shadow import Shadow

_NO_NODES: Mapping[str, torch.fx.Node] = {}


class GraphBuilder(Builder):
    """Collects nodes. Placeholders appear when a value from outside is first used."""

    def __init__(self, program: Any) -> None:
        super().__init__(program)
        #: How many calls deep the captured program is in code that asks no class of tensors what operators do.
        self.without_torch_function = 0
        #: The names of the program's blocks that a profiler is to show.
        self.labels: list[str] = []
        self.changes_modes = False
        #: Whether the program goes on in Python where the graph fails, also after it has changed something.
        self.recovers = False
        #: Whether that matters.
        self.fails_after_changes = False
        #: Whether it goes on with the usual outcome of a branch: see `assertions`.
        self.expects = False
        #: Conditions of branches that guards compute from inputs, and their outcomes: see `input_conditions`.
        self.asked_of_inputs: dict[str, bool] = {}
        self.operators = 0
        #: How many of them compute gradients.
        self.gradient_calls = 0
        self.contents = Contents(self)
        self.autocast = Autocast()
        self.inference = Inference()
        self.changed_settings = ChangedSettings()
        self.runs_in_inference_mode = False
        #: The numbers that nodes stand for.
        self.numbers: dict[torch.fx.Node, Symbol] = {}
        #: The modes that the program is in which keep indices tensors, and how many instructions came before each.
        self.indexing_modes: list[tuple[Any, int]] = []
        #: The same for other modes of the program's, which see every call, and are not among these while they handle one.
        self.user_modes: list[tuple[Any, int]] = []
        #: The same for blocks of `with torch.device(...)`.
        self.device_blocks: list[tuple[torch.device, int]] = []
        #: The default device around the call, if one is set.
        self.device_around = device_around()
        #: For blocks with other options of PyTorch's compiler, how many instructions came before each.
        self.peer_blocks: list[int] = []
        self._computed_numbers: dict[str, Source] = {}
        self._shadow: Shadow | None = None
        #: How often tensors from outside were changed in place after their `data` was set: in the memory of another one.
        self.changed_elsewhere: dict[TensorProxy, int] = {}
        self.views = ViewGroups()
        self.leaves = Leaves(self)
        #: The tensors of which there are views of dynamic sizes, by the nodes that made their memory.
        self.seen_dynamically: set[torch.fx.Node] = set()
        #: Nodes to leave out if nothing uses them in the end.
        self.superseded: dict[torch.fx.Node, None] = {}
        #: Nodes that give tensors the class of a subclass. Only PyTorch itself can run a graph with one that is used.
        self.converted: dict[torch.fx.Node, None] = {}

    # nodes ------------------------------------------------------------------------------------------------------

    @property
    def default_device(self) -> torch.device | None:
        """The device that the program is in a block of, or that was set as the default; None where none was named."""
        return self.device_blocks[-1][0] if self.device_blocks else self.device_around

    def node_of(self, value: TensorProxy | DynamicTensor | Symbol) -> torch.fx.Node:
        """The node that computes a value, made on first use for inputs and for numbers."""
        node = value.node
        if type(value) is DynamicTensor or (node is not None and node.graph is self.graph):
            return node
        if node is None:
            if type(value) is TensorProxy:
                if value.source is None:
                    raise Unsupported("a tensor from outside without a path to it")
                value.node = self.placeholder(value.source, value.meta, value.cls, value.real)
                self.history.note_tensor(value.node, value)
            else:
                value.node = self._number_node(value)  # type: ignore[arg-type]
        elif type(value) is Symbol and node.graph is not self.root and not (self.nested or value.from_tensor):
            value.node = self._number_node(value)  # the one that it had was within a nested graph
        return value.node if value.node.graph is self.graph else bring_in(self, value, value.node)

    def note_input_meta(self, node: torch.fx.Node, meta: TensorMeta) -> None:
        """An input is to have other metadata when the graph begins."""
        at = next(k for k, known in enumerate(self.inputs) if known.name == node.name)
        self.inputs[at] = replace(self.inputs[at], meta=meta)
        self._shadow = None  # which has run without

    def stamp(self, node: torch.fx.Node) -> None:
        """Note where in the program a node comes from, and how many instructions came before."""
        node.meta["trace"] = self.program.trace()
        node.meta["performed"] = self.program.performed
        if self.inference.on and node.op.startswith("call"):
            node.meta["inference"] = True

    def _number_node(self, symbol: Symbol) -> torch.fx.Node:
        if symbol.operation is None:
            source, hint = symbol.expr, symbol.hint
            if not isinstance(source, Source):
                source = self._computed(source)
            if symbol.cls is not symbol.kind:
                source, hint = source.plain(symbol.kind), symbol.kind(hint)
            node = self.placeholder(source, NumberMeta(symbol.kind), symbol.kind, hint)
            self.numbers[node] = symbol
            return node
        function, operands = symbol.operation
        node = new_node(self.graph, "call_function", function, tuple([self._lower(operand) for operand in operands]))
        node.meta["val"] = _NUMBERS[symbol.kind, symbol.from_tensor]
        self.stamp(node)
        self.numbers[node] = symbol
        return node

    def _computed(self, expr: NumberExpr | None) -> Source:
        """The source of a number that only NumPy computes as NumPy does: an input of the graph."""
        if expr is None:
            raise Unsupported("a number without a path to it")
        code = expr.code()
        if code not in self._computed_numbers:
            self._computed_numbers[code] = next(iter(expr.sources())).computed(expr)
        return self._computed_numbers[code]

    def _lower_args(self, value: Any) -> Any:
        return mapped(self._lower, value)

    def _lower(self, value: Any) -> Any:
        if type(value) in _OF_GRAPH:
            return self.node_of(value)
        if is_numpy(value):
            raise Unsupported(f"a {type(value).__name__} of NumPy's in a graph")
        return value

    def note_variable(self, tensor: TensorProxy, name: str, frame: Any) -> None:
        """A tensor was stored in a local variable: the name that a reader of the graph knows it by. The first variable of
        the user's is kept, or else the first one of PyTorch's own code."""
        node = tensor.node
        if node is None or tensor.source is not None:
            return
        known = node.meta.get("variable")
        mine = not frame.is_library
        if known is None or (mine and not known[1]):
            node.meta["variable"] = (name, mine)

    # operators --------------------------------------------------------------------------------------------------

    def call(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Any = None,
        extra: Mapping[str, torch.fx.Node] = _NO_NODES,
    ) -> Any:  # fmt: skip
        """Add a call of a PyTorch operator. `kind` is "call_function" or "call_method"; `structure` is what it
        returns, where that is known. `extra` are operands that results do not depend on.

        Returns proxies in the structure that the operator returns, or its plain result where that needs no tensor data
        (`x.numel()`), in which case there is no node.
        """
        self.check_modes()
        if "from" in kwargs:  # of `random_`, `uniform_` and the like; a graph is Python code, where it is a keyword
            raise Unsupported("an argument that is called from")
        tensors = [*tensors_among(args), *tensors_among(kwargs)]
        function = getattr(torch.Tensor, target) if kind == "call_method" else target
        power = number_in_power(name_of(target).strip("_"), args, kwargs)
        if power is not None and self.keeps_history and (self.nested or any(t.meta.requires_grad for t in tensors)):
            args, kwargs = arguments_of_power(self, *power, args, kwargs)
        classes = dict.fromkeys([tensor.cls for tensor in tensors])
        asks_class = any(map(is_function_class, classes))
        if asks_class and not self.without_torch_function:
            raise Unsupported("a tensor with a __torch_function__ of its own")
        subclass = None if self.without_torch_function else class_of_results(classes)
        if subclass is not None:
            self.only_pytorch = "a subclass of torch.Tensor"
            if kind == "call_method":  # which the class may define anew
                kind, target = "call_function", function
        if structure is None:
            with self.autocast.in_force():
                result = result_of(function, args, kwargs, tensors, self.keeps_history)
        else:
            result = Result(structure)
        structure = result.structure
        if not (result.written or result.changed or is_in_place(target)):
            if isinstance(structure, SameTensor) and not changed_tensors(target, args, kwargs):
                return tensors[structure.index]
            if structure is not None and not result.has_tensor:
                return structure
        self._guard_operands(target, args, kwargs, tensors, structure)
        self.sync_modes()
        self.operators += 1
        must_not_fail = bool(self.mutated) and self.in_try() and self.contents.has_written_inputs()
        node = new_node(self.graph, kind, target, self._lower_args(args), {**self._lower_args(kwargs), **extra})
        self.stamp(node)
        if asks_class:
            self.only_pytorch = "a subclass of torch.Tensor"
            node.op, node.target = "call_function", without_torch_function(function)
        node.meta["effects"] = self._note_changes(node, target, args, kwargs, result, tensors)
        if must_not_fail and may_fail(self, target, changed_tensors(target, args, kwargs), tensors):
            if not self.goes_on_after_changes():
                raise Unsupported(FAILING)
            self.fails_after_changes = True
        value = self._wrap(structure, node, tensors, result.leaves)
        if subclass is not None:
            give_class(value, subclass, tensors)
        if any(meta_in(leaf, tensors).requires_grad for leaf in tensors_in(structure)):
            # `torch.zeros(3, requires_grad=True)` needs no grad mode.
            self.differentiable |= self.keeps_history or result.leaves
            if self.keeps_history:
                self.history.recorded.add(node)
        return value

    def _guard_operands(self, target: Any, args: Any, kwargs: Any, tensors: list[TensorProxy], structure: Any) -> None:
        """Hold by guards what an operator's result follows from besides its operands' metadata: settings, the ranges of
        numbers, and which tensors require gradients."""
        if follows_default_dtype(structure, tensors):
            self.outside.guard("state", None, ("torch.get_default_dtype()", torch.get_default_dtype()))
        if name_of(target) in _WITHOUT_CONTENTS:
            for setting in filling_of_memory().items():
                self.outside.guard("state", None, setting)
        check_kinds(tensors, args, kwargs)
        name = name_of(target).strip("_")
        numbers = converted_numbers(name, args, kwargs)
        if numbers:
            dtypes = {meta_in(s, tensors).dtype for s in tensors_in(structure)} or {t.meta.dtype for t in tensors[:1]}
            for condition in range_guards(numbers, converted_types(name, dtypes)):
                self.outside.require(condition, True)
        if self.keeps_history:
            replaced = [t for t in tensors if t.data is not None]
            if replaced and name_of(target) != "detach":
                if any(t.meta.requires_grad for t in replaced):  # the graph's would be those of the new data
                    raise Unsupported("gradients of a tensor whose data was set before")
                if any(t.meta.requires_grad for t in tensors):  # autograd keeps the tensor itself, set or not
                    raise Unsupported("a tensor whose data was set before, which backward may need")
            for tensor in tensors:
                self.outside.guard_requires_grad(tensor)
        else:  # a view requires gradients where what it is a view of does
            for leaf in tensors_in(structure):
                if isinstance(leaf, View) and leaf.tracked:
                    self.outside.guard_requires_grad(tensors[leaf.index])

    def _note_changes(
        self, node: torch.fx.Node, target: Any, args: Any, kwargs: Any, result: Result, tensors: list[TensorProxy]
    ) -> Effects:
        """Note which tensors the call of `node` changed, and how."""
        changed = self.contents.note_call(node, target, args, kwargs)
        known = {id(tensor) for tensor in changed}
        for index in result.written:
            if id(tensors[index]) not in known:  # no schema says so
                changed += self.contents.note_call(node, "copy_", (tensors[index],), {})
        for tensor in changed:
            if self.seen_dynamically and base_of(self.node_of(tensor)) in self.seen_dynamically:
                raise Unsupported("a change in place of what has a view of dynamic sizes")
            if tensor.meta.is_expanded:
                raise Unsupported("an in-place operator on an expanded tensor")
            if tensor.data is not None:
                if tensor.source is None:
                    raise Unsupported("changing a tensor made inside in place whose data was set before")
                self.changed_elsewhere[tensor] = self.changed_elsewhere.get(tensor, 0) + 1
            self.mutated.add(self.node_of(tensor).name)
        effects = effects_of(result, tensors, changed)
        for index, meta in result.changed:
            if meta.requires_grad != tensors[index].meta.requires_grad and not result.written:
                self.history.note_detached(node, tensors[index])
            self.views.change(tensors[index], meta, bool(result.written))
            self.differentiable |= meta.requires_grad
        if self.keeps_history and any(t.meta.requires_grad for t in tensors):
            for tensor in changed:
                if tensor.meta.requires_grad:  # unlike the running statistics of a batch norm
                    self.differentiable = True  # also where nothing is returned, as by `x[0] = 1`
                    self.history.note_write(node, self.views.group(tensor))
        return effects

    def note_written(self, results: Any, tensor: TensorProxy) -> None:
        """A call whose operator says nothing of it changed a tensor; `results` are what it returned."""
        node = next(v.node.args[0] for v in results if type(v) is TensorProxy)
        self.contents.note_call(node, "copy_", (tensor,), {})
        self.mutated.add(self.node_of(tensor).name)

    def _wrap(self, structure: Any, node: torch.fx.Node, tensors: list[TensorProxy], leaves: bool = False) -> Any:
        """What the captured program gets for an operator's result."""
        if isinstance(structure, (TensorMeta, View)):
            meta = node.meta["val"] = meta_in(structure, tensors)
            node.meta["leaf"] = leaves and meta.requires_grad
            if isinstance(structure, View):
                node.meta["view_of"] = (self.node_of(tensors[structure.index]), structure.tracked)
            proxy = TensorProxy(meta, node)
            self.history.note_tensor(node, proxy)
            if isinstance(structure, View) and structure.tracked:
                self.views.note_view(proxy, tensors[structure.index])
            return proxy
        if isinstance(structure, SameTensor):
            node.meta["val"] = tensors[structure.index].meta
            return tensors[structure.index]
        if structure == ():
            node.meta["val"] = None
            return None
        if isinstance(structure, (list, tuple)):
            node.meta["val"] = metas_in(structure, tensors)
            return map_structure(lambda s, k: self._element(s, node, k, tensors, leaves), structure)
        node.meta["val"] = structure
        return structure

    def _element(self, structure: Any, parent: torch.fx.Node, index: int, tensors: list[TensorProxy], leaves: bool) -> Any:
        if isinstance(structure, SameTensor):
            return tensors[structure.index]
        if next(tensors_in(structure), None) is None:
            return structure
        node = new_node(self.graph, "call_function", operator.getitem, (parent, index))
        node.meta["trace"] = parent.meta["trace"]
        if "inference" in parent.meta:
            node.meta["inference"] = True
        return self._wrap(structure, node, tensors, leaves)

    def dynamic_call(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], meta: Any
    ) -> torch.fx.Node:
        """A node on tensors of dynamic sizes, or of any tensor that is handed on with them."""
        self.check_modes()
        self.sync_modes()
        node = new_node(self.graph, kind, target, self._lower_args(args), self._lower_args(kwargs))
        node.meta["val"] = meta
        node.meta["effects"] = NO_EFFECTS
        self.stamp(node)
        return node

    def number_in(self, tensor: TensorProxy) -> Any:
        """`tensor.item()`: a plain number if the tensor is made of constants."""
        constant = self.contents.constant(tensor) if tensor.meta.numel == 1 else None
        return self.item(tensor) if constant is None else constant.item()

    def item(self, tensor: TensorProxy) -> Symbol:
        """`tensor.item()`: a number that only running the graph tells."""
        self.check_modes()
        if tensor.meta.numel != 1 or tensor.meta.dtype.is_complex:
            raise Unsupported("item() of a complex tensor or of several elements")
        self.operators += 1
        kind = float if tensor.meta.dtype.is_floating_point else bool if tensor.meta.dtype is torch.bool else int
        node = new_node(self.graph, "call_method", "item", (self.node_of(tensor),))
        node.meta["val"] = _NUMBERS[kind, True]
        self.stamp(node)
        symbol = Symbol(kind, None, None, node=node, from_tensor=True, tensor=tensor)
        symbol.clock = self.contents.clock
        return symbol

    def drawn(self, tensor: TensorProxy) -> Symbol:
        """The number that is put into a tensor before the graph runs: see `ir.segment.Draw`."""
        self.mutated.add(self.node_of(tensor).name)
        self.contents.note_unknown(tensor)
        return self.item(tensor)

    # numbers ----------------------------------------------------------------------------------------------------

    number = arithmetic

    # modes ------------------------------------------------------------------------------------------------------

    def check_modes(self) -> None:
        """Refuse what a mode of the program's may see and was not asked about."""
        if self.user_modes:
            raise Unsupported("an operator in a torch function mode")

    def sync_modes(self) -> None:
        """Bring the running graph to the captured grad mode and autocast state before the next operator."""
        self.inference.sync(self)
        self._sync_grad_mode()
        self.autocast.sync(self)
        self.changed_settings.sync(self)

    def _sync_grad_mode(self) -> None:
        if self.emitted_grad != self.grad_enabled:
            self.mode_node(torch._C._set_grad_enabled, (self.grad_enabled,))
            self.emitted_grad = self.grad_enabled

    def mode_node(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """A call that changes a setting of PyTorch's."""
        node = new_node(self.graph, "call_function", function, arguments)
        node.meta["val"] = None
        self.stamp(node)
        self.changes_modes = True

    def only_eager(self) -> str:
        """Why only PyTorch itself can run this graph, if so."""
        if self.changed_settings.in_graph:
            return "a setting of PyTorch's that it changes"
        if not self.autocast.was_active:
            return self.only_pytorch or ("a choice of attention's kernels" if self.autocast.chose_attention else "")
        written = set(self.contents.written_inputs())
        changed = [i.meta for i in self.inputs if i.name in written and isinstance(i.meta, TensorMeta)]
        weights = [meta for meta in changed if meta.requires_grad and meta.dtype is torch.float32]
        if self.autocast.began_active and weights:  # of which autocast keeps converted copies, and goes on with the old ones
            return "autocast around it"
        return self.only_pytorch or "autocast"

    def goes_on_after_changes(self) -> bool:
        """Whether the program goes on in Python where the graph fails after it has changed something: see `interrupted`.
        Inference tensors change first and refuse then."""
        if not self.recovers or torch.is_inference_mode_enabled():
            return False
        return not any(isinstance(value, torch.Tensor) and value.is_inference() for value in self.examples)

    def shadow(self) -> Shadow:
        """This graph as it runs on tensors without data."""
        if self._shadow is None:
            changes = any(node.target is torch.set_autocast_enabled for node in self.graph.nodes)
            self._shadow = Shadow(self.grad_at_start, changes)
        return self._shadow

    def is_used_up(self, tensor: TensorProxy) -> bool:
        """Whether autograd refuses gradients of a tensor, since a `backward()` in the graph has freed what they need."""
        if tensor.node not in self.history.freed:
            return False
        try:
            return self.shadow().is_used_up(self, tensor)
        except Unsupported:
            return False

    def finish(self, outputs: list[Any]) -> torch.fx.Graph:
        """Close the graph, returning `outputs` (proxies and symbols) as a flat tuple."""
        returned = [self.node_of(output) for output in outputs]
        self.runs_in_inference_mode = self.inference.finish(self, returned)
        for viewed in self.inference.viewed:
            self.outside.guard("requires_grad", next(i.source for i in self.inputs if i.name == viewed.name), False)
        self._sync_grad_mode()
        self.keep_apart()
        if self.differentiable:
            hold_numbers(self.root, self.numbers, self.outside.concrete)
        for node in reversed(self.superseded):
            if not node.users and node not in returned:
                self.graph.erase_node(node)
        for node in reversed(self.converted):
            if node.users or node in returned:
                self.only_pytorch = "a subclass of torch.Tensor"
            else:
                self.graph.erase_node(node)
        node = self.graph.output(tuple(returned))
        node.meta["val"] = None
        self.contents.finish()
        return self.graph


#: What nodes stand for.
_OF_GRAPH = frozenset({TensorProxy, DynamicTensor, Symbol})

#: What there are of numbers.
_NUMBERS = {(kind, out): NumberMeta(kind, out) for kind in (bool, int, float) for out in (False, True)}

#: Operators that make tensors whose elements are what the memory held, or what PyTorch fills new memory with.
_WITHOUT_CONTENTS = frozenset(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_".split()
)
