"""`x[k]` with a number in a tensor `k`: for PyTorch a view, of which only running tells where it lies.

Where nobody can tell a view from a copy, it is the elements at an index, which have a formula and gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Node

from ..ir.sharing import effects_in, tensor_operands, written_operands
from ..ir.values import TensorMeta
from .traced import TracedTensor

_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8})


def selected(node: Node, x: Any, index: Any) -> Any:
    """What a node gives that takes `x[index]`; None where that is left to PyTorch."""
    parts = [*index] if isinstance(index, tuple) else [index]
    if type(x) is not TracedTensor or not any(map(_is_number, parts)) or not _may_be_copy(node):
        return None
    axis = 0
    for k, part in enumerate(parts):
        if part is Ellipsis:
            axis = x.ndim - sum(map(_axes, parts[k + 1 :]))
        if _is_number(part):
            x = x[(*[slice(None)] * axis, part.reshape(1).clone())]  # eager keeps the number, whatever becomes of `k`
            parts[k] = 0
        axis += _axes(part) if part is not Ellipsis else 0
    made, meta = x[tuple(parts)], node.meta["val"]
    if made.meta.stride == meta.stride or made.meta.shape != meta.shape:
        return made
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).copy_(made)


def _is_number(part: Any) -> bool:
    return type(part) is TracedTensor and not part.ndim and part.dtype in _WHOLE


def _axes(part: Any) -> int:
    """How many axes a part of an index is about."""
    if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
        return part.ndim
    return 0 if part is None or isinstance(part, bool) else 1


def _may_be_copy(node: Node) -> bool:
    """Whether nothing is stored to what `node` gives, or to what that is a view of, as long as it is used. If it is a
    result, nobody may have what it is a view of, nor another view of that."""
    uses = [*_uses(node)]
    last = max((user for _, user, of_node in uses if of_node), default=node)
    if any(node < user <= last and _changes(user, shown) for shown, user, _ in uses):
        return False
    return last.op != "output" or (_root(node).op != "placeholder" and sum(user is last for _, user, _ in uses) == 1)


def _uses(node: Node) -> Iterator[tuple[Node, Node, bool]]:
    """The nodes that share the memory of `node`, each with one that uses it, and whether they are views of `node`."""
    root = _root(node)
    seen: dict[Node, bool] = {root: root is node}
    stack = [root]
    while stack:
        shown = stack.pop()
        for user in shown.users:
            yield shown, user, seen[shown]
            if user not in seen and _shows(user, shown):
                seen[user] = seen[shown] or user is node
                stack.append(user)


def _shows(user: Node, operand: Node) -> bool:
    """Whether what `user` gives may lie in the memory of its operand."""
    if _shown(user) is operand:
        return True
    operands = tensor_operands(user)
    return any(k is not None and operands[k] is operand for k in effects_in(user).memory)


def _changes(user: Node, operand: Node) -> bool:
    operands = tensor_operands(user)
    changed = [*written_operands(user), *[operands[k] for k, _ in effects_in(user).reshaped]]
    return any(one is operand for one in changed)


def _shown(node: Node) -> Node | None:
    """The call of whose results a node is one."""
    source = node.args[0] if node.target is operator.getitem else None
    return source if isinstance(source, Node) and not isinstance(source.meta.get("val"), TensorMeta) else None


def _root(node: Node) -> Node:
    """The node that made the memory in which the result of another one lies."""
    while True:
        source = _shown(node)
        memory = effects_in(source or node).memory
        at = memory[node.args[1]] if source is not None and len(memory) > node.args[1] else next(iter(memory), None)  # type: ignore
        if at is None:
            return node
        node = tensor_operands(source or node)[at]
