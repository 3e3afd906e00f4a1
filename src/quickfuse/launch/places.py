"""Places among the inputs and outputs of a graph: what is picked by them, and on which inputs gradients depend."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

from ..ir.gradients import Differentiated
from ..ir.nodes import outputs_of


def inputs_that_matter(made: Differentiated) -> list[set[int]]:
    """The inputs, by position, on whose contents the gradients of each differentiable output depend: what backward reads is
    computed of them."""
    placeholders = made.forward.find_nodes(op="placeholder")
    if made.has_tail:
        return [{*range(len(placeholders))} for _ in made.differentiable]
    behind: dict[Node, int] = {node: 1 << k for k, node in enumerate(placeholders)}  # a bit for each input
    for node in made.forward.nodes:
        if node.op not in ("placeholder", "output"):
            behind[node] = functools.reduce(operator.or_, [behind[operand] for operand in node.all_input_nodes], 0)
    returned = outputs_of(made.forward)
    masks = [0] * len(made.differentiable)
    for one, needed_by in zip(made.saved, made.needed_by, strict=True):
        for number in needed_by:
            masks[number] |= 1 << one.index if one.of_input else behind[returned[one.index]]
    return [{k for k in range(len(placeholders)) if mask >> k & 1} for mask in masks]


def picker(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks the values at these indices."""
    if len(indices) > 1:
        return operator.itemgetter(*indices)
    return operator.itemgetter(slice(indices[0], indices[0] + 1) if indices else slice(0))


def tensor_positions(is_number: list[bool]) -> dict[int, int]:
    """The index of each tensor input among the tensors, by its position among all inputs."""
    positions: dict[int, int] = {}
    for position, number in enumerate(is_number):
        if not number:
            positions[position] = len(positions)
    return positions
