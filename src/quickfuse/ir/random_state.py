"""The state of the random number generator that some operators return, for their backward to draw the same numbers again.

Memory-efficient attention on a GPU returns it as two tensors on the CPU, without dropout as well, whose contents its
backward reads on the host; while a CUDA graph is recorded, both are on the GPU. Backward takes whatever forward made, where
it is: a copy on another device is memory that the process must not read.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

aten = torch.ops.aten

#: Forward operators with such a state -> their overload with a schema.
_FORWARD = {
    key: packet.default
    for packet in (aten._efficient_attention_forward, aten._scaled_dot_product_efficient_attention)
    for key in (packet, packet.default)
}
#: The backward operators that take it.
_BACKWARD = frozenset(
    {aten._efficient_attention_backward.default, aten._scaled_dot_product_efficient_attention_backward.default}
)
_NAMES = ("philox_seed", "philox_offset")


def results_on_cpu(function: Any) -> tuple[int, ...]:
    """Which results of an operator on a GPU lie on the CPU."""
    overload = _FORWARD.get(function) if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)) else None
    if overload is None:
        return ()
    return tuple([k for k, result in enumerate(overload._schema.returns) if result.name in _NAMES])


def uses_random_state(function: Any) -> bool:
    """Whether an operator returns such a state, or takes one."""
    return function in _BACKWARD or function in _FORWARD


class WithoutState:
    """A backward operator without its state, for attention without dropout: it takes one all the same, where forward would
    have made it, but reads nothing of it. So forward need not hand one on, which a CUDA graph could not."""

    def __init__(self, function: torch._ops.OpOverload) -> None:
        self.function = function
        self.__name__ = function._schema.name.partition("::")[2]
        names = [argument.name for argument in function._schema.arguments]
        self._first = names.index(_NAMES[0])
        assert names[self._first + 1] == _NAMES[1]

    def __call__(self, *args: Any, **settings: Any) -> Any:
        gradient, state = args[0], _NO_STATE
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            state = torch.empty((), dtype=torch.int64, device=gradient.device)
        return self.function(*args[: self._first], state, state, *args[self._first :], **settings)

    def without_state(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The arguments for it of a call of the operator; None where that may have drawn numbers."""
        names = [argument.name for argument in self.function._schema.arguments]
        dropout = args[at] if (at := names.index("dropout_p")) < len(args) else None
        return (*args[: self._first], *args[self._first + 2 :]) if dropout == 0 else None


#: What operators read nothing of.
_NO_STATE = torch.zeros((), dtype=torch.int64, device="cpu")


@functools.cache
def without_state(function: Any) -> WithoutState | None:
    """How an operator is called without a state; None for all that take none."""
    return WithoutState(function) if function in _BACKWARD else None


#: Generators of random numbers, each with its state; None for one that cannot be asked (see `states_of`).
RandomState = list[tuple[torch.Generator, Any]]


def own_generators(devices: Sequence[int]) -> list[torch.Generator]:
    """PyTorch's own generators, for the CPU and for GPUs."""
    return [torch.default_generator, *[torch.cuda.default_generators[k] for k in devices]]


def states_of(generators: Sequence[torch.Generator]) -> RandomState:
    """The states of generators. While a CUDA graph is recorded a GPU's cannot be asked: what it gives then is drawn when
    the graph runs."""
    return [(generator, _state_of(generator)) for generator in generators]


def _state_of(generator: torch.Generator) -> Any:
    if generator.device.type == "cpu":
        return generator.get_state()
    try:
        return generator.initial_seed(), generator.get_offset()  # which takes less time than its state as a tensor
    except RuntimeError:
        return None


def set_states(states: RandomState) -> None:
    """Let generators have these states."""
    for generator, state in states:
        if isinstance(state, torch.Tensor):
            generator.set_state(state)
        elif state is not None:
            seed, offset = state
            if generator.initial_seed() != seed:
                generator.manual_seed(seed)
            generator.set_offset(offset)


def offset_of(device: int) -> int | None:
    """Where a GPU's own generator is in its stream; None while a CUDA graph is recorded, which asks for that itself."""
    try:
        offset: int = torch.cuda.default_generators[device].get_offset()
    except RuntimeError:
        return None
    return offset


def move_to(device: int, offset: int | None) -> None:
    """Let a GPU's own generator be there again."""
    if offset is not None:
        torch.cuda.default_generators[device].set_offset(offset)
