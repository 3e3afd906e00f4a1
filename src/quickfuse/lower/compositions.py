"""Operators that PyTorch has kernels for, but that are no more than a few others: what they are, as PyTorch calls.

They are lowered like operators that PyTorch itself composes (`expansion.py`). None means: not for these arguments. Of most,
PyTorch says so itself: `DECOMPOSED`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from ..ir.cost_model import COSTS

Tensor = torch.Tensor


def _nansum(input: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return torch.where(torch.isnan(input), 0, input).sum(dim, keepdim, dtype=dtype)


def _ldexp(input: Tensor, other: Tensor) -> Tensor:
    return input * torch.pow(2.0, other)


def _channel_shuffle(input: Tensor, groups: int) -> Tensor:
    n, channels, *rest = input.shape
    parts = input.reshape(n, groups, channels // groups, *rest)
    return parts.transpose(1, 2).clone(memory_format=torch.contiguous_format).view(input.shape)


def _trace(input: Tensor) -> Tensor:
    return input.diagonal().sum()


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


def _safe_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Of attention: rows in which all is masked give zeros instead of NaN."""
    masked = (input == float("-inf")).all(dim, keepdim=True)
    return torch.where(masked, 0, torch.softmax(input, dim, dtype=dtype))


#: Name of a function of `torch` or of an operator of ATen -> what it is composed of.
COMPOSITIONS: dict[str, Callable[..., Any]] = {
    "nansum": _nansum, "ldexp": _ldexp, "channel_shuffle": _channel_shuffle, "trace": _trace,
    "masked_scatter": _masked_scatter, "isin": _isin, "_safe_softmax": _safe_softmax,
    "instance_norm": _instance_norm, "cross_entropy": _cross_entropy,
}  # fmt: skip

#: Operators of ATen that PyTorch itself has decompositions of, which round where its kernels do. Operators that every model
#: is made of have rules all the same, which take less time to compile.
DECOMPOSED = frozenset(
    # activations and their gradients
    "glu glu_backward hardtanh_backward hardswish_backward leaky_relu_backward elu_backward _prelu_kernel "
    "_prelu_kernel_backward gelu_backward silu_backward mish_backward softplus_backward log_sigmoid_backward logit_backward "
    # losses and their gradients
    "mse_loss smooth_l1_loss huber_loss mse_loss_backward smooth_l1_loss_backward "
    "huber_loss_backward binary_cross_entropy_backward "
    # normalisation
    "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data logsumexp "
    "_fused_rms_norm _fused_rms_norm_backward "
    # functions of elements
    "logit sinc deg2rad rad2deg frac nan_to_num isposinf isneginf heaviside special_xlog1py logaddexp logaddexp2 "
    # elements in other places
    "slice_backward select_backward diagonal_backward rot90 pixel_shuffle pixel_unshuffle "
    "block_diag upsample_bicubic2d aminmax".split()
)
