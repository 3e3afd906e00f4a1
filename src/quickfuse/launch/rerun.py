"""Running a captured graph once more, in eager, from inputs and a random state as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

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


#: The states of generators of random numbers, with the generators.
RandomState = list[tuple[torch.Generator, torch.Tensor]]


def current_random_state(devices: list[int], others: list[torch.Generator]) -> RandomState:
    """The states of PyTorch's own generators, for the CPU and these GPUs, and of others."""
    own = [torch.default_generator, *[torch.cuda.default_generators[k] for k in devices]]
    return [(generator, generator.get_state()) for generator in own + others]


def set_random_state(state: RandomState) -> None:
    for generator, one in state:
        generator.set_state(one)


@contextlib.contextmanager
def random_state_of_forward(state: RandomState | None) -> Iterator[None]:
    """Draw the random numbers again that were drawn from this state."""
    now = [(generator, generator.get_state()) for generator, _ in state or ()]
    try:
        set_random_state(state or [])
        yield
    finally:
        set_random_state(now)
