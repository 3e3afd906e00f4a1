"""How a temporary lies in memory. A tensor's strides say how its views look at it; where nobody looks, the order of axes is
ours to choose: that of what the value is read from, so that loops go through all their operands in one order.

So what is computed from images with channels last has its channels last, too.
"""

from __future__ import annotations

from collections import Counter

from quickfuse.ir.expr import Expr, Load, Place, walk
from quickfuse.ir.values import TensorMeta, stride_in_order

from .layout import Shape, is_dense


def read_order(value: Expr, meta: TensorMeta) -> TensorMeta:
    """The layout for a temporary that holds `value`: that of `meta`, or dense with the axes as most operands have them."""
    plain = type(meta) is TensorMeta and len(meta.shape) > 1 and is_dense(meta.shape, meta.stride)
    if not plain or isinstance(value, Load):
        return meta
    axes = axes_as_read(value, meta.shape, meta.stride)
    if axes == _order(meta.stride, list(axes)):
        return meta
    return TensorMeta(meta.dtype, meta.shape, stride_in_order(meta.shape, axes), meta.device)


def axes_as_read(value: Expr, shape: Shape, stride: Shape) -> Shape:
    """The axes of more than one element, in the order in which most operands of `value` have them, or else as `stride`
    has them, from the one with the largest steps to the one with the smallest."""
    moving = [k for k, size in enumerate(shape) if size > 1]
    orders = Counter(
        _order(node.access.strides, moving)
        for node in walk(value)
        if isinstance(node, (Load, Place)) and all(node.access.strides[k] > 0 for k in moving)
    )
    own = _order(stride, moving)
    if not orders or orders[own] == max(orders.values()):
        return own
    return orders.most_common(1)[0][0]


def _order(strides: Shape, axes: list[int]) -> Shape:
    """The axes from the one with the largest steps to the one with the smallest."""
    return tuple(sorted(axes, key=lambda k: -strides[k]))
