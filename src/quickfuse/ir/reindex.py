"""Values as functions of other indices: rewriting the leaves of an expression, its loads and loop variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from .expr import PICK, Const, Expr, Index, Load, Op, Place, pick, rewritten, with_arguments
from .loop import Access

_I64 = torch.int64


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Old index k = `constants[k] + sum(coefficients[k][j] * new index j)`; `ndim` new axes."""

    constants: tuple[int, ...]
    coefficients: tuple[tuple[int, ...], ...]
    ndim: int

    @staticmethod
    def along(axes: Iterable[int | None], ndim: int, constants: tuple[int, ...] = ()) -> IndexMap:
        """Old index k is the new one on `axes[k]`, or none where that is None, after `constants[k]` others."""
        rows = tuple([tuple([int(j == axis) for j in range(ndim)]) for axis in axes])
        return IndexMap(constants or (0,) * len(rows), rows, ndim)

    @staticmethod
    def cut(ndim: int, axis: int, length: int) -> IndexMap:
        """An axis becomes two: which part of so many elements it is, and the place in it."""
        rows = [[int(j == k + (k > axis)) for j in range(ndim + 1)] for k in range(ndim)]
        rows[axis][axis], rows[axis][axis + 1] = length, 1
        return IndexMap((0,) * ndim, tuple(map(tuple, rows)), ndim + 1)

    def access(self, access: Access) -> Access:
        """The same elements of a buffer, over the new index."""
        pairs = list(zip(access.strides, self.coefficients, strict=True))
        offset = access.offset + sum(s * c for s, c in zip(access.strides, self.constants, strict=True))
        strides = tuple([sum(s * row[j] for s, row in pairs) for j in range(self.ndim)])
        return Access(access.buffer, offset, strides, access.loose)

    def index(self, axis: int) -> Expr:
        """An old index as a value over the new ones."""
        return affine(self.constants[axis], self.coefficients[axis])


def rewrite_leaves(
    expr: Expr, leaf: Callable[[Expr], Expr], operation: Callable[[Op, tuple[Expr, ...]], Expr] | None = None
) -> Expr:
    """As `rewritten`, for one value."""
    return rewritten([expr], leaf, operation)[id(expr)]


def replace_parts(expr: Expr, replaced: Mapping[int, Expr]) -> Expr:
    """`expr` with other values in place of some operations, by their ids."""
    return rewrite_leaves(expr, lambda leaf: leaf, lambda node, args: replaced.get(id(node)) or with_arguments(node, args))


def rewrite_accesses(
    expr: Expr, access: Callable[[Access], Access], index: Callable[[Index], Expr] = lambda node: node
) -> Expr:
    """`expr` with other accesses in its loads and places, and other values for its loop variables."""

    def leaf(node: Expr) -> Expr:
        if isinstance(node, (Load, Place)):
            new = access(node.access)
            return node if new is node.access else type(node)(new, node.dtype)
        return index(node) if isinstance(node, Index) else node

    return rewrite_leaves(expr, leaf)


def reindex(expr: Expr, index_map: IndexMap) -> Expr:
    """`expr` as a function of new indices."""
    return rewrite_accesses(expr, index_map.access, lambda node: index_map.index(node.axis))


def select(expr: Expr, index_map: IndexMap, computed: Mapping[int, Expr], inside: Expr | None) -> Expr:
    """`expr` as a function of new indices, some of whose own are computed, where `inside` holds.

    computed: values over the new indices, int64, which are added to what the index map says of an axis.
    inside: where the new index has an element; None means everywhere. Elsewhere no memory is read, and the result means
        nothing.
    """
    if not computed and inside is None:
        return reindex(expr, index_map)
    sure = Const(True, torch.bool)

    def offset(access: Access) -> Expr | None:
        total: Expr | None = None
        for axis, index in computed.items():
            if stride := access.strides[axis]:
                term = _times(index, stride)
                total = term if total is None else Op("add", (total, term), _I64)
        return total

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Load):
            moved = offset(node.access)
            access = index_map.access(node.access)
            if moved is None and inside is None:
                return Load(access, node.dtype)
            # What has one element may be read anywhere; a number of the host has no memory that could be left unread.
            if moved is None and not access.buffer.meta.shape:
                return Load(Access(access.buffer, 0, (0,) * len(access.strides)), node.dtype)
            return pick(Place(access, node.dtype), moved or Const(0, _I64), inside or sure)
        if isinstance(node, Place):
            return Place(index_map.access(node.access), node.dtype)
        if isinstance(node, Index):
            index = index_map.index(node.axis)
            if node.axis not in computed:
                return index
            return computed[node.axis] if _is(index, 0) else Op("add", (index, computed[node.axis]), _I64)
        return node

    def operation(node: Op, args: tuple[Expr, ...]) -> Expr:
        if node.name == PICK:
            place, by, within = node.args[0], args[1], args[2]
            assert isinstance(place, Place)
            moved = offset(place.access)
            if moved is not None:
                by = moved if _is(by, 0) else Op("add", (by, moved), _I64)
            return pick(args[0], by, both(within, inside) or sure)  # type: ignore[arg-type]
        return Op(node.name, args, node.dtype)

    return rewrite_leaves(expr, leaf, operation)


def both(one: Expr | None, two: Expr | None) -> Expr | None:
    """Where two conditions hold. None holds everywhere."""
    if one is None or two is None or one is two or _is(one, True) or _is(two, True):
        return two if one is None or _is(one, True) else one
    return Op("and", (one, two), torch.bool)


def affine(constant: int, coefficients: tuple[int, ...]) -> Expr:
    """`constant + sum(coefficients[k] * index k)`, an int64."""
    total: Expr | None = None
    for axis, coefficient in enumerate(coefficients):
        if coefficient:
            term = _times(Index(axis), coefficient)
            total = term if total is None else Op("add", (total, term), _I64)
    if total is None:
        return Const(constant, _I64)
    return Op("add", (total, Const(constant, _I64)), _I64) if constant else total


def _times(value: Expr, factor: int) -> Expr:
    if isinstance(value, Const):
        return Const(int(value.value) * factor, _I64)
    return value if factor == 1 else Op("mul", (value, Const(factor, _I64)), _I64)


def _is(value: Expr, number: int) -> bool:
    return isinstance(value, Const) and value.value == number
