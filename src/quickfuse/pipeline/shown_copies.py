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
from .parts import requires_grad


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
    seen, computed = {view}, {memory_of(view)}
    for node in behind:
        origin = node.meta.get("view_of")
        if origin is not None and origin[0] in seen:
            seen.add(node)
        if not computed.isdisjoint(map(memory_of, node.all_input_nodes)):
            # `total += loss` makes a history of `total`.
            computed |= {memory_of(node), *map(memory_of, written_operands(node))}
    outputs = outputs_of(view.graph)
    if not seen.isdisjoint(outputs) or any(not seen.isdisjoint(written_operands(node)) for node in nodes):
        return False
    # Another input may lie in the same memory, which is known when the graph runs.
    written = {node: {memory_of(operand) for operand in written_operands(node)} for node in nodes}
    changed = next((places[node] for node in behind if any(memory.op == "placeholder" for memory in written[node])), None)
    if changed is None:
        return False  # it may stay as it is
    readers = [places[user] for node in seen for user in node.users]
    gradients = [node for node in nodes if takes_gradients(node)]
    whole = [call for call in gradients if _ends_all(call, nodes[: places[call]])]
    ended = {n for call in whole for n in leaves(call.args[0]) if isinstance(n, Node)}
    ended -= {n for n in ended if any(memory_of(n) in written[node] for node in behind)}  # it may have got another history
    tracked = computed & set().union({memory_of(node) for node in nodes if requires_grad(node)}, *written.values())
    left = [n for n in outputs if isinstance(n, Node) and memory_of(n) in tracked and n not in ended]
    return not left and all(place < changed for place in [*readers, *map(places.__getitem__, gradients)])


def _ends_all(call: Node, before: list[Node]) -> bool:
    """Whether a backward pass frees all that its tensors were computed of, as `backward()` does: gradients of some of the
    leaves keep what leads to others."""
    if any(map(call.kwargs.get, ("retain_graph", "create_graph"))) or len(call.args) < 2:
        return False
    asked = {memory_of(leaf) for leaf in leaves(call.args[1]) if isinstance(leaf, Node)}
    reached = {memory_of(leaf) for leaf in leaves(call.args[0]) if isinstance(leaf, Node)}
    for node in reversed(before):
        if reached.isdisjoint((memory_of(node), *map(memory_of, written_operands(node)))):
            continue
        reached |= set(map(memory_of, node.all_input_nodes))
        starts = requires_grad(node) and not any(map(requires_grad, node.all_input_nodes))
        if starts and memory_of(node) not in asked:
            return False
    return True


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
