"""Zeros without memory, which forward-mode differentiation takes for derivatives that are not there.

PyTorch knows that they are zeros: where they are multiplied by an infinity, the product is zero. In a trace they have a node
like other tensors, and are multiplied by nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..ir.values import TensorMeta
from .traced import TracedTensor

aten = torch.ops.aten

ZEROS = aten._efficientzerotensor.default

#: Operators whose results are such zeros -> how many of the first operands make them so, each alone.
_ABSORBING: dict[Any, int] = {
    aten.mul.Tensor: 2, aten.div.Tensor: 1, aten.dot.default: 2, aten.vdot.default: 2, aten.linalg_cross.default: 2,
}  # fmt: skip


def gives_zeros(function: Any, args: Sequence[Any]) -> bool:
    """Whether a call of an operator gives zeros without memory."""
    operands = args[: _ABSORBING.get(function, 0)]
    return any(type(operand) is TracedTensor and operand.memory.zeros for operand in operands)


def zeros_of(meta: TensorMeta) -> Any:
    """What makes zeros without memory: the operator and its arguments."""
    return ZEROS, (list(meta.shape),), {"dtype": meta.dtype, "device": meta.device}
