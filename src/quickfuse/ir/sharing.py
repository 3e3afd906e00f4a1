"""What tensors of a captured graph share besides memory: the tensor that they are views of, and the count of their changes.

PyTorch counts how often a tensor was changed in place (`Tensor._version`). Views share the count of what they are views of
(`Tensor._base`), and so does the result of `detach`, which is no view. `Tensor.data` shares memory alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from .arguments import leaves
from .effects import NO_EFFECTS, Effects
from .values import TensorMeta

#: Operators after which their operand looks at its memory in another way.
SEEN_IN_PLACE = frozenset("t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_".split())


def base_of(node: Node) -> Node:
    """The node of the tensor that a node's is a view of, itself if it is no view."""
    while (origin := node.meta.get("view_of")) is not None and origin[1]:
        node = origin[0]
    return node


def memory_of(node: Node) -> Node:
    """The node of the tensor in whose memory another one lies, whatever autograd knows of that."""
    while (origin := node.meta.get("view_of")) is not None:
        node = origin[0]
    return node


def counter_of(node: Node) -> Node:
    """The node of the tensor whose count of changes a node's shares."""
    while (origin := node.meta.get("view_of")) is not None and not takes_data(node):
        node = origin[0]
    return node


def takes_data(node: Node) -> bool:
    """Whether a node is `x.data`."""
    return node.target is getattr and node.args[1] == "data"


def count_changes(tensor: torch.Tensor, times: int) -> None:
    """Let a tensor tell that it was changed so often, where kernels did so in memory that it got later as its `data`."""
    for _ in range(times):
        torch._C._increment_version([tensor])


def tensor_operands(node: Node) -> list[Node]:
    """A call's tensors, in the order in which `Effects` numbers them."""
    return [leaf for leaf in leaves((node.args, node.kwargs)) if _is_tensor(leaf)]


def effects_in(node: Node) -> Effects:
    """What a captured node does to its operands' memory."""
    return node.meta.get("effects") or NO_EFFECTS


def written_operands(node: Node) -> list[Node]:
    """The operands that a call changes in place."""
    operands = tensor_operands(node)
    return [operands[k] for k in effects_in(node).written]


def changed_as_another_type(nodes: Iterable[Node]) -> set[Node]:
    """The nodes that show an input's memory as another type, as `torch.view_as_real` does, where it is changed in place as
    either."""
    nodes = list(nodes)
    views = {node for node in nodes if _shows_another_type(node)}
    changed = {base_of(operand) for node in nodes for operand in written_operands(node)} if views else set()
    return {view for view in views if base_of(view) in changed and base_of(view).op == "placeholder"}


def _shows_another_type(node: Node) -> bool:
    origin, shown = node.meta.get("view_of"), node.meta.get("val")
    if origin is None or not origin[1] or not isinstance(shown, TensorMeta):
        return False
    return bool(origin[0].meta["val"].dtype != shown.dtype)


def changes(graph: Graph) -> Counter[Node]:
    """How often a graph changes tensors in place, by the nodes that `counter_of` gives."""
    found: Counter[Node] = Counter()
    for node in graph.nodes:
        effects: Effects | None = node.meta.get("effects")
        if effects is not None and effects.counted:
            operands = tensor_operands(node)
            found.update(counter_of(operands[k]) for k in effects.counted)
    return found


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, Node) and isinstance(argument.meta.get("val"), TensorMeta)
