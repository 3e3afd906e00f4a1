"""Convolutions whose kernel is one pixel, and their gradients: products of matrices, of pixels by channels.

With the channels of images next to each other in memory they are just that, and the libraries for products need no copy of
the weight in another order, nor one of its gradient, as those for convolutions do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from quickfuse.ir.values import TensorMeta

from .products import Activation, LinearCall, is_for_one_dnn
from .symbolic import Tensor


def is_pixelwise(
    input: Tensor, weight: Tensor, stride: Any, padding: Any, transposed: Any, output_padding: Any, groups: Any
) -> bool:
    """Whether a convolution computes each pixel from the same pixel of its input alone, and all channels from all."""
    if tuple(weight.meta.shape[2:]) != (1, 1) or transposed or groups != 1:
        return False
    if not all(tensor.dtype is torch.float32 for tensor in (input, weight)):
        return False
    if torch.get_float32_matmul_precision() != "highest":  # what users allow for products only
        return False
    return {*stride} == {1} and not any(padding) and not any(output_padding)


def is_large(images: TensorMeta, weight: TensorMeta) -> bool:
    """Whether the product for these images, of input or output, is worth the longer way to oneDNN."""
    batch, _, height, width = images.shape
    return is_for_one_dnn(batch * height * width, *weight.shape[:2])


@dataclass(frozen=True)
class PixelwiseConvolution:
    """The convolution, as a function of input, weight and bias."""

    is_large: bool
    __name__ = "pixelwise_convolution"

    def __call__(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return _images(_linear(_pixels(input), weight.flatten(1), bias, self.is_large))


@dataclass(frozen=True)
class InputGradient:
    """The gradient of its input, as a function of that of its result, and the weight."""

    is_large: bool
    __name__ = "pixelwise_convolution_backward_input"

    def __call__(self, gradient: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return _images(_linear(_pixels(gradient), weight.flatten(1).t(), None, self.is_large))


def weight_gradient(gradient: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The gradient of its weight. It sums over the pixels, which BLAS does as fast as oneDNN."""
    made = torch.mm(_pixels(gradient).flatten(0, 2).t(), _pixels(input).flatten(0, 2))
    return made[:, :, None, None]


weight_gradient.__name__ = "pixelwise_convolution_backward_weight"


def _pixels(images: torch.Tensor) -> torch.Tensor:
    """(batch, channels, height, width) with channels last as (batch, height, width, channels)."""
    return images.permute(0, 2, 3, 1)


def _images(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.permute(0, 3, 1, 2)


def _linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, is_large: bool) -> torch.Tensor:
    return LinearCall(Activation())(rows, weight, bias) if is_large else functional.linear(rows, weight, bias)
