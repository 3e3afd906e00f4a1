"""Convolutions with weights that are the same in call after call, as far as one can tell."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
        return torch.convolution(
            input, weight, bias, self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        )
