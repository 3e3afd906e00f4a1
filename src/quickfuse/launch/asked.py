"""What the backward that runs asks for.

Autograd tells which nodes it comes to. A node of several results does not tell of which of them something is asked that
these lead to, and a node that is asked for itself looks like one from which the way leads on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

#: A node of autograd's, and one of its results.
Edge = tuple[Any, int]

#: The edges that one result of a node leads to, for nodes of calls: by the class of the node.
LEADS_TO: dict[type, Callable[[Any, int], Iterable[Edge]]] = {}


def is_visited(node: Any) -> bool:
    """Whether the backward that runs comes to a node."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # it is a leaf whose gradient is asked for
        return True


def is_asked(node: Any, output: int) -> bool:
    """Whether the backward that runs asks for a result of a node, or for what that leads to: also by way of other calls, of
    which it may ask for results that have nothing to do with this one."""
    waiting: list[Edge] = [(node, output)]
    passed: dict[Edge, bool] = {}
    while waiting:
        edge = waiting.pop()
        if edge in passed:
            continue
        following = [e for e in _leads_to(edge) if e[0] is not None]
        if not following and edge[0] is not node:
            return True  # a leaf
        visited = [e for e in following if is_visited(e[0])]
        passed[edge] = bool(visited)
        waiting += visited
    asked = asked_for()
    if asked is None:  # where it goes no further, it may be for what is there
        return not all(passed.values())
    return not passed.keys().isdisjoint(map(edge_of, asked))


def _leads_to(edge: Edge) -> Iterable[Edge]:
    node, output = edge
    known = LEADS_TO.get(type(node))
    return node.next_functions if known is None else known(node, output)


def edge_of(tensor: torch.Tensor) -> Edge:
    return tensor.grad_fn, tensor.output_nr


def asked_for() -> Sequence[torch.Tensor] | None:
    """The tensors whose gradients are asked for in the backward that runs; None where that is not known. Autograd itself
    does not tell a node that is asked for from one after which there is something that is."""
    calls = _backward_calls(sys._getframe(1))
    if not calls:  # on a GPU, backward runs in a thread of its own, and the one that asks waits
        calls = [call for frame in sys._current_frames().values() for call in _backward_calls(frame)]
    given = calls[0].get("args", ()) if len(calls) == 1 else ()  # with one inside of another, nodes of either may run here
    if len(given) < 4:
        return None
    tensors = given[3]
    known = isinstance(tensors, tuple) and all(isinstance(t, torch.Tensor) for t in tensors)
    return tensors if known else None


def begins_at(node: Any, output: int) -> bool:
    """Whether a backward that runs was begun from a result of a node itself, not from what was computed from it."""
    calls = [call for frame in sys._current_frames().values() for call in _backward_calls(frame)]
    roots = [tensor for call in calls for tensor in call.get("t_outputs", ())]
    return (node, output) in map(edge_of, roots)


def _backward_calls(frame: Any) -> list[dict[str, Any]]:
    """The arguments of the calls of autograd's engine that a thread is in, by name."""
    calls = []
    while frame is not None:
        if frame.f_code is _RUN_BACKWARD:
            calls.append(frame.f_locals)
        frame = frame.f_back
    return calls


_RUN_BACKWARD = torch.autograd.graph._engine_run_backward.__code__
