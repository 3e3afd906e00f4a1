"""Operators that select elements by index."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from schedule_interpreter import check


def test_embedding() -> None:
    def function(index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.embedding(index, weight, padding_idx=0) * 2, weight.shape[1:])

    check(function, torch.randint(0, 10, (4, 5)), torch.randn(10, 7), emitted=True, ulps=16)
