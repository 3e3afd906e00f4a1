"""What autograd will know of the tensors of one graph: which leaves the gradient of a tensor flows to."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...errors import Unsupported
from ...ir.gradients import takes_gradients
from ...ir.nodes import has_sparse_gradients
from ...ir.transforms import transformed_graph
from ...ir.values import TensorMeta
from ..inference.mutation import name_of
from ..inference.stand_ins import is_leaf, is_view_without_gradients
from ..symbolic import TensorProxy
from ..symbolic.raising import SuspendedInside

#: From a call of a custom function to the operands that get gradients.
Follow = Callable[[Any], list[torch.fx.Node]]


#: Why a graph ends where what autograd knows of a tensor changes in ways that it does not follow.
REFUSED = "a tensor from outside that begins or ends to require gradients"


class NotFollowed(Unsupported):
    """Gradients flow through a call whose operands do not tell to which of them: gradients of gradients, for example."""


class History:
    """The tensors of a graph and what was written to them while autograd recorded."""

    def __init__(self) -> None:
        self._tensors: dict[torch.fx.Node, TensorProxy] = {}
        self._writes: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        #: Calls after which a tensor has no history, such as `detach_`.
        self._detached: dict[torch.fx.Node, list[torch.fx.Node]] = {}
        #: The calls that a `backward()` has come by, and has freed what they needed.
        self.freed: set[torch.fx.Node] = set()
        #: The calls that autograd recorded, and those of them whose gradients `torch.autograd.grad` has taken.
        self.recorded: set[torch.fx.Node] = set()
        self._taken: set[torch.fx.Node] = set()
        #: See `pending`.
        self.wanted: tuple[set[torch.fx.Node], set[torch.fx.Node]] | None = None
        #: The nodes of leaves that got other memory since, and how many instructions had come before that.
        self.moved: dict[torch.fx.Node, int] = {}
        #: The calls of custom functions, by their nodes.
        self.applications: dict[torch.fx.Node, Any] = {}

    def note_tensor(self, node: torch.fx.Node, tensor: TensorProxy) -> None:
        self._tensors[node] = tensor

    def tensor(self, node: torch.fx.Node) -> TensorProxy | None:
        return self._tensors.get(node)

    def note_write(self, node: torch.fx.Node, tensors: list[TensorProxy]) -> None:
        """The call of `node` wrote something with a history to these tensors, all views of each other."""
        for tensor in tensors:
            if tensor.node is not None:
                self._writes.setdefault(tensor.node, []).append(node)

    def note_detached(self, node: torch.fx.Node, tensor: TensorProxy) -> None:
        """The call of `node` made a leaf of a tensor: what it was computed from gets no gradients of what uses it later."""
        if tensor.node is not None:
            self._detached.setdefault(tensor.node, []).append(node)

    def note_moved(self, leaf: torch.fx.Node, performed: int) -> None:
        """A leaf got other memory, and another node, before the instruction of this number."""
        self.moved[leaf] = performed

    def note_taken(self, graph: torch.fx.Graph, outputs: list[TensorProxy], wanted: list[TensorProxy]) -> None:
        """The program has taken the gradients of `outputs` for these tensors: autograd keeps nothing for more of them."""
        order = {node: k for k, node in enumerate(graph.nodes)}
        reached, _ = self._reached(order, outputs, strict=False)
        ends = {tensor.node for tensor in wanted}
        for node in sorted(reached - ends, key=order.__getitem__):
            if not ends.isdisjoint(node.all_input_nodes):
                ends.add(node)
                self._taken.add(node)

    def writes_since(self, graph: torch.fx.Graph, tensor: TensorProxy, last: torch.fx.Node | None) -> bool:
        """Whether what was written to a tensor after the node `last` gave it another history."""
        writes = self._writes.get(tensor.node, ()) if tensor.node is not None else ()
        behind = itertools.takewhile(lambda node: node is not last, reversed(graph.nodes))
        return bool(writes) and not set(writes).isdisjoint(behind)

    def has_written_inputs(self) -> bool:
        """Whether something with a history was written to a tensor from outside."""
        return any(node.op == "placeholder" for node in self._writes)

    def open_calls(self) -> set[torch.fx.Node]:
        """The calls that autograd has recorded and may yet take gradients through."""
        return self.recorded - self.freed - self._taken

    def leaves(
        self, graph: torch.fx.Graph, outputs: list[TensorProxy], keep: bool, follow: Follow,
        asked: Callable[[], list[torch.fx.Node]],
    ) -> list[TensorProxy]:  # fmt: skip
        """The leaves that get a gradient from `outputs`; `keep`: what autograd saved is not freed. `follow` tells which
        operands of a custom function's call do. `asked` asks autograd for the leaves, where operands do not tell. Raises
        `Unsupported` where gradients flow out of the graph, or through what was freed."""
        order = {node: k for k, node in enumerate(graph.nodes)}
        try:
            reached, found = self._reached(order, outputs, follow)
            ends = found
        except NotFollowed:
            reached, ends = self._reached(order, outputs, strict=False)
            found = set(asked())
        leaves = {node: self._leaf(node) for node in sorted(found, key=order.__getitem__)}
        inner = {node for node in reached - ends if node not in leaves and _requires_grad(node)}
        if inner & self.freed:
            raise Unsupported("a second backward() through the same operators", "retain_graph=True keeps what it needs")
        if not keep:
            self.freed |= inner
        return list(leaves.values())

    def inputs_reached(self, graph: torch.fx.Graph, outputs: list[TensorProxy]) -> tuple[set[torch.fx.Node], bool]:
        """The inputs of a nested graph that gradients of `outputs` flow to, and whether all of them are known to."""
        order = {node: k for k, node in enumerate(graph.nodes)}
        followed = True
        try:
            _, found = self._reached(order, outputs)
        except NotFollowed:
            followed = False
            _, found = self._reached(order, outputs, strict=False)
        if any(node.op != "placeholder" for node in found):
            raise Unsupported("a leaf that requires gradients, made inside of a checkpoint")
        return found, followed

    def ends(self, graph: torch.fx.Graph, outputs: list[TensorProxy]) -> list[TensorProxy]:
        """The inputs and the new leaves that gradients of `outputs` may flow to; such an output itself, which no operator
        may have used so far."""
        order = {node: k for k, node in enumerate(graph.nodes)}
        _, found = self._reached(order, outputs, strict=False)
        unused = [tensor for tensor in outputs if tensor.node is None and tensor.meta.requires_grad]
        return [*unused, *[self._tensors[node] for node in sorted(found, key=order.__getitem__)]]

    def _reached(
        self, order: dict[torch.fx.Node, int], outputs: list[TensorProxy], follow: Follow | None = None, strict: bool = True
    ) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
        """What gradients of `outputs` flow through, and the ends.
        `strict`: raise where they cannot be followed, instead of taking all operands for reached.
        """
        found: set[torch.fx.Node] = set()
        reached: set[torch.fx.Node] = set()
        #: The place in the graph up to which writes count; for a tensor that is detached, since each of these calls.
        seen: dict[tuple[torch.fx.Node, int], int] = {}
        stack = [(tensor.node, len(order)) for tensor in outputs if tensor.node is not None]
        while stack:
            node, at = stack.pop()
            detached = [order[call] for call in self._detached.get(node, ())]
            since = max([place for place in detached if place < at], default=-1)
            if seen.get((node, since), -1) >= at:
                continue
            seen[node, since] = at
            writes = [write for write in self._writes.get(node, ()) if since < order[write] < at]
            made_leaf = node.meta.get("leaf") and since == max(detached, default=-1)
            if since < 0 or made_leaf:
                reached.add(node)
            if not (_requires_grad(node) or made_leaf or writes):
                continue
            if node.op == "placeholder" or made_leaf:
                if made_leaf and strict and is_view_without_gradients(self._tensors[node]):
                    raise Unsupported("backward() to a view made without gradients")
                if node in self.moved:
                    raise SuspendedInside(self.moved[node], "gradients to a tensor whose data was set since")
                found.add(node)
                continue
            stack += [(operand, order[write]) for write in writes for operand in write.all_input_nodes]
            if since >= 0 or not _requires_grad(node):  # what was written to it is all of its history
                continue
            if strict:
                _check_followed(node)
            operands = node.meta["reaches"] if "reaches" in node.meta else _differentiated(node)
            if node.target is operator.getitem and node.args[0] not in operands:
                reached.add(node.args[0])  # type: ignore[arg-type]
            if "own_gradients" in node.meta and strict:
                if follow is None:
                    raise Unsupported("backward() through a torch.autograd.Function inside of a checkpoint")
                operands = follow(self.applications[node])
            stack += [(operand, order[node]) for operand in operands]
        return reached, found

    def _leaf(self, node: torch.fx.Node) -> TensorProxy:
        tensor = self._tensors[node]
        if not is_leaf(tensor):
            raise Unsupported(
                "backward() to a tensor that was computed outside of the graph",
                "call backward() where the whole computation is in one graph, or outside of the compiled function",
            )
        return tensor


def _requires_grad(node: torch.fx.Node) -> bool:
    """Whether the result of a call took part in autograd; of several results, each has a node of its own."""
    meta: Any = node.meta.get("val")
    return meta.requires_grad if isinstance(meta, TensorMeta) else isinstance(meta, (list, tuple))


def _differentiated(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The operands of a call that gradients of its result may flow to."""
    if name_of(node.target) in _LIKE_ANOTHER:
        first = node.args[0] if node.args else node.kwargs.get("input")  # `f(target=y, input=x)` names it
        return [first] if isinstance(first, torch.fx.Node) else node.all_input_nodes
    if node.target is operator.getitem and name_of(getattr(node.args[0], "target", "")) in _VIEWS_OF_EACH:
        return [node.meta["view_of"][0]] if "view_of" in node.meta else node.all_input_nodes
    return node.all_input_nodes


#: Functions whose second operand gives no more than a shape, a type or a choice.
_LIKE_ANOTHER = frozenset({"expand_as", "view_as", "reshape_as", "type_as", "to", "hinge_embedding_loss"})
#: Functions that give a view of each operand.
_VIEWS_OF_EACH = frozenset({"broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d"})


def _check_followed(node: torch.fx.Node) -> None:
    if node.meta.get("not_followed"):
        raise NotFollowed("backward() through a checkpoint of a functional transform")
    if transformed_graph(node.target) is not None:
        raise NotFollowed("backward() through a functional transform")
    if takes_gradients(node):
        raise NotFollowed("backward() through gradients")
    if node.meta.get("reentrant"):  # its own backward() finds the leaves, and takes no part in `torch.autograd.grad`
        raise Unsupported("backward() through a reentrant checkpoint", "give use_reentrant=False")
    if has_sparse_gradients(node):
        raise Unsupported("backward() that makes a sparse gradient")


def base_of_view(tensor: TensorProxy) -> torch.fx.Node | None:
    """The node of the tensor that another one is a view of for autograd, None where it is none."""
    node, tracked = (None, False) if tensor.node is None else tensor.node.meta.get("view_of", (None, False))
    return node if tracked else None


class ViewGroups:
    """The views that one graph makes: tensors that autograd knows as views of each other begin to require gradients
    together."""

    def __init__(self) -> None:
        self._groups: dict[int, list[TensorProxy]] = {}

    def note_view(self, view: TensorProxy, base: TensorProxy) -> None:
        group = self._groups.setdefault(id(base), [base])
        group.append(view)
        self._groups[id(view)] = group

    def group(self, tensor: TensorProxy) -> list[TensorProxy]:
        """All views of the same tensor, itself among them."""
        return self._groups.get(id(tensor), [tensor])

    def forget(self, tensor: TensorProxy) -> list[TensorProxy]:
        """Take those that require no gradients, but for the tensor, out of its group: they end to be known as its views."""
        group = self.group(tensor)
        forgotten = [view for view in group if view is not tensor and not view.meta.requires_grad]
        group[:] = [view for view in group if view is tensor or view.meta.requires_grad]
        for view in forgotten:
            del self._groups[id(view)]
        return forgotten

    def change(self, tensor: TensorProxy, meta: TensorMeta, computed: bool) -> None:
        """Note that a tensor has other metadata from here on; `computed`: because of what was written to it. Raises
        `Unsupported` where other tensors change with it in ways that capture does not follow."""
        if meta.requires_grad != tensor.meta.requires_grad:
            group = [tensor] if not computed and self._is_alone(tensor) else self.group(tensor)
            if any(other.source is not None for other in group):
                raise Unsupported(REFUSED)
            if not computed and len(group) > 1:
                raise Unsupported("changing whether a tensor with views requires gradients")
            for other in group:
                other.meta = replace(other.meta, requires_grad=meta.requires_grad)
                if other.node is not None:  # its "val" says what the call gave
                    other.node.meta["history"] = meta.requires_grad
            if tensor.node is not None and not computed:
                tensor.node.meta["leaf"] = meta.requires_grad
                tensor.node.meta["asked"] = meta.requires_grad
        tensor.meta = meta

    def _is_alone(self, tensor: TensorProxy) -> bool:
        """Whether a tensor is a view without views of its own: what it is a view of does not change with it."""
        made_of = [base_of_view(other) for other in self.group(tensor) if other is not tensor]
        return base_of_view(tensor) is not None and tensor.node not in made_of
