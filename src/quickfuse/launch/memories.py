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


class Memories:
    """The memory of some of a call's inputs, which is held. `places` are their numbers among what is saved, and among the
    inputs, and their layouts."""

    def __init__(self, tensors: Sequence[torch.Tensor], places: list[tuple[int, int, TensorMeta]]) -> None:
        self.places = places
        self.held = [(tensors[k].untyped_storage(), tensors[k].storage_offset()) for _, k, _ in places]

    def moved(self, tensors: Sequence[torch.Tensor | None], saved: bool = False) -> dict[int, torch.Tensor]:
        """Those that have other memory now, as they were, by their place in `tensors`, which are the inputs or, with
        `saved`, what is saved."""
        found: dict[int, torch.Tensor] = {}
        for (number, index, meta), (storage, offset) in zip(self.places, self.held, strict=True):
            place = number if saved else index
            tensor = tensors[place]
            if tensor is not None and (tensor.untyped_storage() is not storage or tensor.storage_offset() != offset):
                found[place] = _alias(meta, storage, offset)
        return found

    def let_go(self, saved: Sequence[torch.Tensor | None]) -> None:
        """Hold no more than what is saved still."""
        kept = [k for k, (number, *_) in enumerate(self.places) if saved and saved[number] is not None]
        self.places, self.held = [self.places[k] for k in kept], [self.held[k] for k in kept]


def _alias(meta: TensorMeta, storage: Any, offset: int) -> torch.Tensor:
    made = torch.empty(0, dtype=meta.dtype, device=meta.device)
    return made.set_(storage, offset, meta.shape, meta.stride)
