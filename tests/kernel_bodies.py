"""Kernel bodies for tests."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from quickfuse.ir.expr import Expr
from quickfuse.ir.kernel import Axis, KernelBody, KernelStore, Slot, StoreKind


def pointwise_body(
    device_type: str, ndim: int, slots: tuple[Slot, ...], scalars: tuple[torch.dtype, ...],
    stores: Iterable[tuple[int, Expr]],
) -> KernelBody:  # fmt: skip
    """A body that assigns values to slots for each index, with vectors along the last axis."""
    assigned = tuple([KernelStore(StoreKind.ASSIGN, value, slot) for slot, value in stores])
    return KernelBody(device_type, (Axis.PARALLEL,) * ndim, ndim - 1, slots, scalars, assigned)
