"""Values that are different formulas on different parts of their index space: pads, concatenations, rolls.

Such a value is a choice by where the index is: `where(lt(i0, 3), this, that)`. When it is stored, its index space is cut
where the outcomes change, and each part has a loop of its own, in which no choice is left. So a concatenation is stored
piece by piece, and what is computed from it, too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from quickfuse.ir.cost_model import COSTS
from quickfuse.ir.expr import PICK, Const, Expr, Index, Load, Op, Place, pick, walk
from quickfuse.ir.reindex import IndexMap, reindex, with_arguments

from . import ops
from .layout import Shape

I64, BOOL = torch.int64, torch.bool

_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_BEFORE = frozenset({"lt", "ge"})  # outcomes that change at the other operand, not behind it

#: The least and the greatest value of an int64 expression; None where that is not known.
_Range = tuple[int, int] | None


def split(value: Expr, shape: Shape) -> Iterator[tuple[Shape, Shape, Expr]]:
    """The parts of an index space and the value on each: the first index, the sizes, the value over the part's own index."""
    cuts = _cuts(value, shape)
    if math.prod(len(c) + 1 for c in cuts) > COSTS.most_parts_of_space:
        cuts = [[] for _ in shape]
    if not any(cuts):
        yield (0,) * len(shape), shape, value
        return
    spans = [list(itertools.pairwise([0, *sorted(c), size])) for c, size in zip(cuts, shape, strict=True)]
    rows = tuple([tuple([int(j == k) for j in range(len(shape))]) for k in range(len(shape))])
    for part in itertools.product(*spans):
        begin = tuple([first for first, _ in part])
        sizes = tuple([end - first for first, end in part])
        chosen = _Specialiser(part).value(value)
        yield begin, sizes, reindex(chosen, IndexMap(begin, rows, len(shape))) if any(begin) else chosen


def simplified(value: Expr, shape: Shape) -> Expr:
    """A value without the choices whose outcome is the same everywhere in its index space."""
    return _Specialiser(tuple([(0, size) for size in shape])).value(value)


def count_pieces(value: Expr, known: dict[int, tuple[Expr, int]]) -> int:
    """About how many formulas a value chooses from. `known` keeps what was found, for values made of others."""
    if id(value) in known:
        return known[id(value)][1]
    stack = [value]
    while stack:
        node = stack[-1]
        args = node.args if isinstance(node, Op) else ()
        missing = [arg for arg in args if id(arg) not in known]
        if missing:
            stack.extend(missing)
            continue
        counts = [known[id(arg)][1] for arg in args]
        chooses = isinstance(node, Op) and node.name == "where" and _is_choice(node.args[0])
        known[id(node)] = (node, counts[1] + counts[2] if chooses else max(counts, default=1))
        stack.pop()
    return known[id(value)][1]


def _is_choice(condition: Expr) -> bool:
    while isinstance(condition, Op) and condition.name in ("and", "not"):
        condition = condition.args[0]
    return isinstance(condition, Op) and condition.name in _COMPARISONS and _linear(condition.args[0]) is not None


# --- where outcomes change ---


def _cuts(value: Expr, shape: Shape) -> list[set[int]]:
    """For each axis, the indices at which the outcome of a comparison differs from the one before."""
    cuts: list[set[int]] = [set() for _ in shape]
    for node in walk(value):
        if not isinstance(node, Op) or node.name not in _COMPARISONS or node.args[0].dtype is not I64:
            continue
        index, limit = node.args
        linear = _linear(index)
        if linear is None or not isinstance(limit, Const):
            continue
        axis, factor, constant = linear
        bound = int(limit.value) - constant
        if node.name in ("eq", "ne"):
            found = [bound // factor, bound // factor + 1] if bound % factor == 0 else []
        else:
            # The outcome of `factor * i < bound` changes at the first i that is not below, or at the first that is.
            before = bound if node.name in _BEFORE else bound + 1
            found = [-(-before // factor) if factor > 0 else (-before) // -factor + 1]
        cuts[axis].update(at for at in found if 0 < at < shape[axis])
    return cuts


def _linear(value: Expr) -> tuple[int, int, int] | None:
    """(axis, factor, constant) of `factor * index + constant`."""
    if isinstance(value, Index):
        return value.axis, 1, 0
    if not isinstance(value, Op) or len(value.args) != 2 or not isinstance(value.args[1], Const):
        return None
    inner, number = _linear(value.args[0]), int(value.args[1].value)
    if inner is None:
        return None
    axis, factor, constant = inner
    if value.name == "add":
        return axis, factor, constant + number
    if value.name == "sub":
        return axis, factor, constant - number
    return (axis, factor * number, constant * number) if value.name == "mul" and number else None


# --- the value on one part ---


class _Specialiser:
    """Rewrites a value for a part of its index space, with choices decided where all indices of the part agree."""

    def __init__(self, part: tuple[tuple[int, int], ...]) -> None:
        self.part = part
        self.done: dict[int, Expr] = {}
        self.ranges: dict[int, _Range] = {}

    def value(self, root: Expr) -> Expr:
        done = self.done
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in done:
                stack.pop()
                continue
            if not isinstance(node, Op):
                done[id(node)] = node
            elif (needed := self._needed(node)) is not None:
                stack.extend(needed)
                continue
            else:
                done[id(node)] = self._made(node)
            stack.pop()
        return done[id(root)]

    def _needed(self, node: Op) -> list[Expr] | None:
        """The arguments that have to be rewritten first; what is not chosen never is."""
        args: tuple[Expr, ...] = node.args
        decides = 0 if node.name == "where" else 2 if node.name == PICK else None
        if decides is not None:
            condition = self.done.get(id(args[decides]))
            if condition is None:
                return [args[decides]]
            if isinstance(condition, Const):
                if node.name == PICK:
                    args = args if condition.value else ()
                else:
                    args = (args[1] if condition.value else args[2],)
        return [arg for arg in args if id(arg) not in self.done] or None

    def _made(self, node: Op) -> Expr:
        done = self.done
        if node.name == "where" and isinstance(condition := done[id(node.args[0])], Const):
            return done[id(node.args[1] if condition.value else node.args[2])]
        if node.name == PICK and isinstance(inside := done[id(node.args[2])], Const):
            if not inside.value:
                return ops.const(0, node.dtype)
            place, offset = done[id(node.args[0])], done[id(node.args[1])]
            if isinstance(offset, Const) and offset.value == 0:
                assert isinstance(place, Place)
                return Load(place.access, node.dtype)
            return pick(place, offset, inside)
        args = tuple([done[id(arg)] for arg in node.args])
        if node.dtype is BOOL and (decided := self._decided(node.name, args)) is not None:
            return decided
        return with_arguments(node, args)

    def _decided(self, name: str, args: tuple[Expr, ...]) -> Expr | None:
        if name in ("and", "or"):
            for one, other in (args, args[::-1]):
                if isinstance(one, Const):
                    return other if bool(one.value) == (name == "and") else one
        elif name == "not" and isinstance(args[0], Const):
            return Const(not args[0].value, BOOL)
        elif name in _COMPARISONS and args[0].dtype is I64:
            outcome = _compare(name, self._range(args[0]), self._range(args[1]))
            return None if outcome is None else Const(outcome, BOOL)
        return None

    def _range(self, value: Expr) -> _Range:
        if isinstance(value, Const):
            return (int(value.value), int(value.value))
        if isinstance(value, Index):
            first, end = self.part[value.axis]
            return (first, end - 1)
        if not isinstance(value, Op) or value.name not in ("add", "sub", "mul"):
            return None
        if id(value) not in self.ranges:
            one, two = map(self._range, value.args)
            self.ranges[id(value)] = None if one is None or two is None else _combined(value.name, one, two)
        return self.ranges[id(value)]


def _combined(name: str, one: tuple[int, int], two: tuple[int, int]) -> _Range:
    if name == "add":
        ends = [one[0] + two[0], one[1] + two[1]]
    elif name == "sub":
        ends = [one[0] - two[1], one[1] - two[0]]
    else:
        ends = [a * b for a in one for b in two]
    low, high = min(ends), max(ends)
    return (low, high) if low > -(1 << 62) and high < 1 << 62 else None


def _compare(name: str, one: _Range, two: _Range) -> bool | None:
    """The outcome of a comparison of values in ranges, where it is the same for all."""
    if one is None or two is None:
        return None
    if name in ("gt", "le"):
        outcome = _compare("lt", two, one)
        return outcome if outcome is None or name == "gt" else not outcome
    if name in ("lt", "ge"):
        outcome = True if one[1] < two[0] else False if one[0] >= two[1] else None
        return outcome if outcome is None or name == "lt" else not outcome
    if one[1] < two[0] or two[1] < one[0]:
        return name == "ne"
    return name == "eq" if one[0] == one[1] == two[0] == two[1] else None
