"""Operators that PyTorch has kernels for, but that are no more than a few others: what they are, as PyTorch calls.

They are lowered like operators that PyTorch itself composes (`expansion.py`). None means: not for these arguments. Those
that are formulas of elements or rows are in `formulas.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..ir.cost_model import COSTS

Tensor = torch.Tensor


def _pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., C * r * r, H, W) -> (..., C, H, r, W, r)"""
    *outer, channels, height, width = input.shape
    r, n = upscale_factor, len(outer)
    parts = input.reshape(*outer, channels // (r * r), r, r, height, width)
    swapped = parts.permute(*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return swapped.clone(memory_format=torch.contiguous_format).view(*outer, channels // (r * r), height * r, width * r)


def _pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., C, H * r, W * r) -> (..., C, r, r, H, W)"""
    *outer, channels, height, width = input.shape
    r, n = downscale_factor, len(outer)
    parts = input.reshape(*outer, channels, height // r, r, width // r, r)
    swapped = parts.permute(*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return swapped.clone(memory_format=torch.contiguous_format).view(*outer, channels * r * r, height // r, width // r)


def _repeat(input: Tensor, *repeats: Any) -> Tensor:
    """A copy of the tensor with an axis for the repetitions before each of its own."""
    counts = list(repeats[0]) if len(repeats) == 1 and isinstance(repeats[0], (list, tuple)) else list(repeats)
    new = len(counts) - input.ndim
    seen = input[(None,) * new + (None, slice(None)) * input.ndim]
    sizes = [*counts[:new], *[size for pair in zip(counts[new:], input.shape, strict=True) for size in pair]]
    copied = seen.expand(sizes).clone(memory_format=torch.contiguous_format)
    return copied.view([*counts[:new], *[count * size for count, size in zip(counts[new:], input.shape, strict=True)]])


def _channel_shuffle(input: Tensor, groups: int) -> Tensor:
    n, channels, *rest = input.shape
    parts = input.reshape(n, groups, channels // groups, *rest)
    return parts.transpose(1, 2).clone(memory_format=torch.contiguous_format).view(input.shape)


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


def _instance_norm(
    input: Tensor, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """A norm of groups of one channel each, where PyTorch makes images of all channels into one batch."""
    if running_mean is not None or running_var is not None or not use_input_stats:
        return None
    return torch.group_norm(input.contiguous(), input.shape[1], weight, bias, eps)


def _cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """Smoothed row by row, so that one pass over the rows adds up both losses and what their mean divides by."""
    others = (weight, size_average, ignore_index, reduce, reduction)
    if not label_smoothing or target.is_floating_point() or input.ndim < 2:
        return functional.cross_entropy(input, target, *others, label_smoothing)
    logarithms = torch.log_softmax(input, 1)
    losses = functional.nll_loss(logarithms, target, weight, None, ignore_index, None, "none")
    if weight is not None:
        logarithms = logarithms * weight.view(-1, *[1] * (input.ndim - 2))
    ignored = target == ignore_index
    alike = torch.where(ignored, 0, -logarithms.sum(1))
    losses = losses * (1 - label_smoothing) + alike * (label_smoothing / input.shape[1])
    if reduction == "none":
        return losses
    ones = torch.ones_like(input) if weight is None else weight.view(-1, *[1] * (input.ndim - 2)).expand_as(input)
    total = -functional.nll_loss(ones, target, None, None, ignore_index, None, "none").sum() if reduction == "mean" else 1
    return losses.sum() / total


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


def _embedding_bag(
    input: Tensor, weight: Tensor, offsets: Any = None, max_norm: Any = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: Any = "mean", sparse: bool = False, per_sample_weights: Any = None,
    include_last_offset: bool = False, padding_idx: Any = None,
) -> Any:  # fmt: skip
    """Bags of one size: `functional.embedding_bag`, whose namesake in `torch` has the weight first."""
    if input.is_floating_point() or input.ndim != 2 or not input.numel() or mode not in ("sum", "mean"):
        return None
    if not (offsets is max_norm is padding_idx is None) or (per_sample_weights is not None and mode != "sum"):
        return None
    rows = functional.embedding(input, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return rows.sum(1) if mode == "sum" else rows.mean(1)


#: Name of a function of `torch` or of an operator of ATen -> what it is composed of.
COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "trace": lambda input: input.diagonal().sum(), "masked_scatter": _masked_scatter, "isin": _isin,
    "pixel_shuffle": _pixel_shuffle, "pixel_unshuffle": _pixel_unshuffle, "repeat": _repeat,
    "channel_shuffle": _channel_shuffle, "block_diag": _block_diag,
    "embedding_bag": _embedding_bag, "instance_norm": _instance_norm, "cross_entropy": _cross_entropy,
}  # fmt: skip
