"""Fewer axes: sizes of one vanish, and axes that all operands walk through as through one become one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Collapsed:
    """A loop with fewer axes: its sizes, each operand's strides, and the old axes in each new one, innermost first."""

    sizes: tuple[int, ...]
    strides: tuple[Strides, ...]
    groups: tuple[tuple[int, ...], ...]

    def axis(self, old: int) -> int | None:
        """The new axis that an old one has become; None where that has vanished."""
        return next((k for k, group in enumerate(self.groups) if old in group), None)


@lru_cache(maxsize=4096)
def collapse(shape: tuple[int, ...], operands: tuple[Strides, ...], order_by: int, indexed: tuple[int, ...]) -> Collapsed:
    """Collapse the axes of `shape`.

    operands: the strides of each operand over the axes.
    order_by: the operand by whose strides axes are ordered, largest first: the one that is stored to.
    indexed: axes whose loop variable is used as a number. They are never merged.
    """
    axes = [k for k, size in enumerate(shape) if size != 1]
    if not axes:
        return _single_element(shape, operands)
    axes.sort(key=lambda k: -operands[order_by][k])
    groups: list[list[int]] = []
    sizes: list[int] = []
    for axis in reversed(axes):
        if groups and _walks_on(axis, groups[-1][0], sizes[-1], operands, indexed):
            groups[-1].append(axis)
            sizes[-1] *= shape[axis]
        else:
            groups.append([axis])
            sizes.append(shape[axis])
    groups.reverse()
    sizes.reverse()
    strides = tuple([tuple([operand[group[0]] for group in groups]) for operand in operands])
    return Collapsed(tuple(sizes), strides, tuple(map(tuple, groups)))


def _walks_on(axis: int, inner: int, size: int, operands: tuple[Strides, ...], indexed: tuple[int, ...]) -> bool:
    """Whether a step along `axis` is `size` steps along `inner`, for all operands."""
    if axis in indexed or inner in indexed:
        return False
    return all(operand[axis] == operand[inner] * size for operand in operands)


def _single_element(shape: tuple[int, ...], operands: tuple[Strides, ...]) -> Collapsed:
    """A tensor of one element keeps an axis, so that it can be a member among tensors of many; a 0-dim one has none."""
    if not shape:
        return Collapsed((), tuple([() for _ in operands]), ())
    return Collapsed((1,), tuple([(int(any(operand)),) for operand in operands]), ((),))
