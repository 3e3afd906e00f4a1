"""Operators that PyTorch composes of others, as graphs of these: what a call of one comes to.

The recorder that traces gradients sees through such operators anyway. Here it runs for a single call, without gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ir.arguments import leaves, map_leaves
from ..ir.memo import Memo
from ..ir.nodes import new_input
from ..ir.values import TensorMeta
from ..ir.warning_filters import silenced
from .recompute import memory_root
from .recorder import Recorder
from .recurrent_cells import composed
from .traced import TracedTensor, key_of

_memo = Memo()  # of `Graph | None`


def expand(function: Callable[..., Any], args: Any, kwargs: Any) -> Graph | None:
    """A call as a graph of ATen operators, without changes in place. `args` and `kwargs` have a `TensorMeta` in place of
    each tensor, and each is a placeholder; the graph returns the tensors that the call does, in order.

    None where the call does something else than making new tensors of its operands.
    """
    key = (function, key_of(args), key_of(kwargs), torch.get_default_dtype())
    try:
        known = _memo.get(key, _memo)
    except TypeError:  # an operand that is no plain value
        return None
    if known is _memo:
        known = _memo[key] = _trace(function, args, kwargs)
    return known  # type: ignore[return-value]


def _trace(function: Callable[..., Any], args: Any, kwargs: Any) -> Graph | None:
    graph = Graph()
    recorder = Recorder(graph, lambda value: None)

    def traced(value: Any) -> Any:
        if not isinstance(value, TensorMeta):
            return value
        node = new_input(graph, f"operand{len(graph.nodes)}")
        node.meta["val"] = value
        return recorder.input(node, value, 0, False)

    args, kwargs = map_leaves(traced, args), map_leaves(traced, kwargs)
    try:
        with torch.no_grad(), silenced(), recorder:
            returned = composed(function, args)(*args, **kwargs)
        results = list(_tensors(returned))
        if recorder.draws or len({id(t.memory) for t in results}) < len(results):
            return None
        if any(type(t) is not TracedTensor or t.memory.input is not None for t in results):
            return None
        if any(t.memory.version for t in _tensors((args, kwargs))):
            return None
        graph.output(tuple(_apart(recorder, [recorder.node_of(t) for t in results])))
    except Exception:  # what is wrong with the call, the call itself will say
        return None
    if any(n.op == "call_function" and n.meta["val"] in (None, ()) for n in graph.nodes):  # it checks something
        return None
    graph.eliminate_dead_code()
    return graph


def _apart(recorder: Recorder, nodes: list[Node]) -> list[Node]:
    """The results, with copies of those that would lie in an operand's memory, or in that of another result."""
    roots: set[Node] = set()
    made = []
    for node in nodes:
        root = memory_root(node)
        made.append(recorder.emit(torch.ops.aten.clone.default, node) if root.op == "placeholder" or root in roots else node)
        roots.add(root)
    return made


def _tensors(value: Any) -> Iterator[Any]:
    return (leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor))
