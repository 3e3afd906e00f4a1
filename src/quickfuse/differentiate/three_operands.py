"""The sum of products of three operands, which bilinear layers are made of, under autocast.

PyTorch's kernel for it calls matrix products by way of the dispatcher, so that autocast converts what they take, also where
nothing else of it is converted. Written as these products it is part of the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_lowercase

import torch
from torch import Tensor

_CONVERTED = frozenset({torch.float32, torch.float16, torch.bfloat16})


def as_products(
    a: Tensor, b: Tensor, c: Tensor, expand_a: Sequence[int], expand_b: Sequence[int], expand_c: Sequence[int],
    summed: Sequence[int], unroll_dim: int = 1,
) -> Tensor:  # fmt: skip
    """`aten::_trilinear`: the sum over the axes `summed` of a * b * c, each with axes of one element at `expand_...`.

    The kernel takes one step along the axis `unroll_dim` at a time, where the first product sums the axes that `c` lacks
    and the second the others, and adds up the steps in the type of `a`.
    """
    ndim = a.ndim + len(expand_a)
    axes = ascii_lowercase[:ndim]
    of_a, of_b, of_c = ("".join(axes[k] for k in range(ndim) if k not in lacks) for lacks in (expand_a, expand_b, expand_c))
    inner = [k for k in summed if k != unroll_dim]
    first = "".join(axes[k] for k in inner if k in expand_c)
    second = "".join(axes[k] for k in inner if k not in expand_c)
    of_both = "".join(axis for axis in axes if axis in of_a + of_b and axis not in first)
    both = _product(a, of_a, b, of_b, of_both)
    of_all = "".join(axis for axis in axes if axis in of_both + of_c and axis not in second)
    steps = _product(both, of_both, c, of_c, of_all).to(a.dtype)
    return steps.sum(of_all.index(axes[unroll_dim])) if unroll_dim in summed else steps


def are_converted(tensors: Sequence[Tensor]) -> bool:
    """Whether autocast gives products of these tensors other types."""
    dtype = torch.get_autocast_dtype(tensors[0].device.type)
    return any(t.dtype is not dtype and t.dtype in _CONVERTED for t in tensors)


def _product(left: Tensor, of_left: str, right: Tensor, of_right: str, of_result: str) -> Tensor:
    """A product of two; where nothing is summed it is elementwise, and autocast leaves it alone."""
    if set(of_left) | set(of_right) <= set(of_result):
        return _aligned(left, of_left, of_result) * _aligned(right, of_right, of_result)
    left, of_left = _without_own_sums(left, of_left, of_right + of_result)
    right, of_right = _without_own_sums(right, of_right, of_left + of_result)
    batch = "".join(axis for axis in of_left if axis in of_right and axis in of_result)
    summed = "".join(axis for axis in of_left if axis in of_right and axis not in of_result)
    rows = "".join(axis for axis in of_left if axis not in of_right)
    columns = "".join(axis for axis in of_right if axis not in of_left)
    size = {**dict(zip(of_left, left.shape, strict=True)), **dict(zip(of_right, right.shape, strict=True))}
    matrices = torch.bmm(_matrices(left, of_left, batch, rows, summed), _matrices(right, of_right, batch, summed, columns))
    of_made = batch + rows + columns
    return matrices.view([size[axis] for axis in of_made]).permute([of_made.index(axis) for axis in of_result])


def _without_own_sums(tensor: Tensor, of: str, kept: str) -> tuple[Tensor, str]:
    """The tensor summed over the axes that neither the other operand nor the result has."""
    own = [k for k, axis in enumerate(of) if axis not in kept]
    return (tensor.sum(own) if own else tensor), "".join(axis for axis in of if axis in kept)


def _matrices(tensor: Tensor, of: str, *groups: str) -> Tensor:
    """The tensor in autocast's type, with an axis for each group of its axes."""
    if tensor.dtype in _CONVERTED:
        tensor = tensor.to(torch.get_autocast_dtype(tensor.device.type))
    places = [[of.index(axis) for axis in group] for group in groups]
    sizes = [math.prod(tensor.shape[k] for k in group) for group in places]
    return tensor.permute([k for group in places for k in group]).reshape(sizes)


def _aligned(tensor: Tensor, of: str, of_result: str) -> Tensor:
    """The tensor with an axis of one element for each that it lacks. Axes stand in the same order in both."""
    for k, axis in enumerate(of_result):
        if axis not in of:
            tensor = tensor.unsqueeze(k)
    return tensor
