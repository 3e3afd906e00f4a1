"""Operators that draw random numbers, and the order in which they draw them."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..errors import Unsupported
from ..ir.effects import NO_EFFECTS
from ..ir.random_state import without_state
from ..ir.values import TensorMeta


def order_in_memory(meta: TensorMeta) -> list[int]:
    """The axes of a tensor, from those whose neighbours are farthest apart."""
    return sorted(range(meta.ndim), key=lambda k: (meta.shape[k] == 1, -meta.stride[k]))


def check_order(targets: list[Any], row_major: bool = False) -> None:
    """See to it that tensors which are filled with random numbers have no gaps: a copy is filled in the same order then.
    What an operator makes of sizes alone is `row_major`, and so must they be."""
    for target in targets:
        if target is not None and target.meta.nbytes != target.meta.span_bytes:
            raise Unsupported("random numbers in memory with gaps")
        if target is not None and row_major and not target.meta.is_contiguous:
            raise Unsupported("random numbers in memory of another order")


def draws_random_numbers(node: Node) -> bool:
    """Whether a node draws random numbers."""
    seeded = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
    return seeded and not is_deterministic(node.target, node.args)


def is_deterministic(function: Any, args: Any) -> bool:
    """Whether an operator that is said to draw random numbers does not: attention without dropout, and its gradients, which
    are told what was drawn."""
    if any(argument.name == "philox_seed" for argument in function._schema.arguments):
        return True
    for position, argument in enumerate(function._schema.arguments):
        if argument.name in ("dropout_p", "p"):
            value = args[position] if position < len(args) else argument.default_value
            return value == 0
    return False


def leave_out_states(graph: Graph) -> None:
    """Let the gradients of attention that has drawn nothing take no random state from forward."""
    for node in graph.nodes:
        call = without_state(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
        if call is not None and (args := call.without_state(node.args)) is not None:
            node.target, node.args, node.meta["effects"] = call, args, NO_EFFECTS
