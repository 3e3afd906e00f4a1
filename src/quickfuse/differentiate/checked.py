"""Operators that look at contents to raise an exception, which PyTorch leaves out for tensors in a trace.

They are made of others here, of which one refuses what they refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from .traced import TracedTensor


def checking(target: Callable[..., Any], args: Sequence[Any]) -> Callable[..., Any]:
    """What to call in place of `target`, itself for most operators."""
    made = _CHECKING.get(target)
    return target if made is None or not args or type(args[0]) is not TracedTensor else made


def _one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Where a class equals its number; `gather` refuses classes that do not exist."""
    if num_classes < 1 or tensor.dtype is not torch.int64:
        return F.one_hot(tensor, num_classes)
    numbers = torch.arange(num_classes, device=tensor.device)
    classes = numbers.gather(0, tensor.flatten()).view(tensor.shape)
    return (classes.unsqueeze(-1) == numbers).to(torch.int64)


_CHECKING: dict[Any, Callable[..., Any]] = {F.one_hot: _one_hot}
