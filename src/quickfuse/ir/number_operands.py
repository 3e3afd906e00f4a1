"""Which operators compute alike for all values of a number operand, in forward and in backward."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from .number_parameters import NUMBER_PARAMETERS
from .values import NumberMeta

#: Functions whose number operands may be marks: they compute alike for all values, in forward and in backward. (Powers have
#: formulas of their own for numbers that are not above 0: guards hold whether they are.)
_ARITHMETIC = frozenset(
    "add sub mul div truediv true_divide multiply divide subtract rsub radd rmul rtruediv iadd isub imul itruediv addcmul "
    "addcdiv addmm addmv addr baddbmm addbmm __radd __rmul __rsub __rtruediv __add __sub __mul __truediv full_like new_full "
    "fill masked_fill lerp clamp clamp_min clamp_max batch_norm eq ne lt le gt ge not_equal less less_equal greater "
    "greater_equal remainder fmod mod floordiv floor_divide clip".split()
)
#: The same for functions that are not differentiated.
_ARITHMETIC_ONCE = frozenset("maximum minimum".split())

#: Functions that make a tensor of a number: which of their operands may be one.
_INTO_TENSORS = {
    "setitem": (2, 3), "where": (1, 3), "full": (1, 2), "tensor": (0, 1), "as_tensor": (0, 1), "scalar_tensor": (0, 1),
}  # fmt: skip


def numbers_that_matter(node: Node, differentiated: bool) -> list[Node]:
    """The number operands of an operator on tensors of which another value may be another computation. `differentiated`: the
    formulas of gradients see the number, too."""
    if is_tensor_of_numbers(node):
        return []
    plain = takes_any_number(node, differentiated)
    numbers = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), NumberMeta)]
    return [number for number in numbers if number.meta["val"].kind is bool or not plain]


def is_tensor_of_numbers(node: Node) -> bool:
    """Whether a node makes a tensor of a list with numbers in it, which no gradients flow through."""
    if node.target not in (torch.tensor, torch.as_tensor) or not node.args or not isinstance(node.args[0], (list, tuple)):
        return False
    if not node.kwargs.keys() <= {"dtype", "device"}:
        return False
    return all(isinstance(operand.meta.get("val"), NumberMeta) for operand in node.all_input_nodes)


def takes_any_number(node: Node, differentiated: bool) -> bool:
    """Whether an operator is plain arithmetic, which does the same with each number, or calls a function of the user's."""
    if "own_gradients" in node.meta:
        return True
    name = str(getattr(node.target, "__name__", node.target)).removeprefix("_foreach_").rstrip("_")
    if name in ("pow", "ipow", "rpow", "__pow", "__rpow"):
        return True
    if name.strip("_") in NUMBER_PARAMETERS:
        return True
    if name in _INTO_TENSORS:
        return _is_kept(node, *(node.args[slice(*_INTO_TENSORS[name])]))
    return name in _ARITHMETIC or (not differentiated and name in _ARITHMETIC_ONCE)


def _is_kept(node: Node, *values: Any) -> bool:
    """Whether the numbers among an operator's operands are `values` alone, and the tensor that PyTorch makes of one holds it
    as it is, so that marks are recognised: small types would round different marks to one number."""
    numbers = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), NumberMeta)]
    target = node.args[0] if node.target is operator.setitem else node
    dtype: Any = getattr(target.meta.get("val"), "dtype", None)  # type: ignore[union-attr]
    kinds = {torch.float32: (float, int), torch.float64: (float, int), torch.int64: (int,)}.get(dtype, ())
    return all(number in values and number.meta["val"].kind in kinds for number in numbers)
