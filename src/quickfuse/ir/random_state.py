"""The state of the random number generator that some operators return, for their backward to draw the same numbers again.

Memory-efficient attention on a GPU returns it as two tensors on the CPU, without dropout as well, whose contents its
backward reads on the host; while a CUDA graph is recorded, both are on the GPU. Backward takes whatever forward made, where
it is: a copy on another device is memory that the process must not read.
"""

from __future__ import annotations

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
