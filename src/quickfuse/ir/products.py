"""Products of small matrices that PyTorch stores where it is told, so that no new tensor is made for each."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from .loop import Buffer, Extern, View

_aten = torch.ops.aten

#: For a product the function that takes `out=`, and how many axes its matrices have.
_FORMS: dict[Any, tuple[Callable[..., Any], int]] = {
    operator.matmul: (torch.mm, 2), torch.matmul: (torch.mm, 2), torch.mm: (torch.mm, 2), torch.addmm: (torch.addmm, 2),
    torch.bmm: (torch.bmm, 3), torch.baddbmm: (torch.baddbmm, 3), functional.linear: (functional.linear, 2),
    _aten.mm.default: (torch.mm, 2), _aten.addmm.default: (torch.addmm, 2), _aten.bmm.default: (torch.bmm, 3),
    _aten.baddbmm.default: (torch.baddbmm, 3),
}  # fmt: skip


#: The most rows that the right operand of a `SmallProduct` has.
MOST_DEPTH = 512


@dataclass(frozen=True)
class SmallProduct:
    """`left @ right + bias` of matrices, or of as many of them as the first axis is long, that a kernel of ours computes;
    the larger of that and zero, if it is `activated`. `shape` is that of the result, which is contiguous."""

    shape: tuple[int, ...]
    activated: bool = False

    @property
    def __name__(self) -> str:
        return "small_product_relu" if self.activated else "small_product"

    def __call__(self, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """The same by PyTorch."""
        made = left @ right if bias is None else left @ right + bias
        return (made.relu() if self.activated else made).reshape(self.shape)


@dataclass(frozen=True)
class ActivatedProduct:
    """`activation(bias + left @ right)` of matrices, by a library that computes the activation as it stores the product.

    `shape` is that of the result, whose last axis is that of the product's columns; `activation` is "relu", or "gelu", which
    is that by tanh.
    """

    shape: tuple[int, ...]
    activation: str

    @property
    def __name__(self) -> str:
        return f"addmm_{self.activation}"

    def __call__(self, bias: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        gelu = self.activation == "gelu"
        if gelu and bias.device.type == "cpu":  # the GELU that PyTorch's function takes there is another one
            made = functional.gelu(torch.addmm(bias, left, right), approximate="tanh")
        else:
            made = torch._addmm_activation(bias, left, right, use_gelu=gelu)
        return made if len(self.shape) == 2 else made.view(self.shape)


def storing_form(call: Extern) -> Callable[..., Any] | None:
    """The function that takes the operands of this call and `out=`, the tensor for the same result; None if there is none.

    Such a function keeps none of its operands.
    """
    if type(call.target) is SmallProduct:
        return call.target
    form, ndim = _FORMS.get(call.target, (None, 0))
    if form is None or len(call.outputs) != 1 or not all(type(v) in (int, float) for v in call.kwargs.values()):
        return None
    result = call.outputs[0].meta
    if result.device.type != "cpu" or len(result.shape) != ndim or not result.numel:
        return None
    operands = [a for a in call.args if isinstance(a, (Buffer, View))]
    if not all(operand in operands or operand is None or type(operand) in (int, float) for operand in call.args):
        return None
    metas = [(a if isinstance(a, Buffer) else a.buffer).meta for a in operands]
    shapes = [a.meta.shape if isinstance(a, Buffer) else a.shape for a in operands]
    if any(meta.dtype != result.dtype or meta.device != result.device for meta in metas):
        return None
    matrices = shapes[:2] if form is functional.linear else shapes[-2:]
    return form if len(matrices) == 2 and all(len(shape) == ndim for shape in matrices) else None
