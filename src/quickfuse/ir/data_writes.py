"""`x.data` between two graphs: what is written to it, autograd does not notice, and what it has saved of `x` is another.

A compiled graph keeps other tensors than eager for its backward. So where a program gets hold of a tensor's `data` while
gradients through it may still be taken, the compiled calls that have computed its values are told beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .frame import FrameState


def tell_calls(tensor: torch.Tensor, frames: Iterable[FrameState]) -> None:
    """Tell the compiled calls by which the frames' values were computed, and those in their lists and dictionaries."""
    values = [tensor, *[value for frame in frames for value in (*frame.locals, *frame.stack)]]
    for holder in {id(found): found for found in _calls(_tensors_in(values))}.values():
        holder.call.follow_data(holder, tensor)


def node_of_call(call: Any, results: Iterable[Any]) -> Any:
    """What keeps something for the backward of a call that has given these results; None if nothing does."""
    for result in results:
        if isinstance(result, torch.Tensor) and result.requires_grad:
            computed = result if result._base is None else result._base
            holder = _holder(computed.grad_fn)
            if getattr(holder, "call", None) is call:
                return holder
    return None


def _tensors_in(values: Iterable[Any], depth: int = 3) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and type(value) in (list, tuple, dict):
            yield from _tensors_in(value.values() if type(value) is dict else value, depth - 1)


def _calls(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """What keeps something for the backward of the compiled calls that gradients of tensors flow through."""
    stack = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        holder = _holder(node)
        if hasattr(getattr(holder, "call", None), "follow_data"):
            yield holder
        stack += [following for following, _ in node.next_functions]


def _holder(node: Any) -> Any:
    """What keeps something for the backward of a call, of which a node is one."""
    state = getattr(node, "state", node)
    return getattr(state, "node", state)  # of a result that depends on others
