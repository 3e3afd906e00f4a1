"""Eager PyTorch with its normalisations called on contiguous tensors.

On CPUs, the gradient of a batch norm of one image with channels last is wrong, and so is that of an instance norm, which is
made of it. The formula is the same in all layouts, so that a program's results must not depend on them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_NORMS = frozenset(
    f"aten::{name}{suffix}" for name in ("native_batch_norm", "native_group_norm") for suffix in ("", "_backward")
)


class ContiguousNorms(TorchDispatchMode):
    """Within this context normalisations see contiguous tensors only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name in _NORMS:
            args = tuple([arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args])
        return func(*args, **(kwargs or {}))
