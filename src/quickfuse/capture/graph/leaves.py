"""Tensors from outside that begin or end to require gradients while the program runs, such as the weights of the critic in
adversarial training, or images that are attacked.

While the graph runs, all of these require gradients: those that begin to are changed before it, and those that end to
are changed after it, with the other effects. Where the program uses one while it does not require any, the graph uses what
`detach()` gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch

from ...errors import Unsupported
from ...ir.effects import Effects
from ...ir.nodes import new_node
from ...ir.sharing import base_of
from ..symbolic import TENSOR_TYPES, TensorProxy
from ..symbolic.raising import SuspendedInside
from .history import REFUSED


def changes_outside(tensor: TensorProxy) -> bool:
    """Whether a tensor is a leaf from outside that may begin and end to require gradients: others are the operator's work,
    which may raise."""
    real = tensor.real
    return tensor.source is not None and real is not None and real.is_leaf and (
        real.is_floating_point() or real.is_complex()
    )  # fmt: skip


class _Outlived:
    """What is known of a view that was made of a tensor before that began to require gradients. Eager says that the view
    requires them, too, from there on, and finds out how it was made once something is written to either: such a view is
    mostly done with. What uses it still makes the segment end in front of the change."""

    __slots__ = ("stop_at",)

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at

    def refuse(self) -> NoReturn:
        raise SuspendedInside(self.stop_at, "changing whether a tensor with views requires gradients")

    def __getattr__(self, name: str) -> NoReturn:
        self.refuse()


class Leaves:
    """The tensors of one graph that begin or end to require gradients."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        #: Those that required none when the graph began.
        self.begun: list[TensorProxy] = []
        #: The inputs of the graph that they are, by the stand-ins' identity.
        self._inputs: dict[int, torch.fx.Node] = {}

    def change(self, tensor: TensorProxy, wanted: bool) -> None:
        """Let a tensor begin or end to require gradients. Raises `Unsupported` where more changes with it than capture
        follows."""
        graph, real = self._graph, tensor.real
        in_inference = real is None or real.is_inference() or graph.inference.on or torch.is_inference_mode_enabled()
        if tensor.cls not in TENSOR_TYPES or "data" in tensor.attributes or graph.nested or in_inference:
            raise Unsupported(REFUSED)
        if wanted:
            for view in graph.views.forget(tensor):
                view.node, view.meta = None, _Outlived(graph.program.performed)
            self._begin(tensor)
        else:
            self._end(tensor)

    def move(self, leaf: TensorProxy, data: TensorProxy) -> None:
        """Give a leaf that was made inside other memory, that of `data`. To the graph, it is another leaf from then on: what
        was computed from the old one may not be differentiated any more."""
        graph, old = self._graph, leaf.node
        if len(graph.views.group(leaf)) > 1:
            raise Unsupported("setting the data of a tensor made inside that has views")
        graph.call("call_method", "requires_grad_", (data,), {})
        graph.operators -= 1  # the program has none here
        leaf.node, leaf.meta = data.node, data.meta
        graph.history.note_tensor(data.node, leaf)
        graph.history.note_moved(old, graph.program.performed)

    def check_parameters(self, outputs: list[Any]) -> None:
        """See to it that no parameter made inside outlives the graph beside what has gradients to it: the graph makes a
        plain tensor in its place. Raises `SuspendedInside` where one does: the segment is to end in front of it."""
        kept = [output for output in outputs if type(output) is TensorProxy and output.meta.requires_grad]
        for made in [tensor for tensor in kept if tensor.cls is torch.nn.Parameter and tensor.source is None]:
            others = [tensor for tensor in kept if tensor is not made]
            if others and any(end is made for end in self._graph.history.ends(self._graph.graph, others)):
                raise SuspendedInside(made.node.meta["performed"], "a parameter made inside, and what was computed from it")

    def check_moved(self, outputs: list[Any]) -> None:
        """See to it that nothing outlives the graph that has gradients to a leaf as it was before it got other memory, and
        that these can still be taken."""
        history = self._graph.history
        for output in outputs if history.moved else ():
            if type(output) is TensorProxy and output.meta.requires_grad:
                try:
                    history.ends(self._graph.graph, [output])
                except SuspendedInside:
                    if not self._graph.is_used_up(output):
                        raise

    def check_views(self, outputs: list[Any]) -> None:
        """See to it that no view of a tensor that has ended to require gradients outlives the graph, which has made one of
        what `detach()` gives. Raises `SuspendedInside` where one does: the segment is to end in front of it."""
        for output in outputs:
            node = output.node if type(output) is TensorProxy else None
            if node is None and type(output) is TensorProxy and type(output.meta) is _Outlived:
                output.meta.refuse()
            if node is not None and node is not (base := base_of(node)) and base.meta.get("ended"):
                raise SuspendedInside(node.meta["performed"], "a view of a tensor that has ended to require gradients")

    def _begin(self, tensor: TensorProxy) -> None:
        known = self._inputs.get(id(tensor))
        meta = replace(tensor.meta, requires_grad=True)
        if known is None:
            self.begun.append(tensor)
            known = tensor.node
            if known is not None:
                self._detach_uses(known)
                known.meta["val"] = meta
                self._graph.note_input_meta(known, meta)
                self._inputs[id(tensor)] = known
        tensor.node, tensor.meta = known, meta

    def _end(self, tensor: TensorProxy) -> None:
        self._inputs[id(tensor)] = self._graph.node_of(tensor)
        tensor.node = self._graph.call("call_method", "detach", (tensor,), {}).node
        tensor.node.meta["ended"] = True
        self._graph.operators -= 1  # the program has none here
        tensor.meta = replace(tensor.meta, requires_grad=False)

    def _detach_uses(self, node: torch.fx.Node) -> None:
        """What used an input so far uses it without a history."""
        graph = self._graph
        meta = node.meta["val"]
        with graph.behind_inputs():
            detached = new_node(graph.graph, "call_method", "detach", (node,))
        detached.meta.update(val=meta, effects=Effects(memory=(0,)), leaf=False, view_of=(node, False))
        detached.meta.update(trace=node.meta["trace"], performed=node.meta["performed"])
        node.replace_all_uses_with(detached, lambda user: user is not detached)
        graph.history.note_tensor(detached, TensorProxy(meta, detached))
