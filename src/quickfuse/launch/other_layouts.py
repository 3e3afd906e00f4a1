"""Gradients that backward is given with their axes in another order than those of its results.

A compiled backward takes gradients in one layout, the result's own. One that is merely repeated along axes or has gaps, such
as that of a sum, is copied into it. One with its axes in another order, such as that of the keys of an attention, gives
eager's operators results in that order too: it has a backward graph of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..ir.gradients import Layouts
from ..ir.values import TensorMeta

#: Of so many such layouts a call has backward graphs. Other gradients are copied.
MOST = 4


def other_layouts(numbers: Sequence[int], given: Sequence[torch.Tensor], expected: Mapping[int, TensorMeta]) -> Layouts:
    """Which of the gradients `given`, those of the results with these numbers, have their axes in another order than
    expected, and the strides that eager's operators give to what they compute from them."""
    found = []
    for number, gradient in zip(numbers, given, strict=True):
        meta = expected.get(number)
        if meta is not None and in_other_order(gradient, meta):
            found.append((number, torch.empty_like(gradient.detach(), device="meta").stride()))
    return tuple(found)


def in_other_order(gradient: torch.Tensor, meta: TensorMeta) -> bool:
    """Whether one axis has a larger stride than another one, where it is expected to have a smaller one."""
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided or gradient.shape != meta.shape:
        return False
    strides = gradient.stride()
    if strides == meta.stride:
        return False
    if 0 in meta.shape:
        return False
    axes = [(there, here) for here, there, size in zip(strides, meta.stride, meta.shape, strict=True) if size > 1 and here]
    ordered = [here for _, here in sorted(axes)]
    return any(one > following for one, following in zip(ordered, ordered[1:], strict=False))
