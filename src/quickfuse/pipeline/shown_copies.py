"""Inputs that a graph shows as another type and only reads so, before it changes them: an optimizer's step after
`torch.view_as_complex(self.kernel)`. A copy is shown in place of each, as no kernel sees memory as two types."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Graph, Node

from ..ir.arguments import leaves
from ..ir.effects import NO_EFFECTS
from ..ir.gradients import takes_gradients
from ..ir.nodes import new_node, outputs_of
from ..ir.sharing import memory_of, written_operands
from ..ir.values import TensorMeta


def show_copies(graph: Graph) -> None:
    """Let views as another type be views of copies, where that makes no difference."""
    nodes = list(graph.nodes)
    shown = [node for node in nodes if _shows_an_input_as_another_type(node)]
    places = {node: k for k, node in enumerate(nodes)} if shown else {}
    for view in shown:
        if _is_only_read(view, nodes, places):
            _show_copy(view)


def _shows_an_input_as_another_type(node: Node) -> bool:
    origin = node.meta.get("view_of")
    metas = [node.meta.get("val"), origin[0].meta.get("val")] if origin is not None else []
    dtypes = {meta.dtype for meta in metas if isinstance(meta, TensorMeta)}
    return len(dtypes) == 2 and memory_of(node).op == "placeholder"


def _is_only_read(view: Node, nodes: list[Node], places: dict[Node, int]) -> bool:
    """Whether nothing looks at a view after its memory is changed, nor changes it by way of the view: neither the calls of
    the graph nor a backward pass, which eager refuses then."""
    source = view.args[0] if view.args else None
    if not isinstance(source, Node) or len(view.all_input_nodes) > 1 or not _meta(source).is_contiguous:
        return False  # of other strides a copy would have others
    behind = nodes[places[view] :]
    seen, computed = {view}, {view}
    for node in behind:
        origin = node.meta.get("view_of")
        if origin is not None and origin[0] in seen:
            seen.add(node)
        if not computed.isdisjoint(node.all_input_nodes):
            computed.add(node)
    outputs = outputs_of(view.graph)
    if not seen.isdisjoint(outputs) or any(not seen.isdisjoint(written_operands(node)) for node in nodes):
        return False
    memory = memory_of(view)
    changed = next((places[node] for node in behind if memory in map(memory_of, written_operands(node))), None)
    if changed is None:
        return False  # it may stay as it is
    readers = [places[user] for node in seen for user in node.users]
    gradients = [node for node in nodes if takes_gradients(node)]
    ended = {n for call in gradients if not any(map(call.kwargs.get, _KEEPING)) for n in leaves(call.args[:1])}
    left = [n for n in outputs if isinstance(n, Node) and n in computed and _needs_gradients(n) and n not in ended]
    return not left and all(place < changed for place in [*readers, *map(places.__getitem__, gradients)])


#: Arguments with which a backward pass keeps its graph for another one.
_KEEPING = ("retain_graph", "create_graph")


def _show_copy(view: Node) -> None:
    source: Node = view.args[0]  # type: ignore[assignment]
    with view.graph.inserting_before(view):
        copy = new_node(view.graph, "call_method", "clone", (source,))
    kept = {key: view.meta[key] for key in ("trace", "performed", "inference") if key in view.meta}
    given = replace(_meta(source), requires_grad=_meta(view).requires_grad)
    copy.meta.update(kept, val=given, effects=NO_EFFECTS, leaf=False)
    view.args = (copy, *view.args[1:])
    view.meta["view_of"] = (copy, view.meta["view_of"][1])


def _meta(node: Node) -> TensorMeta:
    return node.meta["val"]  # type: ignore[no-any-return]


def _needs_gradients(node: Node) -> bool:
    meta = node.meta.get("val")
    return isinstance(meta, TensorMeta) and meta.requires_grad
