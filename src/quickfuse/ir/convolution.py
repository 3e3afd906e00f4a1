"""How convolutions lay out their results, and those with weights that are the same in call after call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .values import TensorMeta, contiguous_stride

_META = torch.device("meta")

_LAID_OUT_LIKE_WEIGHT = (torch._C._ConvBackend.Slow2d, torch._C._ConvBackend.SlowTranspose2d)  # type: ignore[attr-defined]


def memory_format_of_convolution(x: Any, weight: Any, bias: Any, *settings: Any) -> tuple[torch.memory_format, Any]:
    """The memory format of a convolution's results, as the library that PyTorch picks makes them, and that library.

    `x`, `weight` and `bias` are tensors that say on which device they are, and may be without data; `settings` are stride,
    padding, dilation (each with a number for each axis), transposed, output padding, groups, and the bias's sizes.
    """
    if weight.ndim == 3:  # without strides of its own: a two-dimensional one of one row
        return torch.contiguous_format, None
    backend = torch._C._select_conv_backend(x, weight, bias, *settings)
    return torch._C._conv_determine_backend_memory_format(x, weight, backend), backend


def stride_of_weight_gradient(weight: TensorMeta, memory_format: torch.memory_format, backend: Any) -> tuple[int, ...]:
    """PyTorch's own convolutions lay it out like the weight that they use, which is the weight itself where that has the
    memory format already: its strides along axes of one element stay as they are."""
    if backend in _LAID_OUT_LIKE_WEIGHT:
        tensor = torch.empty_strided(weight.shape, weight.stride, device=_META)
        if tensor.is_contiguous(memory_format=memory_format):
            return weight.stride
    return stride_in_format(weight.shape, memory_format)


def stride_in_format(shape: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """The strides of a new tensor."""
    if memory_format in (None, torch.contiguous_format):
        return contiguous_stride(shape)
    if len(shape) == 3:
        image = (shape[0], shape[1], 1, shape[2])
        return torch.empty(image, device=_META, memory_format=memory_format).squeeze(2).stride()
    return torch.empty(shape, device=_META, memory_format=memory_format).stride()


@dataclass(frozen=True)
class SteadyConvolution:
    """A convolution, as a function of input, weight and bias. Its weight is a tensor from outside that the program leaves
    alone: a launcher may keep a copy in the order that the processor wants, as long as it sees when the weight changes.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    input_shape: tuple[int, ...]

    @property
    def __name__(self) -> str:
        return "convolution"

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.convolution(input, weight, bias, self.stride, self.padding, self.dilation, False, (0, 0), self.groups)


@dataclass(frozen=True)
class ActivatedConvolution:
    """The larger of zero and a convolution with its bias, as a function of input, weight and bias: one kernel of cuDNN."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    __name__ = "convolution_relu"

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if input.device.type == "cpu":
            return torch.conv2d(input, weight, bias, self.stride, self.padding, self.dilation).relu_()
        return torch.cudnn_convolution_relu(input, weight, bias, self.stride, self.padding, self.dilation, 1)
