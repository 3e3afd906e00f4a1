"""Nodes of torch.fx graphs.

`new_node` and `copied_node` take half the time of `Graph.create_node` and `Graph.node_copy`. These look for symbolic numbers
of PyTorch's compiler in all arguments, which there are none of in our graphs, and work out a name from the target. To assign
an attribute of a node is to take it out of a table of its graph, and to put it back.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node
from torch.fx.node import map_arg

#: What assigns these attributes once the node is out of that table, in which neither has a place.
_set_args: Callable[[Node, Any], None] = vars(Node)["args"].__set__
_set_kwargs: Callable[[Node, Any], None] = vars(Node)["kwargs"].__set__


def new_node(graph: Graph, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
    """A node of the kind "call_function" or "call_method" at the graph's point of insertion, named after its target."""
    node = graph.create_node(kind, target, name=_label(target if kind == "call_method" else target.__name__))
    _set_args(node, args)
    if kwargs:
        _set_kwargs(node, kwargs)
    return node


def new_input(graph: Graph, name: str) -> Node:
    """A placeholder at the graph's point of insertion, of this name or one like it.

    `Graph.placeholder` makes small letters of capital ones in the name, but not in the target, which is what generated code
    calls the argument: of `X` and `x`, one would take the other's place there. `self` is an argument of all generated code.
    """
    name = "self_" if name == "self" else name
    node = graph.create_node("placeholder", name, (), {}, name)
    if node.name != name:
        node.target = node.name
    return node


def copied_node(graph: Graph, node: Node, copy_of: Callable[[Node], Any]) -> Node:
    """A node like that of another graph at this graph's point of insertion, with what `copy_of` gives for its operands."""
    args, kwargs = map_arg(node.args, copy_of), map_arg(node.kwargs, copy_of)  # which may make nodes, to come before it
    copy = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    _set_args(copy, args)
    if kwargs:
        _set_kwargs(copy, kwargs)
    copy.meta.update(node.meta)
    return copy


def last_node(graph: Graph) -> Node | None:
    """The node that was added last, if there is any."""
    return next(iter(reversed(graph.nodes)), None)


def nodes_after(graph: Graph, node: Node | None) -> Iterator[Node]:
    """The nodes after one, the last one first; all for None."""
    return itertools.takewhile(lambda later: later is not node, reversed(graph.nodes))


def outputs_of(graph: Graph) -> Any:
    """What a graph returns: nodes, in a tuple or list."""
    return next(node for node in reversed(graph.nodes) if node.op == "output").args[0]


def is_fused_update(node: Node) -> bool:
    """Whether a node calls one of PyTorch's fused optimizers, which changes parameters and states in place: a call that
    has no copies to work on."""
    name = str(getattr(node.target, "__name__", ""))
    return name.startswith("_fused_") and name.endswith("_")


def takes_a_result(node: Node) -> bool:
    """Whether a node takes one of several results of a call."""
    source = node.args[0] if node.target is operator.getitem else None
    return isinstance(source, Node) and isinstance(source.meta.get("val"), (list, tuple))


#: Operators that can be asked for sparse gradients -> the position of the argument that does, and its name.
_SPARSE_FLAGS: dict[Any, tuple[int, str]] = {
    torch.nn.functional.embedding: (6, "sparse"), torch.embedding: (4, "sparse"),
    torch.nn.functional.embedding_bag: (7, "sparse"), torch.embedding_bag: (5, "sparse"),
    torch.gather: (3, "sparse_grad"), "gather": (3, "sparse_grad"),
}  # fmt: skip


def has_sparse_gradients(node: Node) -> bool:
    """Whether a call asks for sparse gradients of its operands."""
    position, name = _SPARSE_FLAGS.get(node.target, (0, ""))
    return bool(name) and bool(node.kwargs.get(name) or (len(node.args) > position and node.args[position]))


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
