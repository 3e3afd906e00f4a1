"""Numbers that one part of a captured graph takes out of tensors, and another part uses: see `subgraphs`."""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Graph, Node

from ..ir.effects import NO_EFFECTS, Effects
from ..ir.nodes import new_node
from ..ir.sharing import memory_of, tensor_operands, written_operands
from ..ir.values import NumberMeta, TensorMeta


def note_given(node: Node) -> None:
    """A number of a part that came out of a tensor before it is like any other that is given, and so is what is computed of
    it."""
    number = node.meta.get("val")
    if isinstance(number, NumberMeta) and number.from_tensor:
        metas = [operand.meta["val"] for operand in node.all_input_nodes]
        if all(isinstance(meta, NumberMeta) and not meta.from_tensor for meta in metas):
            node.meta["val"] = NumberMeta(number.kind)


def keep_numbers(graph: Graph) -> None:
    """Let numbers be taken out of copies of tensors that are changed afterwards: parts may take them out once more."""
    changed: set[Node] = set()
    for node in reversed(graph.nodes):
        changed.update(map(memory_of, written_operands(node)))
        number = node.meta.get("val")
        if not isinstance(number, NumberMeta) or not number.from_tensor:
            continue
        for tensor in tensor_operands(node):
            if memory_of(tensor) in changed:
                node.replace_input_with(tensor, _copied_before(node, tensor))


def _copied_before(node: Node, tensor: Node) -> Node:
    meta: TensorMeta = tensor.meta["val"]
    copied = tensor
    with node.graph.inserting_before(node):
        for name, effects in (("detach", Effects(memory=(0,))), ("clone", NO_EFFECTS)):
            copied = new_node(node.graph, "call_method", name, (copied,))
            copied.meta.update(val=replace(meta, requires_grad=False), effects=effects)
    return copied
