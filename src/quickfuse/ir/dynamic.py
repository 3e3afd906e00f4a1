"""What graphs call to see that tensors of dynamic sizes are what capture took them for."""

from __future__ import annotations

import torch

from .segment import RunNatively


class OtherSizes(RunNatively):
    """Capture took tensors of dynamic sizes for something else than they are."""


def of_sizes(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself.

    Raises:
        OtherSizes: where it has other sizes.
    """
    if tensor.shape != sizes:
        raise OtherSizes
    return tensor


def stay_apart(dynamic: list[torch.Tensor], changed: list[torch.Tensor]) -> None:
    """See that no tensor of dynamic sizes shares memory with one that the graph changes.

    Raises:
        OtherSizes: where one does.
    """
    memory = {tensor.untyped_storage().data_ptr() for tensor in changed}
    if any(tensor.untyped_storage().data_ptr() in memory for tensor in dynamic):
        raise OtherSizes
