"""Nodes of torch.fx graphs.

`new_node` takes half the time of `Graph.create_node` with the same arguments. That method looks for symbolic numbers of
PyTorch's compiler in all arguments, which there are none of in our graphs, and works out a name from the target.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from torch._ops import OpOverload
from torch.fx import Graph, Node


def new_node(graph: Graph, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
    """A node of the kind "call_function" or "call_method" at the graph's point of insertion, named after its target."""
    node = graph.create_node(kind, target, name=_label(target if kind == "call_method" else target.__name__))
    node.args = args
    if kwargs:
        node.kwargs = kwargs
    return node


def outputs_of(graph: Graph) -> Any:
    """What a graph returns: nodes, in a tuple or list."""
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def is_fused_update(node: Node) -> bool:
    """Whether a node calls one of PyTorch's fused optimizers, which changes parameters and states in place: a call that
    has no copies to work on."""
    return str(getattr(node.target, "__name__", "")).startswith("_fused_")


@lru_cache(maxsize=4096)
def is_view(target: Any) -> bool:
    """Whether `target` is an operator of ATen that returns its first operand's memory, and leaves it unchanged."""
    returns: Any = target._schema.returns if isinstance(target, OpOverload) else ()
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


@lru_cache(maxsize=1024)
def _label(name: str) -> str:
    """What torch.fx names nodes after: snake case without what is special."""
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", re.sub(r"\W+", "_", name)).lower()
