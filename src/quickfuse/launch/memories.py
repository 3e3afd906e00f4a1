"""The memory that inputs had in forward, for a backward that reads it.

A program may set the `data` of a tensor between a call and its backward: weights that are rounded for forward alone, or
averages that take their place. What eager has saved of such a tensor is the tensor itself, in which backward then finds the
new memory, or something else: what was computed from it, or a view, such as a transposed weight, which has the memory of
before. A compiled backward reads the tensor in place of all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.values import TensorMeta

#: The numbers of tensors among what is saved, and among the inputs, and their layouts.
Places = list[tuple[int, int, TensorMeta]]
#: The memory of each, and where the tensor begins in it; None where it is not held any more.
Memories = list[tuple[Any, int] | None]


def memories_of(tensors: Sequence[torch.Tensor], places: Places) -> Memories:
    """The memory of some of a call's inputs, to be held."""
    return [(tensors[k].untyped_storage(), tensors[k].storage_offset()) for _, k, _ in places]


def moved(
    held: Memories, places: Places, tensors: Sequence[torch.Tensor | None], saved: bool = False
) -> dict[int, torch.Tensor]:
    """Those that have other memory now, as they were, by their place in `tensors`, which are the inputs or, with `saved`,
    what is saved."""
    found: dict[int, torch.Tensor] = {}
    for (number, index, meta), memory in zip(places, held):  # noqa: B905  every backward comes here
        tensor = tensors[number if saved else index]
        if tensor is not None and memory is not None:
            storage, offset = memory
            if tensor.untyped_storage() is not storage or tensor.storage_offset() != offset:
                found[number if saved else index] = _alias(meta, storage, offset)
    return found


def let_go(held: Memories, places: Places, saved: Sequence[torch.Tensor | None]) -> Memories:
    """What is to be held of what is saved still."""
    return [None if saved[number] is None else memory for (number, *_), memory in zip(places, held, strict=True)]


def _alias(meta: TensorMeta, storage: Any, offset: int) -> torch.Tensor:
    made = torch.empty(0, dtype=meta.dtype, device=meta.device)
    return made.set_(storage, offset, meta.shape, meta.stride)
