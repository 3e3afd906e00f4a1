"""Functional transforms in a graph: a node whose target is a function that calls one of PyTorch's transforms."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch.fx import Graph

_ATTRIBUTE = "__quickfuse_transforms__"


def note_transform(function: FunctionType, graph: Graph) -> None:
    """Note that a function calls a transform of the function that is captured in `graph`."""
    function.__dict__[_ATTRIBUTE] = graph


def transformed_graph(target: Any) -> Graph | None:
    """The graph of the function that a node's target transforms, None where it is no transform."""
    return target.__dict__.get(_ATTRIBUTE) if type(target) is FunctionType else None
