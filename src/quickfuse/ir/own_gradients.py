"""What a `torch.autograd.Function` computes, as nodes: `forward`, and `backward`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

_NAME = "__quickfuse_own_gradients__"


@dataclass(eq=False, slots=True)
class OwnGradients:
    """The nodes of a graph of their own.

    `operands` are placeholders for tensors and numbers that the call gets, as its arguments at `positions`; `gradients`
    those for the gradients of `results`. `saved` are the tensors that `forward` leaves for `backward`; `given` are the
    gradients that that returns for the operands, or None. `once`: gradients are not taken of its gradients. `failed`: a
    trace came to what cannot be recorded, so that the user's class is to be called.
    """

    positions: tuple[int, ...]
    operands: tuple[Node, ...]
    forward: tuple[Node, ...]
    results: tuple[Node, ...]
    not_differentiable: tuple[int, ...]
    saved: tuple[Node, ...]
    gradients: tuple[Node, ...]
    backward: tuple[Node, ...]
    given: tuple[Node | None, ...]
    once: bool
    failed: bool = False


def note_own_gradients(function: Callable[..., Any], found: OwnGradients) -> None:
    """Note on what a node calls what that computes."""
    function.__dict__[_NAME] = found


def own_gradients(function: Any) -> OwnGradients | None:
    """What was noted, if anything was."""
    found: OwnGradients | None = getattr(function, "__dict__", {}).get(_NAME)
    return None if found is None or found.failed else found
