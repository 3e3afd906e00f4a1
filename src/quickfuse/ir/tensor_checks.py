"""Questions about many tensors at once. Capture answers them with guards, not by following loops over the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .values import TensorMeta, span_of


@dataclass(frozen=True, eq=False)
class TensorChecks:
    """What is asked of a list of values. `expected` says what the tensor at a position is to be like: its metadata, and its
    `requires_grad` (None: either), or None where anything may be. The tensors at `changed` are to share no memory with each
    other, nor with those at `others`."""

    expected: tuple[tuple[TensorMeta, bool | None] | None, ...]
    changed: tuple[int, ...]
    others: tuple[int, ...]


def first_unlike(checks: TensorChecks, values: Sequence[Any]) -> int | None:
    """The position of the first value that is no plain tensor as expected; None where all are. Strides of axes with one
    element are not compared."""
    for position, (value, wanted) in enumerate(zip(values, checks.expected, strict=True)):
        if wanted is not None and not (
            isinstance(value, torch.Tensor) and is_plain(value)
            and is_like(value, tuple(value.shape), value.stride(), wanted[0])
            and wanted[1] in (None, value.requires_grad)
        ):  # fmt: skip
            return position
    return None


def overlapping(checks: TensorChecks, values: Sequence[Any]) -> tuple[int, int] | None:
    """The positions of a changed tensor and of another one that share memory; None where there are none."""
    return first_overlap(values, checks.changed, checks.others)


def holds_its_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are what its memory holds at its strides: none are yet to be negated or conjugated, nor
    are they zeros without memory, as gradients of autograd's may be."""
    lazy = tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not lazy


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are what its memory holds at its strides, and its class is PyTorch's own."""
    return holds_its_elements(tensor) and type(tensor).__module__.partition(".")[0] == "torch"


def is_like(tensor: Any, shape: tuple[int, ...], stride: tuple[int, ...], meta: TensorMeta) -> bool:
    """Whether a tensor (or metadata) with this shape and these strides is as `meta` says, but for `requires_grad`."""
    return (
        tensor.dtype == meta.dtype and tensor.device == meta.device and shape == meta.shape
        and (stride == meta.stride or same_order(shape, stride, meta.stride))
    )  # fmt: skip


def same_order(shape: tuple[int, ...], one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Whether two strides put the elements of a shape in the same places."""
    return 0 in shape or all(a == b or size <= 1 for size, a, b in zip(shape, one, two, strict=True))


def first_overlap(values: Sequence[Any], changed: Sequence[int], others: Sequence[int]) -> tuple[int, int] | None:
    """The positions of a tensor at `changed` and of another one there or at `others` that share memory; None where there
    are none. An object that is there twice shares memory with itself.

    What lies between the first and the last element of a tensor counts as its memory. Tensors without memory of their own
    (on the meta device, of functional transforms) share none.
    """
    spans: list[tuple[int, int, int]] = []
    seen: dict[int, int] = {}
    among_changed = frozenset(changed)
    for position in (*changed, *others):
        tensor = values[position]
        known = seen.setdefault(id(tensor), position)
        if known != position and known in among_changed:
            return known, position
        start = _address(tensor)
        if start:
            spans.append((start, start + span_of(tensor.shape, tensor.stride()) * tensor.itemsize, position))
    last_end, last = 0, -1
    changed_end, last_changed = 0, -1
    for start, end, position in sorted(spans):
        if start < changed_end:
            return last_changed, position
        if position in among_changed:
            if start < last_end:
                return position, last
            changed_end, last_changed = end, position
        if end > last_end:
            last_end, last = end, position
    return None


def _address(tensor: torch.Tensor) -> int:
    """Where a tensor's elements begin; 0 where it has none."""
    try:
        return tensor.data_ptr() if tensor.numel() else 0
    except RuntimeError:  # a tensor that stands for others
        return 0
