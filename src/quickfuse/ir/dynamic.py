"""What graphs call to see that tensors of dynamic sizes are as large as capture worked out."""

from __future__ import annotations

import torch

from .segment import RunNatively


def of_sizes(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself.

    Raises:
        RunNatively: where it has other sizes.
    """
    if tensor.shape != sizes:
        raise RunNatively
    return tensor
