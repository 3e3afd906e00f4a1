"""The quickest way from Python into an operator of ATen.

`torch.ops.aten.mm.default(a, b)` looks up the types of its arguments in the operator's schema, which takes microseconds
longer than PyTorch's own binding of the same operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: Operators that are called often, and whose bindings take the same arguments in the same order.
_BINDINGS: dict[Any, Callable[..., Any]] = {
    getattr(torch.ops.aten, name).default: getattr(torch, name)
    for name in ("mm", "bmm", "addmm", "baddbmm", "convolution", "embedding")
}


def quickest(function: Callable[..., Any]) -> Callable[..., Any]:
    """What does the same as `function`, called from Python."""
    return _BINDINGS.get(function, function)
