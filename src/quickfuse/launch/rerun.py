"""Running a captured graph once more, in eager, from inputs and a random state as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..ir.random_state import RandomState, set_states, states_of

#: Of inputs up to this size that the graph changes, the old contents are held for this as well, if gradients depend on them.
CONTENTS_BYTES = 1 << 20


class WithContents(torch.autograd.Function):
    """A tensor as it was: its gradients, with other contents."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
        return contents.detach().clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def small_copy(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy of a tensor, if it is small."""
    return tensor.detach().clone() if tensor.nbytes <= CONTENTS_BYTES else None


@contextlib.contextmanager
def outside_batches() -> Iterator[None]:
    """Run operators as outside of `is_grads_batched=True`, within which PyTorch refuses to draw random numbers."""
    depth = torch._C._vmapmode_increment_nesting()
    for _ in range(depth):
        torch._C._vmapmode_decrement_nesting()
    try:
        yield
    finally:
        for _ in range(depth - 1):
            torch._C._vmapmode_increment_nesting()


@contextlib.contextmanager
def random_state_of_forward(state: RandomState | None) -> Iterator[None]:
    """Draw the random numbers again that were drawn from this state."""
    now = states_of([generator for generator, _ in state or ()])
    try:
        set_states(state or [])
        yield
    finally:
        set_states(now)
