"""A forward or a backward graph, compiled: what a call of autograd's runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ir.gradients import Unfit
from ..ir.tensor_checks import holds_its_elements
from ..ir.values import TensorMeta
from .other_layouts import in_other_order
from .places import picker
from .replayed import Replayed


class CompiledGraph:
    """A compiled graph with the tables of its kernels. `check` verifies the tensors' layout and fetches addresses;
    `make_check` makes one for plain tensors of this layout. `used` are the saved tensors (by number) that backward takes."""

    def __init__(
        self, function: Callable[..., Any], check: Any, make_check: Callable[..., Any], placer: Any, kernels: int,
        metas: list[TensorMeta], used: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.function = function
        self.check = check
        self.make_check = make_check
        self.plain_check: Any = None
        self.placer = placer
        self.replayed = function if isinstance(function, Replayed) else None
        self.kernels = kernels
        self.metas = metas
        self.used = used
        self.pick_used = picker(used)
        #: `used`, where a number is that of what is saved, whatever memory of it is read.
        self.read = used
        #: Whether it has run and `note_usual` knows.
        self.is_usual = False
        self.lock = threading.RLock()

    def __call__(self, tensors: list[Any], numbers: tuple[Any, ...]) -> list[Any]:
        """Run on tensors that may have other strides than expected. The list is used up."""
        with self.lock:
            check = self.check
            if check is not None:
                state = check.scan(tensors)
                if state < 0:
                    tensors[:] = [laid_out(t, meta) for t, meta in zip(tensors, self.metas, strict=True)]
                    if self.plain_check is None:
                        self.plain_check = self.make_check([(torch.Tensor, meta) for meta in self.metas])
                    check.unplaced[0] = 1  # both write the same tables
                    check = self.plain_check
                    check.unplaced[0] = 1
                    state = check.scan(tensors)
                    assert state >= 0, "a tensor that was brought into a layout has it"
                if state:
                    self.placer.place(check)
                if self.replayed is not None:
                    self.replayed.check = check
            return self.function(tensors, *numbers)

    def bring_into_layout(self, tensors: list[Any], last: int) -> bool:
        """Copy those of so many tensors at the end that have other strides, such as the expanded gradient of a sum. Returns
        whether all are as expected then; if so, `check` has their addresses. Those with axes in another order are left."""
        for k in range(len(tensors) - last, len(tensors)):
            if in_other_order(tensors[k], self.metas[k]):
                return False
            try:
                tensors[k] = laid_out(tensors[k], self.metas[k])
            except Unfit:
                return False
        return bool(self.check.scan(tensors) >= 0)


def laid_out(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """A plain tensor with the strides that were compiled for.

    Raises:
        Unfit: for another type, shape or device, which only an operator can have returned that does not say what it returns.
    """
    if (tensor.dtype, tensor.shape, tensor.device) != (meta.dtype, meta.shape, meta.device):
        raise Unfit
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    elif holds_its_elements(tensor):
        tensor = tensor.detach()
        if type(tensor) is torch.Tensor and (tensor.stride(), tensor.device) == (meta.stride, meta.device):
            return tensor
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).copy_(tensor)
