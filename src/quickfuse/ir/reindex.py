"""Values as functions of other indices: rewriting the leaves of an expression, its loads and loop variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .expr import Const, Expr, Index, Load, Op
from .loop import Access


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Old index k = `constants[k] + sum(coefficients[k][j] * new index j)`; `ndim` new axes."""

    constants: tuple[int, ...]
    coefficients: tuple[tuple[int, ...], ...]
    ndim: int

    def access(self, access: Access) -> Access:
        """The same elements of a buffer, over the new index."""
        pairs = list(zip(access.strides, self.coefficients, strict=True))
        offset = access.offset + sum(s * c for s, c in zip(access.strides, self.constants, strict=True))
        return Access(access.buffer, offset, tuple([sum(s * row[j] for s, row in pairs) for j in range(self.ndim)]))


def rewrite_leaves(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """`expr` with each leaf replaced. Shared nodes stay shared; depth is no limit."""
    if not isinstance(expr, Op):
        return leaf(expr)
    done: dict[int, Expr] = {}
    stack: list[Expr] = [expr]
    while stack:
        node = stack[-1]
        if id(node) in done:
            stack.pop()
        elif isinstance(node, Op):
            missing = [arg for arg in node.args if id(arg) not in done]
            if missing:
                stack.extend(missing)
                continue
            args = tuple([done[id(arg)] for arg in node.args])
            same = all(new is old for new, old in zip(args, node.args, strict=True))
            done[id(node)] = node if same else Op(node.name, args, node.dtype)
            stack.pop()
        else:
            done[id(node)] = leaf(node)
            stack.pop()
    return done[id(expr)]


def reindex(expr: Expr, index_map: IndexMap) -> Expr:
    """`expr` as a function of new indices."""

    def leaf(node: Expr) -> Expr:
        if isinstance(node, Load):
            return Load(index_map.access(node.access), node.dtype)
        if isinstance(node, Index):
            return _affine(index_map.constants[node.axis], index_map.coefficients[node.axis])
        return node

    return rewrite_leaves(expr, leaf)


def _affine(constant: int, coefficients: tuple[int, ...]) -> Expr:
    total: Expr | None = None
    for axis, coefficient in enumerate(coefficients):
        if coefficient:
            index: Expr = Index(axis)
            term = index if coefficient == 1 else Op("mul", (index, Const(coefficient, torch.int64)), torch.int64)
            total = term if total is None else Op("add", (total, term), torch.int64)
    if total is None:
        return Const(constant, torch.int64)
    return Op("add", (total, Const(constant, torch.int64)), torch.int64) if constant else total
