"""Operators that PyTorch has kernels for, but that are no more than a few others: what they are, as PyTorch calls.

They are lowered like operators that PyTorch itself composes (`expansion.py`). None means: not for these arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.cost_model import COSTS

Tensor = torch.Tensor


def _nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return torch.where(torch.isnan(input), 0, input).sum(dim, keepdim, dtype=dtype)


def _aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    axes = () if dim is None else dim
    return torch.amin(input, axes, keepdim), torch.amax(input, axes, keepdim)


def _ldexp(input: Tensor, other: Tensor) -> Tensor:
    return input * torch.pow(2.0, other)


def _channel_shuffle(input: Tensor, groups: int) -> Tensor:
    n, channels, *rest = input.shape
    parts = input.reshape(n, groups, channels // groups, *rest)
    return parts.transpose(1, 2).clone(memory_format=torch.contiguous_format).view(input.shape)


def _trace(input: Tensor) -> Tensor:
    return input.diagonal().sum()


def _block_diag(*tensors: Any) -> Any:
    blocks = list(tensors[0]) if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else list(tensors)
    if any(block.ndim != 2 or block.dtype is not blocks[0].dtype for block in blocks):
        return None
    columns = sum(block.shape[1] for block in blocks)
    rows, begin = [], 0
    for block in blocks:
        end = begin + block.shape[1]
        rows.append(torch.constant_pad_nd(block, (begin, columns - end)))
        begin = end
    return torch.cat(rows)


def _masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Any:
    if input.dtype is not source.dtype or mask.dtype is not torch.bool:
        return None
    mask, input = torch.broadcast_tensors(mask, input)
    flat = mask.reshape(-1)
    places = torch.where(flat, flat.cumsum(0) - 1, 0)  # beyond the end of `source`: an exception, as in eager
    return torch.where(mask, source.reshape(-1)[places].view(mask.shape), input)


def _isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    usable = isinstance(elements, Tensor) and isinstance(test_elements, Tensor)
    if not usable or test_elements.numel() > COSTS.few_compared or elements.dtype is not test_elements.dtype:
        return None
    found = (elements.unsqueeze(-1) == test_elements.reshape(-1)).any(-1)
    return ~found if invert else found


def _safe_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Of attention: rows in which all is masked give zeros instead of NaN."""
    masked = (input == float("-inf")).all(dim, keepdim=True)
    return torch.where(masked, 0, torch.softmax(input, dim, dtype=dtype))


#: Name of a function of `torch` or of an operator of ATen -> what it is composed of.
COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "nansum": _nansum, "aminmax": _aminmax, "ldexp": _ldexp, "channel_shuffle": _channel_shuffle, "trace": _trace,
    "block_diag": _block_diag, "masked_scatter": _masked_scatter, "isin": _isin, "_safe_softmax": _safe_softmax,
}  # fmt: skip
