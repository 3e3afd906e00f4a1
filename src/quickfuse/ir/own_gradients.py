"""What a `torch.autograd.Function` computes, as nodes: `forward`, and `backward`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from ..errors import Unsupported

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


def applied(
    own: OwnGradients, values: dict[Node, Any], run: Callable[[tuple[Node, ...]], None], arguments: Sequence[Any],
    is_tuple: bool,
) -> Any:  # fmt: skip
    """What a call gives: `run` puts what nodes give into `values`. Autograd has a node for the call, as for the user's
    class, that runs those of `backward`."""

    class Applied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *operands: Any) -> Any:
            values.update(zip(own.operands, operands, strict=True))
            run(own.forward)
            results = tuple([values[node] for node in own.results])
            ctx.save_for_backward(*[values[node] for node in own.saved])
            ctx.mark_non_differentiable(*[results[k] for k in own.not_differentiable])
            return results if is_tuple else results[0]

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            values.update(zip(own.saved, ctx.saved_tensors, strict=True))
            values.update(zip(own.gradients, gradients, strict=True))
            run(own.backward)
            return tuple([None if made is None else values[made] for made in own.given])

    return Applied.apply(*[arguments[k] for k in own.positions])


def check_once(own: OwnGradients, nodes: tuple[Node, ...]) -> None:
    """Refuse gradients of gradients where eager does, when these nodes run."""
    if nodes is own.backward and own.once and torch.is_grad_enabled():
        raise Unsupported("gradients of gradients that are differentiable once")
